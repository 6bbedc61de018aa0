"""Time and memory of a load: once from the model's file, once from the kept tape, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from monolane.bench import record
from monolane.errors import TargetError
from monolane.model.fetch import resolve

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


def measure(spec: str) -> dict[str, Any]:
    """A first start (kernel not compiled, tape not kept), a second, and what each took."""
    path = resolve(spec)
    path.read_bytes()  # a warm disk
    return {
        "benchmark": "load",
        "model": spec,
        **starts(path, "auto"),
        "method": "a fresh process each, imports included, warm disk; first: nothing cached; second: both are",
        "machine": record.machine(),
        "versions": record.versions("numpy"),
    }


def starts(path: Path, device: str) -> dict[str, Any]:
    """Two starts in fresh processes: the first with an empty cache, the second with what the first has left in it."""
    with tempfile.TemporaryDirectory(prefix="monolane-load-") as cache:
        first, second = _start(path, cache, device), _start(path, cache, device)
    peak = max(first["peak_bytes"], second["peak_bytes"])
    return {"first": first, "second": second, "peak_over_tape": peak / first["tape_bytes"]}


def _start(path: Path, cache: str, device: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), device],
        env={**os.environ, "MONOLANE_CACHE": cache},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TargetError(f"The model at {path} did not start; what it said is above.")
    return dict(json.loads(done.stdout))
