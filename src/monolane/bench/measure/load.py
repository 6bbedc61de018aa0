"""Time and memory of two starts in fresh processes: the second one finds what the first has cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monolane.bench.measure import checkpoint, mixtures, shapes
from monolane.bench.report import record
from monolane.cache import human_size
from monolane.errors import TargetError, UsageError
from monolane.model.fetch import resolve
from monolane.model.load import Model, load_model
from monolane.target import plan_for
from monolane.target.cuda.opening import find_gpu, required_gpu
from monolane.target.opening import DEVICES

Say = Callable[[str], None]

_CHILD = """
import json, resource, sys, time
started = time.monotonic()
from pathlib import Path
from monolane.bench.measure.anonymous_memory import AnonymousPeak
with AnonymousPeak() as anonymous:
    from monolane import LLM, SamplingParams
    llm = LLM(Path(sys.argv[1]), device=sys.argv[2])
    loaded = time.monotonic() - started
    llm.generate("Hello", SamplingParams(max_tokens=1))
    first = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
found = {"load_s": loaded, "first_token_s": first, "peak_bytes": peak, "peak_anonymous_bytes": anonymous.bytes}
print(json.dumps(found))
llm.close()
"""


METHOD = (
    "each start in a fresh process, imports included, the model's files in the page cache; first: no kernel and no "
    "tape in Monolane's cache; second: the kernel is there, and the tape where one was kept (tape_kept); peak_bytes: "
    "the largest resident set, with pages of mapped files; peak_anonymous_bytes: the most memory that no file holds "
    "(RssAnon and RssShmem, with processes that pack), looked at every 20 ms until the first token is there"
)


def run(model: str | None, shape: str | None, device: str, folder: Path, say: Say, keep: bool = False) -> None:
    """Start twice with a model, or with a folder of made-up weights of a shape, and write the result. ``keep``: replace
    one that git tracks."""
    if (model is None) == (shape is None):
        raise UsageError("What is to be loaded is not clear.", "Give either a model or --shape NAME.")
    name = shape or Path(str(model)).name
    if device not in DEVICES:
        raise UsageError(f"There is no device {device!r}.", f"Choose one of: {', '.join(DEVICES)}.")
    kind = device if device != "auto" else "cuda" if find_gpu() is not None else "cpu"
    machine = record.machine()
    if kind == "cuda":
        machine["gpu"] = record.gpu(required_gpu())
    with tempfile.TemporaryDirectory(prefix="monolane-model-") as made:
        path = _written(shape, Path(made), say) if shape is not None else resolve(str(model))
        if shape is None:
            _warm(path)
        found = load_model(path)
        result = {
            "benchmark": "load",
            "model": name,
            "dtype": found.dtype,
            "device": kind,
            **starts(found, kind, say),
            "method": METHOD + ("; made-up weights of this shape, a tokenizer without merges" if shape else ""),
            "machine": machine,
            "versions": record.versions("numpy", *(("cuda-bindings", "nvidia-cuda-nvrtc") if kind == "cuda" else ())),
        }
    say(record.written(f"load-{name}-{kind}", result, folder, keep))


def _written(shape: str, folder: Path, say: Say) -> Path:
    """A folder of a shape's made-up weights, as published. Its files are in the page cache, for they were just
    written."""
    config = shapes.named(shape)
    say(f"{shape}: writing a folder of made-up weights")
    started = time.monotonic()
    size = checkpoint.write(config, mixtures.made_up(config, mixtures.published(config)), folder)
    say(f"written: {human_size(size)} in {time.monotonic() - started:.1f} s")
    return folder


def _warm(path: Path) -> None:
    """Read all files once, so that they are in the page cache: the disk is not what is measured."""
    for file in [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file()):
        with file.open("rb") as open_file:
            while open_file.read(1 << 24):
                pass


def starts(model: Model, device: str, say: Say) -> dict[str, Any]:
    """Two starts in fresh processes: the first with an empty cache, the second with what the first has cached. That is
    no tape where packing it needs no conversion, or where the disk has no room for it (program/tape_store.py)."""
    plan = plan_for(model.config, workers=1, formats=model.weights.format)
    tape = plan.resident_bytes * plan.program.lanes
    with tempfile.TemporaryDirectory(prefix="monolane-load-") as cache:
        say("first start: nothing is cached")
        first = _start(model.path, cache, device) | {"tape_bytes": tape}
        kept = any(Path(cache, "tapes").glob("*.tiles"))
        what = "the kernel and the tape are cached" if kept else "the kernel is cached; of this model no tape was kept"
        say(f"to the first token: {first['first_token_s']:.1f} s; second start: {what}")
        second = _start(model.path, cache, device) | {"tape_bytes": tape}
        say(f"to the first token: {second['first_token_s']:.1f} s")
    peak = max(first["peak_bytes"], second["peak_bytes"])
    return {"first": first, "second": second, "peak_over_tape": peak / tape, "tape_kept": kept}


def _start(path: Path, cache: str, device: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), device],
        env={**os.environ, "MONOLANE_CACHE": cache, "CUDA_CACHE_PATH": cache},  # NVRTC and the driver cache, too
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TargetError(f"The model at {path} did not start; what it said is above.")
    return dict(json.loads(done.stdout))
