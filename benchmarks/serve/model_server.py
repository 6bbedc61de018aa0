"""``monolane serve`` with a real model in a process of its own, for the measurements beside this file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any


class ModelServer:
    def __init__(self, host: str, port: int) -> None:
        self._connection = HTTPConnection(host, port, timeout=600)

    def chat(self, **fields: Any) -> dict[str, Any]:
        """A whole answer, greedy unless told otherwise."""
        body = json.dumps({"temperature": 0, **fields})
        self._connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer: dict[str, Any] = json.load(response)
        if response.status != 200:
            raise SystemExit(answer["error"]["message"])
        return answer

    def device(self) -> str:
        """For people: cpu (2 x avx512)."""
        self._connection.request("GET", "/machine")
        return str(json.load(self._connection.getresponse())["device"])


@contextmanager
def model_server(model: str, device: str) -> Iterator[ModelServer]:
    words = ["serve", model, "--port", "0", "--device", device, "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "-m", "monolane", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while not (found := re.search(r"is ready on .* http://([\d.]+):(\d+)/v1", said := process.stderr.readline())):
            if not said:
                raise SystemExit("The server did not start.")
        yield ModelServer(found[1], int(found[2]))
    finally:
        process.terminate()
        process.wait(30)
