"""Shows a plan as text and as a picture: its stages, the bytes of each stage and worker, how even the tapes are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from monolane.errors import ResourceError, UsageError
from monolane.program.check import reads_of, writes_of
from monolane.program.plan import Plan
from monolane.program.stage import Combine, Merge, Norm, Output, Project, Splitting, Stage

MEGA = 1e6
COLOURS = {  # of stages, the same in every picture
    "embed": "#9d755d",
    "qkv": "#4c78a8",
    "qk": "#4c78a8",  # where q, k and v have different formats
    "q": "#4c78a8",
    "k": "#6f9bc8",
    "kv": "#6f9bc8",
    "v": "#9ecae9",
    "attend": "#e45756",
    "o": "#72b7b2",
    "router": "#ff9da6",
    "gate_up": "#f58518",
    "shared_gate_up": "#f9b27c",
    "down": "#eeca3b",
    "shared_down": "#f3dd84",
    "combine": "#bab0ac",
    "head": "#b279a2",
    "sample": "#54a24b",
}
FEED_FORWARD = ("router", "gate_up", "shared_gate_up", "down", "shared_down")
PARTS = dict.fromkeys(FEED_FORWARD, "ffn") | {"head": "head"}  # of stages; the others are of attention
OTHER_COLOUR = "#888888"
MOST_LISTED = 32  # tapes that the report lists, one per line
PICTURE_FORMATS = (".svg", ".png", ".pdf")


def report(plan: Plan, context: int, shard_notes: Sequence[str] = ()) -> str:
    """The report of a plan. Consecutive layers with equal stages are printed once. ``shard_notes``: how the model was
    divided among lanes, where that was not even."""
    program, layout = plan.program, plan.layout
    rows = [("layer", "stage", "matrix", "MB", "input", "reads", "writes", "lanes"), *_rows(plan)]
    rows = rows if program.lanes > 1 else [row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    even = plan.bytes_per_token / plan.workers
    above, below = max(plan.streamed_bytes) / even - 1, 1 - min(plan.streamed_bytes) / even
    halved = f" ({layout.tile_rows // 2} for the residual stream)" if layout.halves_residual else ""
    listed = plan.workers if plan.workers <= MOST_LISTED else 0
    lanes = program.lanes
    cache, full_cache = lanes * program.cache_bytes(1), lanes * program.cache_bytes(context) / MEGA
    divided = [f"{lanes} lanes, each with this program and its own weights", *shard_notes] if lanes > 1 else []
    lines = [
        *table,
        "",
        *divided,
        f"{len(program.stages)} stages, {program.handoffs} hand-offs",
        f"{lanes * plan.bytes_per_token / MEGA:,.1f} MB streamed per token: {_by_part(plan)}",
        *_resident(plan),
        f"cache: {cache:,} bytes per token, {full_cache:,.1f} MB for {context:,} tokens",
        f"attention: {_splitting(program.attention.splitting)}",
        f"{plan.workers} worker(s){' per lane' if lanes > 1 else ''}, layout {layout.name}: "
        f"tiles of {layout.tile_rows} rows{halved}, k-blocks of {layout.k_block}",
        *_stream_owners(plan),
        *(f"  tape {worker}: {size / MEGA:,.2f} MB" for worker, size in enumerate(plan.tape_bytes[:listed])),
        f"balance: the longest tape is {above:.2%} above even, the shortest {below:.2%} below",
    ]
    return "\n".join(lines)


def _stream_owners(plan: Plan) -> list[str]:
    """Who owns the residual stream, where that is not divided among all workers."""
    if not plan.stream_owners:
        return []
    names = dict.fromkeys(stage.name for stage in plan.program.projections if stage.output is Output.RESIDUAL)
    return [f"the first {plan.stream_owners} of them own the residual stream: they have {', '.join(names)}, and attend"]


def _by_part(plan: Plan) -> str:
    """The bytes of each part of the model and its bits per weight, with scales and the padding of tiles."""
    sizes, weights = Counter[str](), Counter[str]()
    for stage in plan.program.projections:
        part = PARTS.get(stage.name, "attention")
        sizes[part] += plan.program.lanes * _streamed(plan, stage)
        weights[part] += plan.program.lanes * stage.chosen * stage.matrix.rows * stage.matrix.cols
    return ", ".join(
        f"{part} {size / MEGA:,.1f} MB ({8 * size / weights[part]:.3g} bits per weight)" for part, size in sizes.items()
    )


def _streamed(plan: Plan, stage: Project) -> int:
    """Bytes of a stage's matrix that a token streams; of experts, those that are chosen."""
    return stage.chosen * plan.layout.tiles(stage) * plan.layout.tile_bytes(stage)


