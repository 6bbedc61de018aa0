"""``python -m monolane.bench decode MODEL``, ``load MODEL``, ``trace SHAPE``, ``report``; results go to a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from monolane.bench import decode, load, record, report
from monolane.errors import MonolaneError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m monolane.bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    decoding = commands.add_parser("decode", help="decode speed beside the read ceiling and llama.cpp")
    decoding.add_argument("model")
    decoding.add_argument("--tokens", type=int, default=64, help="tokens per measurement")
    decoding.add_argument("--rounds", type=int, default=7)
    decoding.add_argument("--no-peers", action="store_true", help="only ours and the ceiling")
    loading = commands.add_parser("load", help="time and memory of the first and the second start")
    loading.add_argument("model")
    tracing = commands.add_parser("trace", help="where the time of a token goes on a GPU, with made-up weights")
    tracing.add_argument("shape")
    commands.add_parser("report", help="write the README's table from the results")
    asked = parser.parse_args()
    try:
        if asked.command == "decode":
            result = decode.measure(asked.model, asked.tokens, asked.rounds, not asked.no_peers, _say)
            _say(f"written: {record.write(f'decode-{asked.model}-cpu', result)}")
        elif asked.command == "load":
            _say(f"written: {record.write(f'load-{asked.model}-cpu', load.measure(asked.model))}")
        elif asked.command == "trace":
            from monolane.bench import trace  # needs the CUDA packages

            print(trace.report(asked.shape))
        else:
            changed = report.fill(Path("README.md"), report.table(report.results()))
            _say("README.md " + ("changed" if changed else "is up to date"))
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
