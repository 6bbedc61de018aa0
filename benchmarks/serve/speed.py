"""What the server costs: tokens per second at a client against tokens per second in the engine.

    python benchmarks/serve/speed.py [--rate 5000] [--tokens 4000] [--rounds 7]

The engine is synthetic and makes tokens at a set rate. A client's rate is that of its tokens after the first: from the
piece with the first token to the last piece, by the client's clock. And how long a client that goes away is in the way
of the next: from closing its connection to the next one's first byte.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from synthetic_server import Place, synthetic_server

from monolane.bench.report import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=5000.0, help="tokens per second in the engine")
    parser.add_argument("--tokens", type=int, default=4000, help="per answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="write no result")
    asked = parser.parse_args()
    with synthetic_server(tokens_per_second=asked.rate, context=2 * asked.tokens + 100) as place:
        rounds = {
            "plain": [_round(place, asked.tokens, {}) for _ in range(asked.rounds)],
            "logprobs": [_round(place, asked.tokens, LOGPROBS) for _ in range(asked.rounds)],
            "openai client": [_round_with_sdk(place, asked.tokens) for _ in range(asked.rounds)],
        }
        leaving_s = [_leave(place) for _ in range(3 * asked.rounds)]
    result: dict[str, Any] = {
        "benchmark": "serve speed",
        "model": "a synthetic engine",
        "method": "tokens per second at the client against those in a synthetic engine",
        "engine_tokens_per_second": asked.rate,
        "tokens": asked.tokens,
        "clients": {name: _summary(measured) for name, measured in rounds.items()},
        "next_begins_after_a_client_left_ms": {
            "median": 1e3 * statistics.median(leaving_s),
            "longest": 1e3 * max(leaving_s),
        },
        "machine": record.machine(),
        "versions": record.versions("fastapi", "uvicorn", "uvloop", "openai"),
        "command": " ".join(["python", "benchmarks/serve/speed.py", *sys.argv[1:]]),
    }
    for name, summary in result["clients"].items():
        print(
            f"{name:14} {summary['client']:8.1f} of {summary['engine']:8.1f} tok/s: the server costs "
            f"{summary['cost_percent']:.2f} %; {summary['tokens_per_piece']:.0f} tokens a piece"
        )
    left = result["next_begins_after_a_client_left_ms"]
    print(f"a client leaves: the next begins {left['median']:.1f} ms later, at most {left['longest']:.1f} ms")
    if not asked.dry:
        path = record.RESULTS / "serve-synthetic.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {path}")


LOGPROBS = {"logprobs": True, "top_logprobs": 5}


def _summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    middle = {key: statistics.median(measured[key] for measured in rounds) for key in rounds[0]}
    return middle | {"cost_percent": 100 * (1 - middle["client"] / middle["engine"])}


def _round(place: Place, tokens: int, more: dict[str, Any]) -> dict[str, float]:
    body = {
        "messages": [{"role": "user", "content": "Go"}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
    }
    connection = place.connect()
    connection.request("POST", "/v1/chat/completions", json.dumps(body | more), {"Content-Type": "application/json"})
    first = last = (0.0, 0)
    pieces, timings = 0, {}
    for chunk in _chunks(connection.getresponse()):
        made = chunk["usage"]["completion_tokens"]
        timings = chunk.get("timings", timings)
        if made > last[1]:
            last = (time.perf_counter(), made)
            first = first if first[1] else last
            pieces += 1
    connection.close()
    return _rates(first, last, pieces, timings)


def _round_with_sdk(place: Place, tokens: int) -> dict[str, float]:
    import openai

    client = openai.OpenAI(base_url=f"http://{place.host}:{place.port}/v1", api_key="none")
    stream = client.chat.completions.create(
        model="synthetic",
        messages=[{"role": "user", "content": "Go"}],
        max_tokens=tokens,
        stream=True,
        stream_options={"continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    )
    first = last = (0.0, 0)
    pieces, timings = 0, {}
    for chunk in stream:
        assert chunk.usage is not None
        timings = (chunk.model_extra or {}).get("timings", timings)
        if chunk.usage.completion_tokens > last[1]:
            last = (time.perf_counter(), chunk.usage.completion_tokens)
            first = first if first[1] else last
            pieces += 1
    return _rates(first, last, pieces, timings)


def _leave(place: Place) -> float:
    """Two ask for long answers; the first goes away in the middle."""
    body = json.dumps({"messages": [{"role": "user", "content": "Go"}], "stream": True})
    headers = {"Content-Type": "application/json"}
    first, second = place.connect(), place.connect()
    first.request("POST", "/v1/chat/completions", body, headers)
    begun = first.getresponse()
    begun.readline()
    second.request("POST", "/v1/chat/completions", body, headers)
    waiting = second.getresponse()
    assert waiting.readline().startswith(b": queue 1")
    time.sleep(0.05)
    left = time.perf_counter()
    begun.close()
    first.close()
    while not waiting.readline().startswith(b"data: {"):
        pass
    seconds = time.perf_counter() - left
    second.close()
    return seconds


def _rates(
    first: tuple[float, int], last: tuple[float, int], pieces: int, timings: dict[str, float]
) -> dict[str, float]:
    return {
        "client": (last[1] - first[1]) / (last[0] - first[0]),
        "engine": timings["tokens_per_second"],
        "tokens_per_piece": last[1] / pieces,
    }


def _chunks(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


if __name__ == "__main__":
    main()
