"""Fake OpenAI-compatible servers on a free port, with different behaviours, and with a simulated clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from typing import Any

ANSWER = "abcdefghijklmnopqrstuvwxyz"  # one token per letter, over and over


@dataclass
class Habits:
    """``pieces``: how many tokens come in one piece, in turn; ``stops_after``: where the model ends by itself, unless
    it is told to go on; ``refuses``: fields that are not known; ``routes``: those that are there."""

    pieces: tuple[int, ...] = (1,)
    stops_after: int = 10**6
    refuses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ("/v1/completions", "/v1/chat/completions")
    usage: bool = True
    key: str | None = None
    breaks: str = ""  # what is sent in place of the end
    template: int = 0  # tokens that a prompt has before its words
    answers: Iterator[str] = field(default_factory=lambda: repeat(ANSWER))  # one for each request
    models: Any = field(default_factory=lambda: {"data": [{"id": "fake"}]})
    prompt_s: float = 0.25
    token_s: float = 0.002
    clock_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def clock(self) -> float:
        return self.clock_s

    def made(self, body: dict[str, Any]) -> int:
        asked = int(body["max_tokens"])
        return asked if body.get("ignore_eos") else min(asked, self.stops_after)


@contextmanager
def fake_server(habits: Habits) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(200, habits.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            habits.bodies.append(body)
            unknown = [name for name in habits.refuses if name in body]
            if habits.key and self.headers["Authorization"] != f"Bearer {habits.key}":
                self.answer(401, {"error": {"message": "wrong key"}})
            elif self.path not in habits.routes:
                self.answer(404, {"error": {"message": "no such route"}})
            elif unknown:
                self.answer(400, {"error": {"message": f"{unknown[0]} is not known"}})
            else:
                self.stream(body)

        def stream(self, body: dict[str, Any]) -> None:
            self.send_response(200)
            self.end_headers()
            habits.clock_s += habits.prompt_s
            sent, turn, count, answer = 0, 0, habits.made(body), next(habits.answers)
            while sent < count:
                size = min(habits.pieces[turn % len(habits.pieces)], count - sent)
                habits.clock_s += size * habits.token_s
                text = "".join(answer[place % len(answer)] for place in range(sent, sent + size))
                part = {"delta": {"content": text}} if "messages" in body else {"text": text}
                self.event({"choices": [{"index": 0, **part}]})
                sent, turn = sent + size, turn + 1
            if habits.breaks:
                self.wfile.write(habits.breaks.encode())
                return
            if habits.usage:
                prompt = body.get("prompt") or body["messages"][0]["content"]
                tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
                self.event(
                    {"choices": [], "usage": {"prompt_tokens": habits.template + tokens, "completion_tokens": count}}
                )
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, body: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(body).encode() + b"\n\n")

        def answer(self, status: int, body: Any) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
