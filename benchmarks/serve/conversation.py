"""A real model behind the server: the first token of each turn of a long conversation, and the price of a form.

    python benchmarks/serve/conversation.py [MODEL] [--device auto] [--turns 10] [--words 150]

Turn 10 is asked twice: as the tenth of a conversation whose beginning is still in a cache, and with another first word,
so that everything has to be computed. The price of a form is the same number of tokens, free and as a JSON schema says.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

from monolane.bench import record

NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=150, help="of each question")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write no result")
    asked = parser.parse_args()
    with _server(asked.model, asked.device) as connection:
        device = _get(connection, "/machine")["device"]
        turns = _conversation(connection, asked.turns, asked.words, asked.tokens)
        cold = _first_token(connection, [{"role": "system", "content": "Anew."}, *turns.pop("messages")], 1)
        form = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
        free_speed = _speed(connection, asked.tokens, asked.rounds, ignore_eos=True)
        form_speed = _speed(connection, asked.tokens, asked.rounds, response_format=form)
    result: dict[str, Any] = {
        "benchmark": "serve conversation",
        "method": "time to first token by turn, with and without what is in the cache; speed free and in a form",
        "model": asked.model,
        "device": device,
        **turns,
        "last_turn_without_cache": cold,
        "free_tokens_per_second": free_speed,
        "form_tokens_per_second": form_speed,
        "machine": record.machine(),
        "versions": record.versions("llguidance"),
        "command": " ".join(["python", "benchmarks/serve/conversation.py", *sys.argv[1:]]),
    }
    last = turns["turns"][-1]
    print(f"turn {asked.turns}: {last['prompt_tokens']} tokens, {last['cached_tokens']} cached")
    print(f"first token after {1e3 * last['first_token_s']:.1f} ms; without cache {1e3 * cold['first_token_s']:.1f} ms")
    print(f"free {free_speed:.1f} tok/s; in a form {form_speed:.1f} tok/s")
    if not asked.dry:
        path = record.RESULTS / f"serve-conversation-{asked.model}-{device.split()[0]}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {path}")


def _conversation(connection: HTTPConnection, turns: int, words: int, tokens: int) -> dict[str, Any]:
    messages: list[dict[str, str]] = []
    measured = []
    for turn in range(turns):
        question = " ".join(f"word{(turn * words + i) % 997}" for i in range(words))
        messages.append({"role": "user", "content": f"Turn {turn}: {question}. Go on."})
        body = _chat(connection, messages=messages, max_tokens=tokens, ignore_eos=True)
        measured.append({key: body["timings"][key] for key in ("prompt_tokens", "cached_tokens", "first_token_s")})
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    return {"turns": measured, "messages": messages}


def _first_token(connection: HTTPConnection, messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
    timings = _chat(connection, messages=messages, max_tokens=tokens)["timings"]
    return {key: timings[key] for key in ("prompt_tokens", "cached_tokens", "first_token_s")}


def _speed(connection: HTTPConnection, tokens: int, rounds: int, **fields: Any) -> float:
    messages = [{"role": "user", "content": "Count."}]
    return statistics.median(
        _chat(connection, messages=messages, max_tokens=tokens, **fields)["timings"]["tokens_per_second"]
        for _ in range(rounds)
    )


def _chat(connection: HTTPConnection, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"temperature": 0, **fields})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer: dict[str, Any] = json.load(response)
    if response.status != 200:
        raise SystemExit(answer["error"]["message"])
    return answer


def _get(connection: HTTPConnection, path: str) -> dict[str, Any]:
    connection.request("GET", path)
    body: dict[str, Any] = json.load(connection.getresponse())
    return body


@contextmanager
def _server(model: str, device: str) -> Iterator[HTTPConnection]:
    words = ["serve", model, "--port", "0", "--device", device, "--log-level", "warning"]
    process = subprocess.Popen([sys.executable, "-m", "monolane", *words], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        while not (found := re.search(r"is ready on .*: http://([\d.]+):(\d+)/v1", said := process.stderr.readline())):
            if not said:
                raise SystemExit("The server did not start.")
        yield HTTPConnection(found[1], int(found[2]), timeout=600)
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
