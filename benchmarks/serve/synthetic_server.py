"""A server in a process of its own, with a synthetic engine behind it, for the two measurements beside this file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Place:
    host: str
    port: int
    pid: int

    def connect(self, timeout_s: float = 60.0) -> HTTPConnection:
        return HTTPConnection(self.host, self.port, timeout=timeout_s)


@contextmanager
def synthetic_server(**behaviour: float | int | str) -> Iterator[Place]:
    """``behaviour`` is that of ``Synthetic`` in tests/synthetic_engine.py."""
    command = [sys.executable, __file__, json.dumps(behaviour)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        while "is ready" not in (said := process.stdout.readline()):
            if not said:
                raise SystemExit("The server did not start.")
        url = urlsplit(said.split()[-1])
        assert url.hostname is not None
        assert url.port is not None
        yield Place(url.hostname, url.port, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def main() -> None:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from monolane.serve.run import Settings, serve
    from monolane.serve.service import Service
    from synthetic_engine import synthetic_engine

    service = Service({"synthetic": synthetic_engine(**json.loads(sys.argv[1]))})
    serve(service, Settings(port=0), lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
