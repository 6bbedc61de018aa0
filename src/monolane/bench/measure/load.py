"""Time and memory of two starts in fresh processes: the first reads the model's file, the second the cached tape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monolane.bench.measure import checkpoint, shapes
from monolane.bench.report import record
from monolane.errors import TargetError, UsageError
from monolane.model.fetch import resolve
from monolane.target.cuda.opening import find_gpu, required_gpu
from monolane.target.opening import DEVICES

Say = Callable[[str], None]

_CHILD = """
import json, resource, sys, time
started = time.monotonic()
from pathlib import Path
from monolane import LLM, SamplingParams
llm = LLM(Path(sys.argv[1]), device=sys.argv[2])
loaded = time.monotonic() - started
llm.generate("Hello", SamplingParams(max_tokens=1))
first = time.monotonic() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
found = {"load_s": loaded, "first_token_s": first, "tape_bytes": llm.target.bytes_per_token, "peak_bytes": peak}
print(json.dumps(found))
llm.close()
"""


METHOD = (
    "each start in a fresh process, imports included, the model's files in the page cache; first: no kernel and no "
    "tape in Monolane's cache; second: both are there"
)


def _dtype(path: Path) -> str:
    """What the weights are stored as."""
    from monolane.model.load import load_model

    return load_model(path).dtype


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
        if shape is not None:
            say(f"{shape}: writing a folder of made-up weights")
            checkpoint.write(shapes.named(shape), Path(made))
        path = Path(made) if shape is not None else resolve(str(model))
        _warm(path)
        result = {
            "benchmark": "load",
            "model": name,
            "dtype": _dtype(path) if kind != "cuda" else "bf16",
            "device": kind,
            **starts(path, kind),
            "method": METHOD + ("; made-up weights of this shape, a tokenizer without merges" if shape else ""),
            "machine": machine,
            "versions": record.versions("numpy", *(("cuda-bindings", "nvidia-cuda-nvrtc") if kind == "cuda" else ())),
        }
    first, second = result["first"]["first_token_s"], result["second"]["first_token_s"]
    say(f"to the first token: {first:.1f} s the first time, {second:.1f} s with a warm cache")
    say(record.written(f"load-{name}-{kind}", result, folder, keep))


def _warm(path: Path) -> None:
    """Read all files once, so that they are in the page cache: the disk is not what is measured."""
    for file in [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file()):
        with file.open("rb") as open_file:
            while open_file.read(1 << 24):
                pass


def starts(path: Path, device: str) -> dict[str, Any]:
    """Two starts in fresh processes: the first with an empty cache, the second with what the first has cached."""
    with tempfile.TemporaryDirectory(prefix="monolane-load-") as cache:
        first, second = _start(path, cache, device), _start(path, cache, device)
    peak = max(first["peak_bytes"], second["peak_bytes"])
    return {"first": first, "second": second, "peak_over_tape": peak / first["tape_bytes"]}


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
