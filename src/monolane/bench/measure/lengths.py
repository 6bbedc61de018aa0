"""Parses numbers of tokens such as ``0,1k,8k,32k``; k is 1,024."""

from __future__ import annotations

import re

from monolane.errors import UsageError

MOST = 1 << 24  # tokens: far more than the context of any model


def parse_length(text: str, option: str, low: int = 0) -> int:
    """One number."""
    found = re.fullmatch(r"(\d{1,9})(k?)", text.strip().lower())
    value = int(found[1]) * (1024 if found[2] else 1) if found else -1
    if not low <= value <= MOST:
        raise UsageError(
            f"{option} has {text.strip()!r}.", f"Give a whole number of at least {low}, such as 512 or 8k."
        )
    return value


def parse_lengths(text: str, option: str, low: int = 0) -> tuple[int, ...]:
    """Numbers separated by commas, in ascending order; none where the text is empty."""
    return tuple(sorted({parse_length(part, option, low) for part in text.split(",") if part.strip()}))


def spelled(length: int) -> str:
    """The text that ``parse_length`` makes this number of."""
    return f"{length // 1024}k" if length and length % 1024 == 0 else str(length)
