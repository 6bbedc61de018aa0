"""The experiment's results as one table and one picture: validation loss against how long an exchange may take."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from monolane.cache import atomic_write
from monolane.errors import UsageError
from monolane.model.json_object import read_json_object

_COLOURS = {"plain": "#7f7f7f", "ladder": "#ff7f0e", "4 lanes": "#1f77b4", "8 lanes": "#2ca02c"}


@dataclass(frozen=True)
class Model:
    """The runs of one model with all its seeds."""

    name: str
    kind: str  # plain, ladder, or the number of lanes
    late: int  # modules that run between the sending of an output and the adding of it by other lanes
    losses: tuple[float, ...]  # one per seed
    tokens_per_second: float  # in training
    us_per_token: float | None  # of the engine, where it was measured
    exposed_us: float | None  # of that, what the exchange between lanes adds

    @property
    def loss(self) -> float:
        return fmean(self.losses)


def read_models(folder: Path, times: Path | None) -> list[Model]:
    """What the JSON files of finished runs in a folder say. ``times``: a result of ``monolane.bench delays``."""
    measured = _points(times) if times else {}
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-seed-*.json")):
        result: dict[str, Any] = read_json_object(path)
        if result.get("finished"):
            runs.setdefault(result["model"], []).append(result)
    if not runs:
        raise UsageError(f"{folder} has no results.", "Run the experiment: python -m monolane.train experiment.")
    models = [_model(name, results, measured.get(name, {})) for name, results in runs.items()]
    return sorted(models, key=lambda model: (model.late, model.kind))


def _points(path: Path) -> dict[str, dict[str, float]]:
    """The measured delays, by the names that the experiment gives models."""
    result: dict[str, Any] = read_json_object(path)
    if result.get("benchmark") != "delays":
        raise UsageError(f"{path} has no times by delay.", "Give a result of: python -m monolane.bench delays.")
    named = {0: "plain"}
    return {
        named.get(point["delay"], f"dtp-{result['lanes']}-lanes-delay-{point['delay']}"): point
        for point in result["points"]
    }


def _model(name: str, results: Sequence[dict[str, Any]], measured: dict[str, float]) -> Model:
    config, ladder = results[0]["config"], results[0]["ladder"]
    delay = config["broadcast_delay"]
    kind = "ladder" if ladder else f"{config['num_lanes']} lanes" if delay else "plain"
    return Model(
        name=name,
        kind=kind,
        late=1 if ladder else 2 * delay,  # a layer has two modules
        losses=tuple(result["validation_loss"] for result in results),
        tokens_per_second=fmean(result["tokens_per_second"] or 0 for result in results),
        us_per_token=measured.get("us_per_token"),
        exposed_us=measured.get("exposed_us"),
    )


def table(models: Sequence[Model]) -> str:
    """In Markdown. The spread is half the difference between the best and the worst seed."""
    plain = next((model.loss for model in models if model.kind == "plain"), None)
    timed = any(model.us_per_token is not None for model in models)
    heads = ["model", "modules late", "validation loss", "± of seeds", "against plain", "training, k tok/s"]
    lines = [heads + ["µs per token at the 2B shape", "of that exposed exchange"] * timed]
    lines.append(["---"] * len(lines[0]))
    for model in models:
        row = [
            model.name,
            str(model.late),
            f"{model.loss:.4f}",
            _spread(model.losses),
            "" if plain is None else f"{100 * (model.loss / plain - 1):+.2f}%",
            f"{model.tokens_per_second / 1e3:,.0f}",
        ]
        times = ["" if us is None else f"{us:,.0f}" for us in (model.us_per_token, model.exposed_us)]
        lines.append(row + times * timed)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _spread(losses: Sequence[float]) -> str:
    return "one seed" if len(losses) == 1 else f"{(max(losses) - min(losses)) / 2:.4f} ({len(losses)})"


def draw(models: Sequence[Model], path: Path) -> str:
    """A picture (PNG); returns a line that names it or says why there is none.

    The horizontal axis is the exposed exchange of a token where it was measured, and otherwise how late outputs are.
    """
    if find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed"
    from matplotlib.figure import Figure

    timed = [model for model in models if model.exposed_us is not None]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for kind in dict.fromkeys(model.kind for model in timed or models):
        shown = [model for model in timed or models if model.kind == kind]
        places = [model.late if model.exposed_us is None else model.exposed_us for model in shown]
        colour = _COLOURS.get(kind)
        axis.plot(places, [model.loss for model in shown], "o-", color=colour, label=kind)
        for place, model in zip(places, shown, strict=True):
            axis.plot([place] * len(model.losses), model.losses, "_", color=colour)
            if kind.endswith("lanes"):
                note = f"delay {model.late // 2}"
                axis.annotate(note, (place, model.loss), xytext=(5, 4), textcoords="offset points", fontsize=8)
    waiting = "exposed exchange, µs of a token at the 2B shape"
    axis.set_xlabel(waiting if timed else "modules between sending an output and adding it")
    axis.set_ylabel("validation loss, nats per token")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=144)
    with atomic_write(path) as file:
        file.write(picture.getvalue())
    return f"picture: {path}"
