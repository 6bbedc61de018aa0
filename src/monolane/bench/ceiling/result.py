"""The result of ``monolane ceiling`` as data and as text, for GPUs and CPUs alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

HANDOFF, BARRIER = "hand-off", "barrier"
HOST = {
    "launch_us": "starting the workers",
    "launch_to_end_us": "starting them with nothing to do, to the end",
    "round_trip_us": "a word there and back",
}


@dataclass(frozen=True)
class Read:
    """One way to read memory, and how fast it is."""

    way: str
    bytes_per_s: float


@dataclass(frozen=True)
class Wait:
    """The time of one hand-off or barrier among all workers."""

    what: str  # HANDOFF or BARRIER
    streaming_bytes: int  # per worker: in flight on a GPU, read between two on a CPU; 0: memory is idle
    us: float
    bytes_per_s: float = 0.0  # that all workers streamed meanwhile


@dataclass(frozen=True)
class Exchange:
    """The time of one all-reduce of fp32 values among lanes."""

    lanes: int
    workers: int  # of each lane
    values: int
    streaming_bytes: int  # as of a Wait
    us: float  # until every worker of every lane has all sums
    own_us: float  # until every worker has the sums of its own rows: without the hand-off inside the lane
    hops: int  # of the faster way to all sums: 2 with a hand-off inside the lane, 1 where every worker adds everything
    bytes_per_s: float  # that all workers streamed meanwhile


@dataclass(frozen=True)
class Host:
    """Latencies between the host and the workers; None where there is nothing to measure."""

    launch_us: float  # until the workers have started
    launch_to_end_us: float | None  # of a kernel with nothing to do
    round_trip_us: float | None  # of a word, there and back


@dataclass(frozen=True)
class Ceiling:
    """Everything that ``monolane ceiling`` measures of one device."""

    device: str
    workers: int
    reads: Sequence[Read]
    waits: Sequence[Wait]
    host: Host
    streaming: str  # what Wait.streaming_bytes counts on this device, in words
    seconds: float  # that the measurement took
    exchanges: Sequence[Exchange] = ()  # none where lanes were not measured

    @property
    def best(self) -> Read:
        return max(self.reads, key=lambda read: read.bytes_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "workers": self.workers,
            "ceiling_bytes_per_s": self.best.bytes_per_s,
            "best_way": self.best.way,
            "reads": [asdict(read) for read in self.reads],
            "waits": [asdict(wait) for wait in self.waits],
            **({"exchanges": [asdict(exchange) for exchange in self.exchanges]} if self.exchanges else {}),
            "host": asdict(self.host),
            "streaming": self.streaming,
            "measured_in_s": self.seconds,
        }


def idle_handoff_us(result: Mapping[str, Any]) -> float | None:
    """The time of a hand-off while memory is idle; None where the result, which may come from a file, has none."""
    waits = result.get("waits")
    for wait in waits if isinstance(waits, list) else ():
        if isinstance(wait, dict) and wait.get("what") == HANDOFF and wait.get("streaming_bytes") == 0:
            us = wait.get("us")
            return float(us) if isinstance(us, int | float) and 0 < us < math.inf else None
    return None


def text(result: dict[str, Any]) -> str:
    """The result as aligned columns."""
    reads = [
        [read["way"], speed(read["bytes_per_s"]), f"{read['bytes_per_s'] / result['ceiling_bytes_per_s']:.1%}"]
        for read in result["reads"]
    ]
    waits = [
        [wait["what"], load(wait), f"{wait['us']:.2f} µs", speed(wait["bytes_per_s"]) if wait["bytes_per_s"] else ""]
        for wait in result["waits"]
    ]
    host = [[label, f"{result['host'][key]:.1f} µs"] for key, label in HOST.items() if result["host"][key] is not None]
    parts = [
        f"{result['device']}: {speed(result['ceiling_bytes_per_s'])}, by: {result['best_way']}",
        _columns([["reading memory", "", "of the best"], *reads]),
        _columns([[f"among {result['workers']} workers", f"memory ({result['streaming']})", "", "streaming"], *waits]),
        *([_exchanges(result["exchanges"])] if result.get("exchanges") else []),
        _columns([["with the host", ""], *host]),
    ]
    return "\n\n".join(parts)


def _exchanges(found: list[dict[str, Any]]) -> str:
    """A line for each number of lanes and values, a column for each amount of streaming."""
    loads = list(dict.fromkeys(load(exchange) for exchange in found))
    lines: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for exchange in found:
        name = f"{exchange['lanes']} lanes of {exchange['workers']} workers"
        lines.setdefault((name, f"{exchange['values']:,}"), {})[load(exchange)] = exchange
    rows = [["exchange, until all workers have all sums", "values", "hops", "own rows", *loads]]
    for (name, values), by_load in lines.items():
        first = next(iter(by_load.values()))
        cells = [_exchange(by_load.get(each)) for each in loads]
        rows.append([name, values, str(first["hops"]), f"{first['own_us']:.2f} µs", *cells])
    return _columns(rows)


def _exchange(exchange: dict[str, Any] | None) -> str:
    if exchange is None:
        return ""
    beside = f" {speed(exchange['bytes_per_s'])}" if exchange["bytes_per_s"] else ""
    return f"{exchange['us']:.2f} µs{beside}"


def speed(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e12:
        return f"{bytes_per_s / 1e12:.2f} TB/s"
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def load(wait: dict[str, Any]) -> str:
    return f"{wait['streaming_bytes'] // 1024} KiB" if wait["streaming_bytes"] else "idle"


def _columns(rows: list[list[str]]) -> str:
    """Aligned columns: the first one to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
