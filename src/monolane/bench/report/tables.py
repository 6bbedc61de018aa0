"""``make report``: writes the README's tables and docs/results.md from the result files, and from nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from monolane.bench.report import schema
from monolane.bench.report.markdown import chosen_us, grid, model_name, peer_speed
from monolane.bench.report.record import RESULTS
from monolane.errors import MonolaneError, UsageError

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"
PEER = "llama.cpp, same file"
README, PAGE, GOALS = Path("README.md"), Path("docs/results.md"), Path("benchmarks/goals.json")
MORE = (
    "[All results](docs/results.md): goals, peers, percentiles, first tokens, contexts, loading, serving; machines, "
    "versions, methods."
)


def results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """All results of a folder, ordered by file name; raises if one does not fit its schema."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text())
        except ValueError as error:
            raise UsageError(f"{path} is not JSON: {error}.", "Measure again, or remove it.") from error
        if wrong := schema.problems(result):
            raise UsageError(f"{path} is not a result: {'; '.join(wrong)}.", "Measure again, or remove it.")
        found.append(result)
    return found


def earlier_results(root: Path) -> list[dict[str, Any]]:
    """Results that newer ones of the same kind have replaced, but which alone have peers beside them."""
    return results(root / RESULTS / "earlier")


def table(found: list[dict[str, Any]], earlier: list[dict[str, Any]] | None = None) -> str:
    """The README's tables: decode speeds on GPUs, then on CPUs, each beside llama.cpp with the same file, from the same
    run or an ``earlier`` one."""
    decoded = [result for result in found if result["benchmark"] == "decode"]
    decoded.sort(key=lambda result: float(result["us_per_token"]))
    on_gpu = [result for result in decoded if "gpu" in result["machine"]]
    on_cpu = [result for result in decoded if "gpu" not in result["machine"]]
    parts = [_decode("GPU", on_gpu, earlier or []), _decode("CPU", on_cpu, earlier or []), MORE]
    return "\n\n".join(filter(None, parts))


def _decode(kind: str, found: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> str:
    speeds = ("µs/token, greedy", "sampled", "tok/s, greedy", "sampled")
    columns = ("model", kind, *speeds, "GB/token", "of the read ceiling", PEER)
    rows = [
        (
            model_name(result),
            _where(result),
            chosen_us(result),
            chosen_us(result, "sampled_"),
            *(_tokens_per_second(result.get(f"{choice}us_per_token"), kind) for choice in ("", "sampled_")),
            f"{result['bytes_per_token'] / 1e9:.2f}",
            f"{result['fraction_of_ceiling']:.0%}",
            _peer(result, earlier),
        )
        for result in found
    ]
    return grid(columns, rows)


def _peer(result: dict[str, Any], earlier: list[dict[str, Any]]) -> str:
    """The peer's speed in the same run, or in an earlier one on such a machine."""
    kind = ("model", "dtype", "benchmark")
    before = [
        other
        for other in earlier
        if all(other[key] == result[key] for key in kind) and _where(other) == _where(result) and PEER in other["peers"]
    ]
    if PEER in result["peers"] or not before:
        return peer_speed(result, PEER)
    return f"{peer_speed(before[-1], PEER)}, earlier run"


def _tokens_per_second(us: float | None, kind: str) -> str:
    return "-" if us is None else f"{1e6 / us:,.{0 if kind == 'GPU' else 1}f}"


def _where(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return str(machine["gpu"]["name"]) if "gpu" in machine else f"{machine['processor']}, {result['device']}"


def fill(page: Path, content: str) -> bool:
    """Write ``content`` between the markers of a page; True if that changed the page."""
    text = page.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    new = f"{before}{BEGIN}\n{content}\n{END}{after}"
    page.write_text(new)
    return new != text


def goals(path: Path) -> list[dict[str, Any]]:
    """The goals in a file; none where there is no file."""
    return list(json.loads(path.read_text())) if path.exists() else []


def write(root: Path) -> list[Path]:
    """Write the README's tables and the page of results; returns the files that changed."""
    from monolane.bench.report import page

    found, earlier = results(root / RESULTS), earlier_results(root)
    changed = [README] if fill(root / README, table(found, earlier)) else []
    text = page.page(found, goals(root / GOALS), earlier)
    if not (root / PAGE).exists() or (root / PAGE).read_text() != text:
        (root / PAGE).write_text(text)
        changed.append(PAGE)
    return changed


def main() -> int:
    try:
        changed = write(Path())
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"changed: {', '.join(map(str, changed))}" if changed else "everything is up to date", file=sys.stderr)
    return 0
