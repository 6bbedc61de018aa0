"""Measure the ceiling of this machine, keep it in the cache for other commands, and show it."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane.bench import output_path
from monolane.bench.ceiling import cpu, exchange_gpu, latency_gpu, read_gpu, store
from monolane.bench.ceiling import picture as ceiling_picture
from monolane.bench.ceiling import result as ceiling_result
from monolane.bench.ceiling.result import Ceiling, Host, Read
from monolane.bench.report import record
from monolane.errors import MonolaneError, ResourceError, UsageError
from monolane.target.cuda.opening import find_gpu, required_gpu

DEVICES = ("auto", "cpu", "cuda")
Say = Callable[[str], None]

GPU_METHOD = (
    f"one thread block per SM, device clock; reading: {read_gpu.PASSES} passes over a share of "
    f"{read_gpu.SHARE_BYTES / 1e6:.1f} MB per thread block, timed from when all have started, 16-byte loads or bulk "
    f"copies into a ring, every byte summed, best of {read_gpu.REPEATS}; hand-off: every thread block publishes a "
    f"tagged 8-byte word and reads those of all, barrier: one counter, mean of {latency_gpu.ROUNDS:,}, best of "
    f"{latency_gpu.REPEATS}; streaming: meanwhile one thread of each thread block keeps so many bytes of 16 KiB bulk "
    "copies in flight; exchange: an all-reduce of fp32 values among lanes, which are groups of SMs of one launch, by "
    f"tagged 8-byte words, sums compared bit for bit, mean of {exchange_gpu.ROUNDS:,}, best of {exchange_gpu.REPEATS}, "
    "all sums: with the hand-off inside the lane in tagged 4-byte words of bf16, or every worker adds everything; own "
    "rows: without that; starting: from the call until the host sees the kernel's first word in pinned host memory, "
    f"and until the kernel has ended, median of {latency_gpu.LAUNCHES}; there and back: from the kernel's word in "
    "pinned host memory until it sees the answer of the host, which polls in a Python loop, device clock, median of "
    f"{latency_gpu.ANSWERS:,}"
)


@dataclass(frozen=True)
class Options:
    """The options of the command. They are checked before anything is measured."""

    device: str
    out: Path | None  # where the result is written as JSON
    picture: Path | None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise UsageError(f"There is no device {self.device!r} to measure.", f"Choose one of: {', '.join(DEVICES)}.")
        output_path.check(self.out, "ceiling.json")
        output_path.check(self.picture, "ceiling.svg")


def run(options: Options, say: Say) -> dict[str, Any]:
    """Measure, keep the result in the cache, and write the files that the options name."""
    on_gpu = options.device == "cuda" or (options.device == "auto" and find_gpu() is not None)
    result = _gpu(say) if on_gpu else _cpu(say)
    try:
        store.keep(result)
    except ResourceError as error:  # the result can be shown all the same
        say(f"not kept for other commands: {error}")
    if options.out is not None:
        output_path.write(options.out, json.dumps(result, indent=2) + "\n")
    if options.picture is not None:
        output_path.write(options.picture, ceiling_picture.text(result))
    return result


def _cpu(say: Say) -> dict[str, Any]:
    say("reading and synchronising, some seconds")
    return _result(cpu.measure(), cpu.METHOD, record.machine(), ())


def _gpu(say: Say) -> dict[str, Any]:
    device, began = required_gpu(), time.monotonic()
    say("compiling, and filling memory")
    with closing(read_gpu.GpuReadCeiling(device, read_gpu.SWEEP)) as reader:
        say("reading")
        reads = [Read(way, speed) for way, speed in reader.measure().items()]
        say("hand-offs and barriers")
        waits = latency_gpu.hand_offs(reader.memory)
        say("exchanges among lanes")
        exchanges = exchange_gpu.exchanges(reader.memory)
        say("launches, and words between host and kernel")
        link = latency_gpu.HostLink(reader.memory)
        host = Host(*link.launch_us(), link.round_trip_us())
    name, streaming = f"cuda ({device.name})", "in flight for each"
    found = Ceiling(name, device.processors, reads, waits, host, streaming, time.monotonic() - began, exchanges)
    machine = record.machine() | {"gpu": record.gpu(device)}
    return _result(found, GPU_METHOD, machine, ("cuda-bindings", "nvidia-cuda-nvrtc"))


def _result(found: Ceiling, method: str, machine: dict[str, Any], packages: tuple[str, ...]) -> dict[str, Any]:
    return {
        "benchmark": "ceiling",
        "model": "none",
        **found.to_dict(),
        "method": method,
        "machine": machine,
        "versions": record.versions("numpy", *packages),
        "command": record.command(),
    }


def shown(result: dict[str, Any], as_json: bool) -> str:
    return json.dumps(result) if as_json else ceiling_result.text(result)


def main() -> int:
    """The command for machines that do not have the packages of the command line."""
    parser = argparse.ArgumentParser(prog="python -m monolane.bench.ceiling", description=__doc__)
    parser.add_argument("--device", default="auto", help=", ".join(DEVICES))
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object on stdout")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result (.json)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it (.svg)")
    arguments = parser.parse_args()
    try:
        options = Options(arguments.device, arguments.out, arguments.picture)
        result = run(options, lambda text: print(text, file=sys.stderr, flush=True))
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(shown(result, arguments.as_json))
    return 0
