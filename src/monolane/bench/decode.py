"""Decode speed, ours beside the read ceiling and beside peers, in rounds: each round measures all of them once.

Memory bandwidth of a shared machine drifts from minute to minute. A fraction of the ceiling is therefore formed within
a round, and the median of the rounds is reported; all rounds are kept in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from monolane.bench import record
from monolane.bench.ceiling import ReadCeiling
from monolane.engine.llm import LLM
from monolane.engine.params import SamplingParams
from monolane.target.cpu.machine import processors

PROMPT = "The computer on the desk hums while the night train passes the village. " * 9  # about 128 tokens
CONTEXT = 1024
Say = Callable[[str], None]


def measure(spec: str, tokens: int, rounds: int, peers: bool, say: Say) -> dict[str, Any]:
    """The whole benchmark of one model."""
    from monolane.model.fetch import resolve

    path = resolve(spec)
    workers = len(processors())
    llm = LLM(path, context=CONTEXT, workers=workers)
    ceiling = ReadCeiling(workers)
    others = _peers(path, workers, say) if peers else {}
    rows: list[dict[str, float]] = []
    for number in range(rounds):
        row = {"ceiling": ceiling.measure(), "us_per_token": _ours(llm, tokens)}
        row |= {name: decode_us(PROMPT, tokens) for name, decode_us in others.items()}
        row["ceiling"] = (row["ceiling"] + ceiling.measure()) / 2  # before and after: the drift within a round
        row["fraction"] = llm.target.bytes_per_token / row["us_per_token"] * 1e6 / row["ceiling"]
        rows.append(row)
        say(f"round {number + 1}/{rounds}: {row['us_per_token']:.0f} µs/token, {row['fraction']:.1%} of the ceiling")
    return _result(spec, llm, rows, list(others), tokens)


def _ours(llm: LLM, tokens: int) -> float:
    """Microseconds per token from the target's clock: (time of the last - time of the first) / (n - 1)."""
    answer = llm.generate(PROMPT, SamplingParams(max_tokens=tokens, ignore_eos=True))
    if answer.timings.decode_us_per_token is None or len(answer.token_ids) != tokens:
        raise RuntimeError(f"{len(answer.token_ids)} tokens were made, not {tokens}")
    return answer.timings.decode_us_per_token


def _peers(path: Path, threads: int, say: Say) -> dict[str, Callable[[str, int], float]]:
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        say("llama.cpp is skipped: the xllamacpp package is not installed (pip install 'monolane[bench]').")
        return {}
    from monolane.bench.llamacpp import LlamaCpp
    from monolane.bench.widen import bf16_twin

    if path.suffix != ".gguf":
        say("llama.cpp is skipped: it needs a GGUF file.")
        return {}
    same, wide = LlamaCpp(path, threads, CONTEXT), LlamaCpp(bf16_twin(path), threads, CONTEXT)
    return {"llama.cpp, same file": same.decode_us, "llama.cpp, bf16": wide.decode_us}


def _result(spec: str, llm: LLM, rows: list[dict[str, float]], peers: list[str], tokens: int) -> dict[str, Any]:
    us, size = median(row["us_per_token"] for row in rows), llm.target.bytes_per_token
    return {
        "benchmark": "decode",
        "model": spec,
        "dtype": "bf16",
        "device": llm.target.name,
        "context": CONTEXT,
        "prompt_tokens": len(llm.tokenizer.encode(PROMPT)),
        "tokens": tokens,
        "us_per_token": us,
        "tokens_per_second": 1e6 / us,
        "bytes_per_token": size,
        "ceiling_bytes_per_s": median(row["ceiling"] for row in rows),
        "fraction_of_ceiling": median(row["fraction"] for row in rows),
        "peers": {
            name: {
                "us_per_token": median(row[name] for row in rows),
                "ours_is_faster_by": median(row[name] / row["us_per_token"] for row in rows),
            }
            for name in peers
        },
        "method": "batch 1, greedy, rounds that measure ceiling, ours, peers, ceiling; medians of rounds; "
        "ours: (time of last token - time of first) / (n - 1) on the target's clock; llama.cpp: its own timings; "
        "ceiling: best of plain and prefetched 64-byte loads by the same pinned threads over 512 MiB each",
        "rounds": rows,
        "machine": record.machine(),
        "versions": record.versions("numpy", "xllamacpp"),
    }
