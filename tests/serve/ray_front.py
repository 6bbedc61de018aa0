"""``monolane serve --ray`` as a process, with synthetic engines, on a Ray cluster of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
from running import until

PROGRAM = """
import json, sys
from monolane.cluster.deployment import Wanted
from monolane.cluster.run import serve_replicas
from monolane.serve import request_log
from monolane.serve.run import Settings
from replica_services import Synthetic
behaviour, low, high = json.loads(sys.argv[1])
request_log.set_up("info")
say = lambda text: print(text, file=sys.stderr, flush=True)
serve_replicas(Synthetic(behaviour), "fake", Wanted(low, high, "cpu", 1), Settings(port=0), say)
"""
REPLICA, ENGINE = b"ray::ServeReplica:monolane", b"synthetic_engine.py"  # in their command lines


def environment(mark: str) -> dict[str, str]:
    """For Ray's processes: ``mark`` tells those of this test from all others."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {"PYTHONPATH": paths, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "MONOLANE_MARK": mark}


@dataclass
class Fronted:
    process: subprocess.Popen[bytes]
    url: str
    mark: str
    log: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def metrics(self, name: str) -> dict[str, float]:
        """The values of a metric by replica."""
        found = re.findall(rf'^{name}{{[^}}]*replica="(\w+)"}} (\S+)$', self._page(), re.M)
        return {replica: float(value) for replica, value in found}

    def total(self, name: str) -> float:
        """A metric of the front."""
        found = re.search(rf"^{name} (\S+)$", self._page(), re.M)
        assert found, name
        return float(found[1])

    def _page(self) -> str:
        with urlopen(f"{self.url}/metrics", timeout=30) as response:
            return str(response.read(), "utf-8")

    def processes(self, title: bytes = b"") -> list[int]:
        """Of Ray and the replicas, those whose command line has ``title``."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            if title in line and f"MONOLANE_MARK={self.mark}".encode() in variables.split(b"\0"):
                found.append(int(folder.name))
        return found

    def stop(self) -> str:
        """Tell it to stop; what it has said."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.log.read_text()


@contextmanager
def fronted(
    behaviour: dict[str, Any], low: int, high: int, mark: str, folder: Path, **variables: str
) -> Iterator[Fronted]:
    """``folder`` is for its log: a pipe that nobody reads would stop it."""
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps([behaviour, low, high])],
            stderr=file,
            env=os.environ | environment(mark) | variables,
        )
    try:
        ready = r"fake is ready on Ray: playground (http://127\.0\.0\.1:\d+)/"
        until(lambda: process.poll() is not None or re.search(ready, log.read_text()) is not None)
        found = re.search(ready, log.read_text())
        assert found, log.read_text()
        yield Fronted(process, found[1], mark, log)
    finally:
        process.kill()
        process.wait()
