"""A real model behind the server: the first token of each turn of a long conversation, and structured output.

    python benchmarks/serve/conversation.py [MODEL] [--device auto] [--turns 10] [--words 150]

Turn 10 is asked twice: as the tenth of a conversation whose beginning is still in a cache, and with another first word,
so that everything has to be computed. The price of structured output: see structured_output.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import structured_output
from model_server import ModelServer, model_server

from monolane.bench.report import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=150, help="of each question")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5, help="of each constraint")
    parser.add_argument("--dry", action="store_true", help="write no result")
    asked = parser.parse_args()
    with model_server(asked.model, asked.device) as server:
        device = server.device()
        turns = _conversation(server, asked.turns, asked.words, asked.tokens)
        cold = _first_token(server, [{"role": "system", "content": "Anew."}, *turns.pop("messages")], 1)
        speeds = structured_output.measure(server, asked.tokens, asked.rounds)
    result: dict[str, Any] = {
        "benchmark": "serve conversation",
        "method": "time to first token by turn, with and without prefix cache; speed free and with structured output",
        "model": asked.model,
        "device": device,
        **turns,
        "last_turn_without_cache": cold,
        "free_tokens_per_second": speeds["free"]["tokens_per_second"],
        "form_tokens_per_second": speeds["numbers"]["tokens_per_second"],
        "forms": speeds,
        "machine": record.machine(),
        "versions": record.versions("llguidance"),
        "command": " ".join(["python", "benchmarks/serve/conversation.py", *sys.argv[1:]]),
    }
    last = turns["turns"][-1]
    print(f"turn {asked.turns}: {last['prompt_tokens']} tokens, {last['cached_tokens']} cached")
    print(f"first token after {1e3 * last['first_token_s']:.1f} ms; without cache {1e3 * cold['first_token_s']:.1f} ms")
    for name, found in speeds.items():
        print(f"{name:12} {found['tokens_per_second']:8.1f} tok/s, {100 * found['of_free']:5.1f} % of free")
    if not asked.dry:
        path = record.RESULTS / f"serve-conversation-{asked.model}-{device.split()[0]}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        print(f"written: {path}")


def _conversation(server: ModelServer, turns: int, words: int, tokens: int) -> dict[str, Any]:
    messages: list[dict[str, str]] = []
    measured = []
    for turn in range(turns):
        question = " ".join(f"word{(turn * words + i) % 997}" for i in range(words))
        messages.append({"role": "user", "content": f"Turn {turn}: {question}. Go on."})
        body = server.chat(messages=messages, max_tokens=tokens, ignore_eos=True)
        measured.append({key: body["timings"][key] for key in ("prompt_tokens", "cached_tokens", "first_token_s")})
        if turn + 1 < turns:
            messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
    return {"turns": measured, "messages": messages}


def _first_token(server: ModelServer, messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
    timings = server.chat(messages=messages, max_tokens=tokens)["timings"]
    return {key: timings[key] for key in ("prompt_tokens", "cached_tokens", "first_token_s")}


if __name__ == "__main__":
    main()
