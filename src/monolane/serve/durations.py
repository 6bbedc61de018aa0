"""Durations as Ollama writes them: 300, "5m", "1h30m", "1.5h", 0; below zero: without an end."""

from __future__ import annotations

import re

from monolane.engine.pool import FOREVER
from monolane.errors import UsageError

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
LONGEST_S = 10 * 365 * 86400.0


def seconds(given: str | float, name: str) -> float:
    """The seconds, or FOREVER. ``name`` is that of the option or field, for the error."""
    if not isinstance(given, str):
        return FOREVER if given < 0 else min(float(given), LONGEST_S)
    text = given.strip()
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    if re.fullmatch(r"\d+(\.\d*)?", digits):
        value = float(digits)
    elif digits and not _PART.sub("", digits):
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(digits))
    else:
        raise UsageError(f"{name} is {given!r}.", "Write a time such as 300, 5m, 1h30m, or -1 for no end.")
    return FOREVER if sign else min(value, LONGEST_S)
