"""Results as a picture (PNG): speed by context length, and time per kind of stage."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from monolane.bench import output_path
from monolane.program.inspect import COLOURS, OTHER_COLOUR

Result = dict[str, Any]


def draw(results: Sequence[Result], path: Path) -> str:
    """Draw the results that a picture shows; returns a line that names the file or says why there is none."""
    over_context = [result for result in results if len(result.get("points", ())) > 1]
    by_stage = [result for result in results if result["benchmark"] == "stages"]
    panels = len(over_context) + len(by_stage)
    if not panels:
        return "no picture: it shows contexts and stages, and neither was measured"
    if find_spec("matplotlib") is None:
        return "no picture: matplotlib is not installed"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * panels, 4.5), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for axis, result in zip(axes, (*over_context, *by_stage), strict=True):
        (_contexts if result in over_context else _stages)(axis, result)
        axis.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=144)
    output_path.write(path, picture.getvalue())
    return f"picture: {path}"


def _contexts(axis: Any, result: Result) -> None:
    """The dashed line is the speed if only reading the longer cache at the ceiling added to the first point's time."""
    points = result["points"]
    places = range(len(points))
    speeds = [1e6 / point["us_per_token"] for point in points]
    axis.plot(places, speeds, "o-", color="#1f77b4", label="measured")
    if all("ideal_growth_us" in point for point in points):
        first = points[0]["us_per_token"]
        ideal = [1e6 / (first + point["ideal_growth_us"]) for point in points]
        axis.plot(places, ideal, "--", color="#7f7f7f", label="growth at the read ceiling")
        axis.legend(frameon=False)
    axis.set_xticks(places, [f"{point['context']:,}" for point in points])
    axis.set_ylim(0, 1.1 * max(speeds))
    axis.set_xlabel("tokens in the cache")
    axis.set_ylabel("tokens per second")
    axis.set_title(f"{result['model']}, {result['device'].split(',')[0]}", fontsize=10)


def _stages(axis: Any, result: Result) -> None:
    """The black marks are the predicted times, where there are any."""
    names = list(result["stages_us"])[::-1]
    colours = [COLOURS.get(name, OTHER_COLOUR) for name in names]
    axis.barh(names, [result["stages_us"][name] for name in names], color=colours)
    if result["predicted_us"]:
        predicted = [result["predicted_us"][name] for name in names]
        axis.plot(predicted, names, "|", color="black", markersize=14, markeredgewidth=2, label="the design allows")
        axis.legend(frameon=False)
    axis.set_xlabel(f"µs of a token's {result['us_per_token_traced']:,.0f} (with stamps)")
    axis.set_title(f"{result['model']}: time per kind of stage", fontsize=10)
