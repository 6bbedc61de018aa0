"""``python -m monolane.bench decode MODEL``, ``load MODEL``, ``gpu SHAPE``, ``gpu-load SHAPE``, ``trace SHAPE``,
``report``; results go to a folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from monolane.bench import decode, load, load_gpu, record, report, run_gpu, shapes, trace_run
from monolane.errors import MonolaneError
from monolane.model.progress import Silent


def main() -> int:
    asked = _parser().parse_args()
    try:
        asked.run(asked)
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m monolane.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    decoding = commands.add_parser("decode", help="decode speed beside the read ceiling and llama.cpp")
    decoding.set_defaults(run=_decode)
    decoding.add_argument("model")
    decoding.add_argument("--tokens", type=int, default=64, help="tokens per measurement")
    decoding.add_argument("--rounds", type=_count, default=7)
    decoding.add_argument("--no-peers", action="store_true", help="only ours and the ceiling")
    loading = commands.add_parser("load", help="time and memory of the first and the second start")
    loading.set_defaults(run=_load)
    loading.add_argument("model")
    on_gpu = commands.add_parser("gpu", help="a GPU's read ceiling, ours, torch.compile and long contexts in one run")
    on_gpu.set_defaults(run=_gpu)
    on_gpu.add_argument("shape", help=", ".join(shapes.SHAPES))
    on_gpu.add_argument("--rounds", type=_count, default=5)
    on_gpu.add_argument("--contexts", type=_counts, default=(128, 8192, 32768), help="tokens in the cache; '' for none")
    on_gpu.add_argument("--no-peers", action="store_true", help="only ours and the ceiling")
    on_gpu.add_argument("--out", type=Path, default=record.RESULTS, metavar="FOLDER")
    loading_gpu = commands.add_parser("gpu-load", help="from a folder of made-up weights to the first token on a GPU")
    loading_gpu.set_defaults(run=_gpu_load)
    loading_gpu.add_argument("shape", help=", ".join(shapes.SHAPES))
    loading_gpu.add_argument("--out", type=Path, default=record.RESULTS, metavar="FOLDER")
    tracing = commands.add_parser("trace", help="where the time of a token goes on a GPU, with made-up weights")
    tracing.set_defaults(run=_trace)
    tracing.add_argument("shape")
    tracing.add_argument("--tokens", type=int, default=8, help="tokens that are traced")
    tracing.add_argument("--out", type=Path, metavar="FILE.json", help="write the trace for ui.perfetto.dev")
    tracing.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw it")
    reporting = commands.add_parser("report", help="write the README's table from the results")
    reporting.set_defaults(run=_report)
    return parser


def _decode(asked: argparse.Namespace) -> None:
    result = decode.measure(asked.model, asked.tokens, asked.rounds, not asked.no_peers, _say)
    _say(f"written: {record.write(f'decode-{asked.model}-cpu', result)}")


def _load(asked: argparse.Namespace) -> None:
    _say(f"written: {record.write(f'load-{asked.model}-cpu', load.measure(asked.model))}")


def _gpu(asked: argparse.Namespace) -> None:
    run_gpu.run(asked.shape, asked.rounds, asked.contexts, not asked.no_peers, asked.out, _say)


def _gpu_load(asked: argparse.Namespace) -> None:
    load_gpu.run(asked.shape, asked.out, _say)


def _trace(asked: argparse.Namespace) -> None:
    config = shapes.named(asked.shape)
    how = trace_run.How(asked.tokens, "cuda", None, asked.out, asked.picture)
    print(trace_run.run(asked.shape, config, shapes.MadeUpWeights(config), how, Silent()))


def _report(_: argparse.Namespace) -> None:
    changed = report.fill(Path("README.md"), report.table(report.results()))
    _say("README.md " + ("changed" if changed else "is up to date"))


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(",") if part.strip())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
