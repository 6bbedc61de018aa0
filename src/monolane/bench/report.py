"""The README's table, made from the results and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monolane.bench.record import RESULTS

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"


def results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: every decode result with its bytes and its share of the ceiling, then every load."""
    lines = [
        "| model | device | µs/token | tok/s | MB/token | read ceiling | of ceiling "
        "| llama.cpp, bf16 | llama.cpp, same file |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in (result for result in found if result["benchmark"] == "decode"):
        lines.append(
            f"| {result['model']} {result['dtype']} | {result['device']}, {result['machine']['processor']} "
            f"| {result['us_per_token']:,.0f} | {result['tokens_per_second']:.1f} "
            f"| {result['bytes_per_token'] / 1e6:,.0f} "
            f"| {result['ceiling_bytes_per_s'] / 1e9:.1f} GB/s | {result['fraction_of_ceiling']:.0%} "
            f"| {_peer(result, 'llama.cpp, bf16')} | {_peer(result, 'llama.cpp, same file')} |"
        )
    lines += ["", "| load of | first start | second start | peak memory / tape |", "|---|---|---|---|"]
    for result in (result for result in found if result["benchmark"] == "load"):
        lines.append(
            f"| {result['model']} | {result['first']['load_s']:.1f} s | {result['second']['load_s']:.1f} s "
            f"| {result['peak_over_tape']:.2f} |"
        )
    return "\n".join(lines)


def _peer(result: dict[str, Any], name: str) -> str:
    peer = result["peers"].get(name)
    return f"{1e6 / peer['us_per_token']:.1f} tok/s" if peer else "not measured"


def fill(page: Path, content: str) -> bool:
    """Put the table between its markers; True where that changed the page."""
    text = page.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    new = f"{before}{BEGIN}\n{content}\n{END}{after}"
    page.write_text(new)
    return new != text
