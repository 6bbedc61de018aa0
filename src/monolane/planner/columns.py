"""Aligned columns, wrapped lines and short numbers in plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 96


def table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned lines: the first ``left`` columns are left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def labelled(label: str, text: str, indent: int) -> str:
    """A label in a column of ``indent`` characters, and the text, wrapped, to its right."""
    return _filled(text, label.ljust(indent), " " * indent)


def paragraph(text: str, indent: str = "") -> str:
    return _filled(text, "", indent)


def _filled(text: str, first: str, following: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)


def count(parameters: int) -> str:
    """A number of parameters in short, such as 1.24 B."""
    if not parameters:
        return "-"
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= size:
            return f"{parameters / size:.2f} {unit}"
    return str(parameters)


def duration(us: float) -> str:
    return f"{us:,.0f} µs" if us >= 100 else f"{us:,.1f} µs"


def speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.2f} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.1f} GB/s"
