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
    """Markdown: what was measured on GPUs, where anything was, then what was measured on CPUs."""
    on_gpu = [result for result in found if "gpu" in result["machine"]]
    on_cpu = [result for result in found if "gpu" not in result["machine"]]
    parts = [_gpu_decode(_of(on_gpu, "decode")), _gpu_context(_of(on_gpu, "context")), _gpu_load(_of(on_gpu, "load"))]
    return "\n\n".join([*filter(None, parts), _cpu_decode(_of(on_cpu, "decode")), _cpu_load(_of(on_cpu, "load"))])


def _of(found: list[dict[str, Any]], benchmark: str) -> list[dict[str, Any]]:
    return [result for result in found if result["benchmark"] == benchmark]


def _gpu_decode(found: list[dict[str, Any]]) -> str:
    """Fastest first, for models of many sizes."""
    if not found:
        return ""
    lines = [
        "| model | GPU | µs/token | tok/s | GB/token | read ceiling | of ceiling | torch.compile | faster by "
        "| first token after 128 / 1,024 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in sorted(found, key=lambda result: float(result["us_per_token"])):
        peer = result["peers"].get("torch.compile")
        firsts = " / ".join(f"{result['first_token_ms'][length]['host']:.1f}" for length in ("128", "1024"))
        lines.append(
            f"| {result['model']} {result['dtype']} | {result['machine']['gpu']['name']} "
            f"| {result['us_per_token']:,.0f} | {result['tokens_per_second']:,.0f} "
            f"| {result['bytes_per_token'] / 1e9:.2f} "
            f"| {result['ceiling_bytes_per_s'] / 1e12:.2f} TB/s | {result['fraction_of_ceiling']:.0%} "
            f"| {_speed(peer, 0)} | {_ratio(peer)} | {firsts} ms |"
        )
    return "\n".join(lines)


def _gpu_context(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    lines = [
        "| model | tokens in the cache | µs/token | growth | reading that cache at the ceiling | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for result in found:
        for point in result["points"]:
            ideal = point["ideal_growth_us"]
            growth = (
                f"{point['growth_us']:,.0f} µs | {ideal:,.0f} µs | {point['growth_us'] / ideal:.2f}" if ideal else ""
            )
            lines.append(
                f"| {result['model']} {result['dtype']} | {point['context']:,} | {point['us_per_token']:,.0f} "
                f"| {growth or '- | - | -'} |"
            )
    return "\n".join(lines)


def _gpu_load(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    lines = ["| load to first token of | GPU | first start | second start |", "|---|---|---|---|"]
    for result in found:
        lines.append(
            f"| {result['model']} {result['dtype']} | {result['machine']['gpu']['name']} "
            f"| {result['first']['first_token_s']:.1f} s | {result['second']['first_token_s']:.1f} s |"
        )
    return "\n".join(lines)


def _cpu_decode(found: list[dict[str, Any]]) -> str:
    """Every result with its bytes and its share of the ceiling."""
    lines = [
        "| model | device | µs/token | tok/s | MB/token | read ceiling | of ceiling "
        "| llama.cpp, bf16 | llama.cpp, same file |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in found:
        peers = result["peers"]
        lines.append(
            f"| {result['model']} {result['dtype']} | {result['device']}, {result['machine']['processor']} "
            f"| {result['us_per_token']:,.0f} | {result['tokens_per_second']:.1f} "
            f"| {result['bytes_per_token'] / 1e6:,.0f} "
            f"| {result['ceiling_bytes_per_s'] / 1e9:.1f} GB/s | {result['fraction_of_ceiling']:.0%} "
            f"| {_speed(peers.get('llama.cpp, bf16'), 1)} | {_speed(peers.get('llama.cpp, same file'), 1)} |"
        )
    return "\n".join(lines)


def _cpu_load(found: list[dict[str, Any]]) -> str:
    lines = ["| load of | first start | second start | peak memory / tape |", "|---|---|---|---|"]
    for result in found:
        lines.append(
            f"| {result['model']} | {result['first']['load_s']:.1f} s | {result['second']['load_s']:.1f} s "
            f"| {result['peak_over_tape']:.2f} |"
        )
    return "\n".join(lines)


def _speed(peer: dict[str, Any] | None, decimals: int) -> str:
    return f"{1e6 / peer['us_per_token']:,.{decimals}f} tok/s" if peer else "not measured"


def _ratio(peer: dict[str, Any] | None) -> str:
    return f"{peer['ours_is_faster_by']:.2f} x" if peer else "-"


def fill(page: Path, content: str) -> bool:
    """Put the table between its markers; True where that changed the page."""
    text = page.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    new = f"{before}{BEGIN}\n{content}\n{END}{after}"
    page.write_text(new)
    return new != text
