"""Tables in Markdown, and the cells that several of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NOT_MEASURED = "not measured"


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; nothing where there are no rows."""
    if not rows:
        return ""
    lines = [columns, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def chosen_us(result: dict[str, Any], choice: str = "", clock: str = "", form: str = ",.0f") -> str:
    """µs per token of a decode result; older ones know only of greedy decoding."""
    us = result.get(f"{choice}us_per_token{clock}")
    return "-" if us is None else f"{us:{form}}"


def peer_speed(result: dict[str, Any], name: str) -> str:
    """What a peer reached beside a result."""
    peer = result["peers"].get(name)
    if peer is None:
        return NOT_MEASURED
    speed = 1e6 / peer["us_per_token"]
    return f"{speed:,.{0 if speed >= 100 else 1}f} tok/s"


def optional(value: float | None, form: str, unit: str = "") -> str:
    """A number that not every run has."""
    return NOT_MEASURED if value is None else f"{value:{form}}{unit}"
