"""``python -m monolane.train``: from installed Python packages to a Laneformer that the engine runs."""

from __future__ import annotations

import argparse
import math
import sys
from importlib.util import find_spec
from pathlib import Path

from monolane.errors import MonolaneError, UsageError, pip_install
from monolane.train.presets import PRESETS

CHECKPOINT, RESULT = "checkpoint.safetensors", "result.json"  # in the folder of a run


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        parsed.act(parsed)
    except MonolaneError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m monolane.train", description=__doc__)
    commands = parser.add_subparsers(required=True)

    data = commands.add_parser("data", help="collect the Python files of packages with permissive licences")
    data.set_defaults(act=_data)
    data.add_argument("--site", type=Path, action="append", default=[], metavar="FOLDER", help="instead of this one's")
    _add_data(data)

    tokenizer = commands.add_parser("tokenizer", help="learn a tokenizer from the text, and tokenise it")
    tokenizer.set_defaults(act=_tokenizer)
    tokenizer.add_argument("--vocab", type=int, default=4096, help="tokens")
    _add_data(tokenizer)

    run = commands.add_parser("run", help="train one model, or go on with it")
    run.set_defaults(act=_run)
    run.add_argument("model", help=f"{', '.join(PRESETS)}, or the path of a config.json")
    run.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for checkpoint and result")
    run.add_argument("--tokens", type=_number, required=True, help="to train on, such as 150M")
    run.add_argument("--batch", type=int, default=128, help="sequences per step")
    run.add_argument("--micro-batch", type=int, default=64, help="sequences at a time")
    run.add_argument("--learning-rate", type=float, default=1.5e-3, help="the highest")
    run.add_argument("--seed", type=int, default=0)
    _add_data(run)
    _add_machine(run)

    export = commands.add_parser("export", help="write a trained model as a folder that the engine opens")
    export.set_defaults(act=_export)
    export.add_argument("run", type=Path, help="the folder of a run")
    export.add_argument("out", type=Path, help="the folder to write")
    _add_data(export)

    experiment = commands.add_parser("experiment", help="train plain, Ladder and DTP models alike")
    experiment.set_defaults(act=_experiment)
    experiment.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="one JSON file per run")
    experiment.add_argument("--tokens", type=_number, default=150_000_000, help="of every run, such as 150M")
    experiment.add_argument("--seeds", type=int, default=2, help="runs of every model")
    experiment.add_argument("--only", default="", metavar="NAME,NAME", help="some of the models")
    _add_data(experiment)
    _add_machine(experiment)

    report = commands.add_parser("report", help="the experiment's table and picture")
    report.set_defaults(act=_report)
    report.add_argument("results", type=Path, help="the experiment's folder")
    report.add_argument("--times", type=Path, metavar="FILE.json", help="a result of monolane.bench delays")
    report.add_argument("--picture", type=Path, metavar="FILE.png")
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("data"), metavar="FOLDER", help="of text and tokens")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="then save and end; the same command goes on from there"
    )


def _number(text: str) -> int:
    """150M -> 150,000,000"""
    for suffix, unit in {"k": 10**3, "M": 10**6, "G": 10**9}.items():
        if text.endswith(suffix):
            return round(float(text.removesuffix(suffix)) * unit)
    return int(text)


# PyTorch takes seconds to import, and what only reads text does without it.


def _data(arguments: argparse.Namespace) -> None:
    from monolane.train import sources, text

    summary = text.collect(sources.installed_packages(arguments.site), arguments.data)
    for split in text.SPLITS:
        packages = [package for package in summary["packages"] if package["split"] == split]
        files, size = (sum(package[key] for package in packages) for key in ("files", "bytes"))
        _say(f"{split}: {len(packages)} packages, {files:,} files, {size / 1e6:,.1f} MB")
    _say(f"skipped for their licences: {len(summary['skipped'])} packages; dropped files: {summary['dropped_files']}")


def _tokenizer(arguments: argparse.Namespace) -> None:
    from monolane.train import text, vocabulary

    summary = vocabulary.prepare(arguments.data, arguments.vocab)
    for split in text.SPLITS:
        tokens, size = summary[split]["tokens"], summary[split]["bytes"]
        _say(f"{split}: {tokens:,} tokens of {summary['vocab']:,}, {size / tokens:.2f} bytes each")


def _run(arguments: argparse.Namespace) -> None:
    _require_torch()
    from monolane.train import presets, recipe, run, tokens

    name, config = presets.config_of(arguments.model)
    wanted = recipe.Recipe(
        model=name,
        config=config,
        tokens=arguments.tokens,
        seed=arguments.seed,
        batch=arguments.batch,
        micro_batch=arguments.micro_batch,
        learning_rate=arguments.learning_rate,
    )
    device = run.device_named(arguments.device)
    data = tokens.open_tokens(arguments.data, device)
    result = run.train(wanted, data, device, arguments.out / CHECKPOINT, arguments.minutes, _say)
    run.write_result(arguments.out / RESULT, result)
    _say(run.summary(result))


def _export(arguments: argparse.Namespace) -> None:
    _require_torch()
    from monolane.train import export

    export.export(arguments.run / CHECKPOINT, arguments.data, arguments.out)
    _say(f"try it: monolane generate {arguments.out} -p 'def main('")


def _experiment(arguments: argparse.Namespace) -> None:
    _require_torch()
    from monolane.train import experiment, run, tokens

    recipes = experiment.chosen(arguments.tokens, arguments.seeds, arguments.only)
    device = run.device_named(arguments.device)
    data = tokens.open_tokens(arguments.data, device)
    finished = experiment.run_all(recipes, data, device, arguments.out, arguments.minutes, _say)
    _say("all runs are finished" if finished else "time is up: the same command goes on")


def _report(arguments: argparse.Namespace) -> None:
    from monolane.train import report

    models = report.read_models(arguments.results, arguments.times)
    print(report.table(models))
    if arguments.picture:
        _say(report.draw(models, arguments.picture))


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError("Training needs PyTorch, which is not installed.", f"Install it: {pip_install('torch')}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
