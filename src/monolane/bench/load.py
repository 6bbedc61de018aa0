"""Time and memory of a load: once from the model's file, once from the kept tape, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from monolane.bench import record
from monolane.model.fetch import resolve

_CHILD = """
import json, resource, sys, time
started = time.monotonic()
from pathlib import Path
from monolane import LLM, SamplingParams
llm = LLM(Path(sys.argv[1]))
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
    scratch = tempfile.mkdtemp(prefix="monolane-load-")
    try:
        first, second = _start(path, scratch), _start(path, scratch)
    finally:
        shutil.rmtree(scratch)
    return {
        "benchmark": "load",
        "model": spec,
        "first": first,
        "second": second,
        "peak_over_tape": max(first["peak_bytes"], second["peak_bytes"]) / first["tape_bytes"],
        "method": "a fresh process each, imports included, warm disk; first: nothing cached; second: both are",
        "machine": record.machine(),
        "versions": record.versions("numpy"),
    }


def _start(path: Path, cache: str) -> dict[str, Any]:
    environment = {**os.environ, "MONOLANE_CACHE": cache}
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))
