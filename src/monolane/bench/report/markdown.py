"""Markdown tables, and the cells that several of them have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NOT_MEASURED = "not measured"


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; an empty text where there are no rows."""
    if not rows:
        return ""
    lines = [columns, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def model_name(result: dict[str, Any]) -> str:
    """The model, the format of its weights, and how its experts were chosen where that is not as even as possible."""
    skewed = ", skewed routing" if result.get("routing") == "skewed" else ""
    return f"{result['model']} {result['dtype']}{skewed}"


def chosen_us(result: dict[str, Any], choice: str = "", clock: str = "", spec: str = ",.0f") -> str:
    """µs per token of a decode result, for one way to choose tokens; older results have greedy decoding only."""
    us = result.get(f"{choice}us_per_token{clock}")
    return "-" if us is None else f"{us:{spec}}"


def peer_speed(result: dict[str, Any], name: str) -> str:
    """The speed of a peer in the same rounds."""
    peer = result["peers"].get(name)
    if peer is None:
        return NOT_MEASURED
    speed = 1e6 / peer["us_per_token"]
    return f"{speed:,.{0 if speed >= 100 else 1}f} tok/s"


def optional(value: float | None, spec: str, unit: str = "") -> str:
    """A number that not every result has."""
    return NOT_MEASURED if value is None else f"{value:{spec}}{unit}"
