"""A server under everything at once, for as long as it is told, and what it has leaked by then.

    python benchmarks/serve/soak.py --minutes 30

Clients ask in all the APIs, leave in the middle, send nonsense and schemas; the engine is killed now and then. Memory,
files, threads and tasks of the server's process are looked at all the while, at moments when nobody is being answered.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from http.client import HTTPException
from pathlib import Path
from typing import Any

from synthetic_server import Place, synthetic_server

from monolane.bench.report import record

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLIENTS = 6
LOOKS = 60  # over the whole run
KILL_S = 20.0  # between two kills of the engine

# path, body; every one of them also as a stream where it can be one
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 300}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 50, "logprobs": True, "top_logprobs": 5}),
    ("/v1/chat/completions", {"messages": HI, "max_tokens": 50, "stop": ["fox", "dog"]}),
    ("/v1/chat/completions", {"messages": HI, "temperature": -1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 300_000}]}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 100}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 100}),
    ("/v1/messages", {"messages": HI, "max_tokens": 100}),
    ("/tokenize", {"prompt": "words " * 100}),
    ("/nowhere", {}),
]


class Soak:
    def __init__(self, place: Place, seconds: float) -> None:
        self.place = place
        self.end = time.monotonic() + seconds
        self.counts: Counter[str] = Counter()
        self.go = threading.Event()  # otherwise clients hold still
        self.go.set()
        self.busy = threading.Semaphore(CLIENTS)

    def client(self, number: int) -> None:
        dice = random.Random(number)
        while time.monotonic() < self.end:
            self.go.wait()
            with self.busy:
                try:
                    self.ask(dice)
                except (OSError, HTTPException) as error:
                    self.counts[type(error).__name__] += 1

    def ask(self, dice: random.Random) -> None:
        path, body = dice.choice(REQUESTS)
        body = dict(body)
        if dice.random() < 0.1 and path == "/v1/chat/completions":
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
            SCHEMA["properties"] = {dice.choice("abcdefgh"): {"type": "integer", "minimum": dice.randrange(1000)}}
        if path.startswith("/v1/") and dice.random() < 0.6:
            body["stream"] = True
        # A varied conversation: prefixes are found, copied and given up.
        if isinstance(body.get("messages"), list) and dice.random() < 0.5:
            body["messages"] = [*body["messages"], {"role": "user", "content": "more " * dice.randrange(40)}]
        connection = self.place.connect()
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            if dice.random() < 0.15:
                self.counts["left before the answer"] += 1
                return
            response = connection.getresponse()
            if dice.random() < 0.15:
                response.read(dice.randrange(1, 500))
                self.counts["left in the middle"] += 1
                return
            response.read()
            self.counts[str(response.status)] += 1
        finally:
            connection.close()

    def killer(self) -> None:
        while time.monotonic() + KILL_S < self.end:
            time.sleep(KILL_S)
            for child in _children(self.place.pid):
                if b"synthetic_engine.py" in _read(f"/proc/{child}/cmdline"):
                    os.kill(child, signal.SIGKILL)
                    self.counts["engine killed"] += 1

    def look(self) -> dict[str, float]:
        """With all clients held still for a moment."""
        self.go.clear()
        for _ in range(CLIENTS):
            self.busy.acquire()
        try:
            time.sleep(0.5)
            process = Path(f"/proc/{self.place.pid}")
            status = dict(
                line.split(":\t", 1) for line in _read(process / "status").decode().splitlines() if ":\t" in line
            )
            return {
                "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
                "threads": int(status["Threads"]),
                "files": len(list((process / "fd").iterdir())),
                "children": len(_children(self.place.pid)),
            }
        finally:
            for _ in range(CLIENTS):
                self.busy.release()
            self.go.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--dry", action="store_true", help="write no result")
    asked = parser.parse_args()
    with synthetic_server(tokens_per_second=5000.0, queue_limit=8) as place:
        soak = Soak(place, 60 * asked.minutes)
        threads = [threading.Thread(target=soak.client, args=[number]) for number in range(CLIENTS)]
        threads.append(threading.Thread(target=soak.killer, daemon=True))
        for thread in threads:
            thread.start()
        looks = []
        while time.monotonic() < soak.end:
            time.sleep(60 * asked.minutes / LOOKS)
            looks.append(soak.look())
        for thread in threads[:CLIENTS]:
            thread.join(60)
        alive = not any(thread.is_alive() for thread in threads[:CLIENTS])
        works = _works(place)
    # The first fifth warms caches and pools up.
    quarter = max(1, len(looks) // 5)
    early, late = looks[quarter : 2 * quarter], looks[-quarter:]
    growth = {key: _middle(late, key) - _middle(early, key) for key in looks[0]}
    result = {
        "benchmark": "serve soak",
        "model": "a synthetic engine",
        "method": "a server under mixed load, with clients that leave and an engine that is killed",
        "minutes": asked.minutes,
        "answers": dict(sorted(soak.counts.items())),
        "first": looks[0],
        "last": looks[-1],
        "growth_from_the_second_fifth_to_the_last": growth,
        "all_clients_came_back": alive,
        "works_afterwards": works,
        "machine": record.machine(),
        "versions": record.versions("fastapi", "uvicorn", "uvloop"),
        "command": " ".join(["python", "benchmarks/serve/soak.py", *sys.argv[1:]]),
    }
    print(json.dumps(result, indent=2))
    if not asked.dry:
        (record.RESULTS / "serve-soak.json").write_text(json.dumps(result, indent=2) + "\n")
    leaked = growth["files"] > 2 or growth["threads"] > 2 or growth["rss_mib"] > 20
    sys.exit(1 if leaked or not alive or not works else 0)


def _works(place: Place) -> bool:
    body, headers = json.dumps({"messages": HI, "max_tokens": 5}), {"Content-Type": "application/json"}
    for _ in range(50):
        connection = place.connect()
        connection.request("POST", "/v1/chat/completions", body, headers)
        if connection.getresponse().status == 200:
            return True
        time.sleep(0.2)
    return False


def _middle(looks: list[dict[str, float]], key: str) -> float:
    return statistics.median(look[key] for look in looks)


def _children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _read(task / "children").split()]


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
