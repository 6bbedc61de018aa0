"""A plan for people: its stages with their bytes, who reads how much, how even the shares are; as text and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from monolane.errors import ResourceError, UsageError
from monolane.program.check import reads_of, writes_of
from monolane.program.plan import Plan
from monolane.program.stage import Merge, Norm, Project, Stage

MEGA = 1e6
_COLOURS = {"qkv": "#4c78a8", "o": "#72b7b2", "gate_up": "#f58518", "down": "#eeca3b", "head": "#b279a2"}
PICTURE_FORMATS = (".svg", ".png", ".pdf")


def report(plan: Plan, context: int) -> str:
    """Everything about a plan on one screen: a layer's stages stand for all layers of the same kind."""
    program = plan.program
    rows = [("layer", "stage", "matrix", "MB", "input", "reads", "writes"), *_rows(plan)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    longest, shortest = max(plan.tape_bytes), min(plan.tape_bytes)
    even = plan.bytes_per_token / plan.workers
    lines = [
        *table,
        "",
        f"{len(program.stages)} stages, {program.handoffs} hand-offs, {plan.bytes_per_token / MEGA:,.1f} MB streamed per token",
        f"cache: {program.cache_bytes(1):,} bytes per token, {program.cache_bytes(context) / MEGA:,.1f} MB for {context:,} tokens",
        f"{plan.workers} worker(s), layout {plan.layout.name}: tiles of {plan.layout.tile_rows} rows, blocks of {plan.layout.block}",
        *(f"  tape {worker}: {size / MEGA:,.2f} MB" for worker, size in enumerate(plan.tape_bytes)),
        f"balance: the longest tape is {100 * (longest / even - 1):.2f}% above even, the shortest {100 * (1 - shortest / even):.2f}% below",
    ]
    return "\n".join(lines)


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """One row per stage; a layer that repeats the one before it is counted, not printed."""
    layers: dict[int | None, list[Stage]] = {}
    order: list[int | None] = []
    for stage in plan.program.stages:
        layer = getattr(stage, "layer", None)
        key = layer if layer is not None else -len(order) - 1
        if key not in layers:
            order.append(key)
        layers.setdefault(key, []).append(stage)
    groups: list[tuple[list[tuple[str, ...]], int, int]] = []
    for key in order:
        cells = [_cells(plan, stage) for stage in layers[key]]
        first = key if key is not None and key >= 0 else -1
        if groups and first >= 0 and groups[-1][0] == cells:
            groups[-1] = (cells, groups[-1][1], first)
        else:
            groups.append((cells, first, first))
    for cells, first, last in groups:
        label = "" if first < 0 else str(first) if first == last else f"{first}-{last}"
        yield from ((label, *row) for row in cells)


def _cells(plan: Plan, stage: Stage) -> tuple[str, ...]:
    matrix, size, prepared = "", "", ""
    if isinstance(stage, Project):
        matrix = f"{stage.matrix.rows} x {stage.matrix.cols} {stage.matrix.format.name}"
        size = f"{plan.layout.tiles(stage.matrix) * plan.layout.tile_bytes(stage.matrix) / MEGA:.2f}"
        prepared = "norm" if isinstance(stage.input, Norm) else "merge" if isinstance(stage.input, Merge) else ""
    return stage.name, matrix, size, prepared, " ".join(sorted(reads_of(stage))), " ".join(writes_of(stage))


def picture(plan: Plan, path: Path) -> None:
    """The tapes side by side, each stage's share in its own colour, in reading order."""
    if path.suffix.lower() not in PICTURE_FORMATS:
        raise UsageError(f"{path} is no kind of picture.", f"Choose a name that ends in {', '.join(PICTURE_FORMATS)}.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 1.8 + 0.45 * min(plan.workers, 40)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    projections = plan.program.projections
    for worker, tape in enumerate(plan.segments):
        spans = [(segment.offset / MEGA, segment.size / MEGA) for segment in tape]
        axes.broken_barh(spans, (worker - 0.4, 0.8), facecolors=[_COLOURS.get(s.name, "#888888") for s in projections])
    axes.set_ylim(plan.workers - 0.5, -0.5)
    axes.set_yticks(range(plan.workers) if plan.workers <= 40 else [])
    axes.set_xlabel("MB from the beginning of the tape")
    axes.set_ylabel("worker")
    axes.set_title(
        f"{plan.bytes_per_token / MEGA:,.1f} MB per token on {plan.workers} tape(s), {plan.program.handoffs} hand-offs"
    )
    names = dict.fromkeys(stage.name for stage in projections)
    handles = [Patch(color=_COLOURS.get(name, "#888888"), label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ResourceError(
            f"The picture {path} cannot be written: {error.strerror}.", "Choose another file."
        ) from error