def _resident(plan: Plan) -> list[str]:
    """What is in memory, where that is more than what a token streams."""
    found = {(stage.chosen, stage.matrix.experts) for stage in plan.program.projections if stage.matrix.experts > 1}
    return [
        f"{plan.resident_bytes / MEGA:,.1f} MB in memory: a token uses {chosen} of {count} experts in each layer that "
        "has them"
        for chosen, count in found
    ]


def _splitting(splitting: Splitting) -> str:
    if splitting.most is None:
        return f"splits of {splitting.tokens} tokens, whatever the number of workers"
    return f"at most {splitting.most} splits for this number of workers, of {splitting.tokens} tokens or more"


def _rows(plan: Plan) -> Iterator[tuple[str, ...]]:
    """One row per stage. Consecutive layers with equal stages share their rows, labelled with first and last."""
    groups: list[tuple[list[int], list[tuple[str, ...]]]] = []  # layers, their common stages
    for layer, stages in groupby(plan.program.stages, lambda stage: getattr(stage, "layer", None)):
        cells = [_cells(plan, stage) for stage in stages]
        if layer is not None and groups and groups[-1][0] and groups[-1][1] == cells:
            groups[-1][0].append(layer)
        else:
            groups.append(([] if layer is None else [layer], cells))
    for layers, cells in groups:
        label = "-".join(str(layer) for layer in dict.fromkeys((layers[0], layers[-1]))) if layers else ""
        yield from ((label, *row) for row in cells)


def _cells(plan: Plan, stage: Stage) -> tuple[str, ...]:
    matrix, size, prepared, lanes = "", "", "", ""
    if isinstance(stage, Combine):
        prepared, lanes = "norm" if stage.norm else "", stage.joining.value
    if isinstance(stage, Project):
        format = stage.matrix.format
        bits = f" ({format.bits:.3g} bits)" if format.is_low_bit else ""
        experts = f"{stage.chosen} of {stage.matrix.experts} x " if stage.matrix.experts > 1 else ""
        shape = f"{experts}{stage.matrix.rows} x {stage.matrix.cols}"
        matrix = f"{shape} {format.name}{bits}{' ordered' * format.ordered}"
        size = f"{_streamed(plan, stage) / MEGA:.2f}"
        prepared = "norm" if isinstance(stage.input, Norm) else "merge" if isinstance(stage.input, Merge) else ""
        lanes = _exchanged(stage, plan.program.lanes)
    return stage.name, matrix, size, prepared, " ".join(sorted(reads_of(stage))), " ".join(writes_of(stage)), lanes


def _exchanged(stage: Project, lanes: int) -> str:
    """What crosses lanes after a projection."""
    exchange = stage.exchange
    if exchange is None:
        return "gather" if stage.output is Output.LOGITS and lanes > 1 else ""
    own = "" if exchange.own == 1.0 else f"{exchange.own:.3g} x "
    if exchange.late is None:
        return f"{own}own"
    return "all-reduce" if exchange.late == 0 else f"{own}own + others of {exchange.late} layer(s) before"


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
        axes.broken_barh(
            spans, (worker - 0.4, 0.8), facecolors=[COLOURS.get(s.name, OTHER_COLOUR) for s in projections]
        )
    axes.set_ylim(plan.workers - 0.5, -0.5)
    axes.set_yticks(range(plan.workers) if plan.workers <= 40 else [])
    axes.set_xlabel("MB from the beginning of the tape")
    axes.set_ylabel("worker")
    axes.set_title(
        f"{plan.bytes_per_token / MEGA:,.1f} MB per token on {plan.workers} tape(s), {plan.program.handoffs} hand-offs"
    )
    names = dict.fromkeys(stage.name for stage in projections)
    handles = [Patch(color=COLOURS.get(name, OTHER_COLOUR), label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ResourceError(
            f"The picture {path} cannot be written: {error.strerror}.", "Choose another file."
        ) from error
