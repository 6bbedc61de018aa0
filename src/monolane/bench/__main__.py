"""``python -m monolane.bench``: the benchmarks of ``monolane bench`` without the packages of the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from monolane.bench import output_path
from monolane.bench.measure import contexts, delays, lengths, load, mixtures, routing, run, shapes, subject
from monolane.bench.peers import registry
from monolane.bench.quality import run as quality_run
from monolane.bench.report import picture, record, show, tables
from monolane.bench.trace import run as trace_run
from monolane.errors import MonolaneError
from monolane.progress import Silent


def main() -> int:
    arguments = _parser().parse_args()
    try:
        arguments.act(arguments)
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m monolane.bench", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_run(commands.add_parser("run", help="what 'monolane bench' does"))
    _add_contexts(commands.add_parser("contexts", help="decode time behind longer contexts alone, of several shapes"))
    _add_delays(commands.add_parser("delays", help="how long the lanes of a Laneformer wait for each other, by delay"))
    loading = commands.add_parser("load", help="time and memory of the first and the second start")
    loading.set_defaults(act=_load)
    _add_what(loading)
    tracing = commands.add_parser("trace", help="where the time of a token goes on a GPU, with made-up weights")
    tracing.set_defaults(act=_trace)
    tracing.add_argument("shape", help=", ".join(shapes.SHAPES))
    tracing.add_argument("--tokens", type=int, default=8, help="tokens that are traced")
    tracing.add_argument("--weights", choices=mixtures.MIXTURES, metavar="MIXTURE", help="q4_k_m, fp8 or a format")
    tracing.add_argument("--out", type=Path, metavar="FILE.json", help="write the trace for ui.perfetto.dev")
    tracing.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw it")
    _add_quality(commands.add_parser("quality", help="the share of HumanEval's problems that a model solves"))
    drawing = commands.add_parser("draw", help="the picture of a model's results that were written earlier")
    drawing.set_defaults(act=_draw)
    drawing.add_argument("model", help="as results call it")
    drawing.add_argument("--results", type=Path, default=record.RESULTS, metavar="FOLDER")
    drawing.add_argument("--picture", type=Path, default=Path("bench.png"), metavar="FILE.png")
    reporting = commands.add_parser("report", help="write the README's tables and the page of results from the results")
    reporting.set_defaults(act=_report)
    return parser


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a name, a folder or a GGUF file; with --server its name there")
    parser.add_argument("--shape", help=f"made-up weights instead: {', '.join(shapes.SHAPES)}")
    parser.add_argument("--device", default="auto", help="auto, cuda, cpu or interpreter")
    parser.add_argument("--out", type=Path, default=record.RESULTS, metavar="FOLDER", help="where results go")
    parser.add_argument("--keep", action="store_true", help="replace results that git tracks")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=_run)
    _add_what(parser)
    parser.add_argument("--workers", type=int, help="threads of a CPU")
    parser.add_argument("--lanes", type=int, help="tensor-parallel shares of the model")
    parser.add_argument("--placement", default="together", help="of lanes: together or apart")
    parser.add_argument(
        "--weights",
        help="q8 or q4: quantise 16-bit weights while loading; of a shape also q4_k_m, fp8, mxfp4+q8 or a format",
    )
    parser.add_argument(
        "--routing", default=routing.EVEN, help="of a shape with experts: even, or skewed as in trained models"
    )
    parser.add_argument("--context", default="", metavar="0,1k,8k,32k", help="tokens in the cache to decode behind")
    parser.add_argument("--tokens", type=int, help="tokens per answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="all", help=f"all, none, or some of: {', '.join(registry.MAKERS)}")
    parser.add_argument("--server", metavar="URL", help="measure an OpenAI-compatible server from outside")
    parser.add_argument("--api-key", default=os.environ.get("MONOLANE_API_KEY"), help="of that server")
    parser.add_argument("--workflow", type=int, metavar="TOKENS", help="an agent's loop of so many tokens instead")
    parser.add_argument("--json", action="store_true", help="results on stdout as JSON instead of a table")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")


def _add_contexts(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=_contexts)
    _add_what(parser)
    usual = ",".join(map(lengths.spelled, contexts.USUAL))
    parser.add_argument("--context", default=usual, metavar=usual, help="tokens in the cache to decode behind")
    parser.add_argument("--tokens", type=int, help="tokens per answer")
    parser.add_argument("--rounds", type=int, default=5)


def _add_quality(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=_quality)
    parser.add_argument("model", help="a name, a folder or a GGUF file of a chat model")
    parser.add_argument("--device", default="auto", help="auto, cuda, cpu or interpreter")
    parser.add_argument("--workers", type=int, help="threads of a CPU")
    parser.add_argument("--weights", help="q8 or q4: quantise 16-bit weights while loading")
    parser.add_argument("--tokens", type=int, default=512, help="tokens per answer, at most")
    parser.add_argument("--problems", type=int, help="only so many, the first ones")
    parser.add_argument("--out", type=Path, default=quality_run.QUALITY, metavar="FOLDER", help="where the result goes")
    parser.add_argument("--keep", action="store_true", help="replace results that git tracks")


def _add_delays(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=_delays)
    lane_shapes = [name for name, shape in shapes.SHAPES.items() if shape.lanes]
    parser.add_argument("--shape", default=lane_shapes[0], help=f"made-up weights: {', '.join(lane_shapes)}")
    parser.add_argument("--delays", default="0,1,2,4", help="layers after which lanes add the outputs of the others")
    parser.add_argument("--placement", default="apart", help="of lanes: together or apart")
    parser.add_argument("--tokens", type=int, default=256, help="tokens per answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=record.RESULTS, metavar="FOLDER", help="where results go")
    parser.add_argument("--keep", action="store_true", help="replace results that git tracks")


def _delays(arguments: argparse.Namespace) -> None:
    options = delays.Options(
        shape=arguments.shape,
        delays=delays.parse(arguments.delays),
        placement=arguments.placement,
        tokens=arguments.tokens,
        rounds=arguments.rounds,
        out=arguments.out,
        keep=arguments.keep,
    )
    print(show.text([delays.run(options, Silent(), _say)]))


def _contexts(arguments: argparse.Namespace) -> None:
    shape_names = arguments.shape.split(",") if arguments.shape else [None]
    for shape in filter(None, shape_names):
        shapes.named(shape)  # before minutes are spent on the others
    sweeps = [
        run.Options(
            model=arguments.model,
            shape=shape,
            device=arguments.device,
            contexts=lengths.parse_lengths(arguments.context, "--context"),
            tokens=arguments.tokens,
            rounds=arguments.rounds,
            out=arguments.out,
            keep=arguments.keep,
        )
        for shape in shape_names
    ]
    print(show.text([run.sweep(options, Silent(), _say) for options in sweeps]))


def _run(arguments: argparse.Namespace) -> None:
    options = run.Options(
        model=arguments.model,
        shape=arguments.shape,
        server=arguments.server,
        api_key=arguments.api_key,
        device=arguments.device,
        workers=arguments.workers,
        lanes=arguments.lanes,
        placement=arguments.placement,
        weights=arguments.weights,
        routing=arguments.routing,
        contexts=lengths.parse_lengths(arguments.context, "--context"),
        tokens=arguments.tokens,
        rounds=arguments.rounds,
        peers=registry.parse(arguments.peers),
        workflow=arguments.workflow,
        out=arguments.out,
        keep=arguments.keep,
        picture=arguments.picture,
    )
    results = run.run(options, Silent(), _say)
    print(json.dumps(results, indent=2) if arguments.json else show.text(results))


def _load(arguments: argparse.Namespace) -> None:
    load.run(arguments.model, arguments.shape, arguments.device, arguments.out, _say, arguments.keep)


def _quality(arguments: argparse.Namespace) -> None:
    options = quality_run.Options(
        model=arguments.model,
        device=arguments.device,
        workers=arguments.workers,
        quantise=arguments.weights,
        max_tokens=arguments.tokens,
        problems=arguments.problems,
        out=arguments.out,
        keep=arguments.keep,
    )
    print(quality_run.summary(quality_run.run(options, _say)))


def _trace(arguments: argparse.Namespace) -> None:
    _, made_up = subject.find_model(None, arguments.shape, Silent(), arguments.weights)
    options = trace_run.Options(arguments.tokens, "cuda", None, arguments.out, arguments.picture)
    print(trace_run.run(arguments.shape, made_up.config, made_up.weights, options, Silent()))


def _draw(arguments: argparse.Namespace) -> None:
    output_path.check(arguments.picture, "bench.png")
    _say(
        picture.draw(
            [result for result in tables.results(arguments.results) if result["model"] == arguments.model],
            arguments.picture,
        )
    )


def _report(_: argparse.Namespace) -> None:
    changed = ", ".join(map(str, tables.write(Path())))
    _say(f"changed: {changed}" if changed else "everything is up to date")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
