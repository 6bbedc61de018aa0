"""Proves the invariants of a plan on its data, before anything runs. A plan that breaks one is refused, and the message
names what breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from monolane.program.plan import Plan
from monolane.program.stage import (
    Arrangement,
    Attend,
    Combine,
    Embed,
    Joining,
    Matrix,
    Merge,
    Norm,
    Output,
    Program,
    Project,
    Sample,
    Stage,
    Vector,
    continues,
)

REUSE_DISTANCE = 2  # the fewest hand-offs between reading a buffer and writing it again


class BrokenPlanError(AssertionError):
    """A plan that breaks an invariant. That is a bug of Monolane, never a mistake of the user."""


def check(plan: Plan) -> None:
    """Raise BrokenPlanError with everything that is wrong with a plan."""
    found = list(problems(plan))
    if found:
        raise BrokenPlanError("\n".join(found))


def problems(plan: Plan) -> Iterator[str]:
    """What is wrong with a plan, one sentence each."""
    yield from _sizes(plan.program)
    yield from _weights_once(plan.program)
    yield from _buffer_reuse(plan.program)
    yield from _rows_once(plan)
    yield from _tapes_contiguous(plan)
    yield from _residual_owners(plan)
    yield from _balance(plan)


def reads_of(stage: Stage) -> set[str]:
    """Buffers a stage reads."""
    match stage:
        case Embed():
            return set()
        case Project():
            others = {stage.residual, stage.routing.reads if stage.routing else None}
            return {stage.reads} | {name for name in others if name is not None}
        case Attend() | Combine() | Sample():
            return {stage.reads}


def writes_of(stage: Stage) -> set[str]:
    """Buffers a stage writes."""
    return set() if isinstance(stage, Sample) else {stage.writes}


def _sizes(program: Program) -> Iterator[str]:
    """Every stage fits the buffers, matrices and vectors it names."""
    sizes = {buffer.name: buffer.size for buffer in program.buffers}
    shape = program.attention
    for stage in program.stages:
        where = _label(stage)
        for name in reads_of(stage) | writes_of(stage):
            if name not in sizes:
                yield f"{where}: there is no buffer {name!r}"
                return
        if isinstance(stage, Embed):
            expected, actual = program.hidden, sizes[stage.writes]
            tables = {program.head.matrix.name} | ({program.table.name} if program.table else set())
            if stage.table not in tables:
                yield f"{where}: there is no table {stage.table!r}"
        elif isinstance(stage, Attend):
            expected, actual = (shape.heads + 2 * shape.kv_heads) * shape.head_dim, sizes[stage.reads]
            if sizes[stage.writes] != shape.heads * shape.partial_size:
                yield f"{where}: buffer {stage.writes!r} does not hold one partial result per head"
        elif isinstance(stage, Combine):
            expected, actual = program.hidden, sizes[stage.reads]
            made = program.hidden * (program.lanes if stage.joining is Joining.CONCAT else 1)
            if sizes[stage.writes] != made:
                yield f"{where}: makes {made} elements, but {stage.writes!r} has {sizes[stage.writes]}"
        elif isinstance(stage, Project):
            yield from _project_sizes(program, stage, sizes, where)
            merged = isinstance(stage.input, Merge)
            expected = stage.matrix.cols * (stage.chosen if stage.output is Output.RESIDUAL else 1)
            actual = shape.heads * shape.head_dim if merged else sizes[stage.reads]
        else:
            expected, actual = program.vocab, sizes[stage.reads]
        if expected != actual:
            yield f"{where}: works on {expected} elements, but its buffer has {actual}"
    if shape.heads % shape.kv_heads or len(shape.frequencies) * 2 != shape.head_dim:
        yield f"attention: {shape.heads} heads over {shape.kv_heads}, {len(shape.frequencies)} frequencies do not fit"


def _project_sizes(program: Program, stage: Project, sizes: dict[str, int], where: str) -> Iterator[str]:
    outputs = stage.outputs * (stage.chosen if stage.output is Output.GATE else 1)
    place = program.stages.index(stage)
    before, after = program.stages[place - 1], program.stages[place + 1]
    if stage.continues and not (isinstance(before, Project) and _continues_rightly(stage, before)):
        yield f"{where}: continues a stage that has another input or output, or ends at another row"
    if (stage.routing.count if stage.routing else 1) != stage.matrix.experts:
        yield f"{where}: its routing is that of another number of experts than its matrix has"
    if stage.routing and not (
        1 <= stage.routing.chosen <= stage.routing.count
        and stage.routing.first + stage.routing.count <= sizes[stage.routing.reads]
    ):
        yield f"{where}: its routing chooses from logits that are not in {stage.routing.reads!r}"
    if stage.routing and stage.output not in (Output.GATE, Output.RESIDUAL):
        yield f"{where}: experts make activations or add to the residual stream, and nothing else"
    if not stage.continues and stage.first_row:
        yield f"{where}: begins at row {stage.first_row} of its output, and continues no stage"
    if stage.output is Output.LOGITS and outputs * program.lanes - program.lanes < sizes[stage.writes]:
        outputs = min(outputs * program.lanes, sizes[stage.writes])  # those of all lanes are gathered
    if (stage.exchange is not None) != (program.lanes > 1 and stage.output is Output.RESIDUAL):
        yield f"{where}: an exchange belongs to a residual output of several lanes, and only there"
    if stage.exchange and stage.exchange.late and stage.layer is not None and stage.layer < stage.exchange.late:
        yield f"{where}: adds what other lanes made {stage.exchange.late} layers before, and there is no such layer"
    made = stage.first_row + outputs
    if sizes[stage.writes] != made and not (continues(after) and made < sizes[stage.writes]):
        yield f"{where}: makes {made} elements, but {stage.writes!r} has {sizes[stage.writes]}"
    if (stage.output is Output.RESIDUAL) != (stage.residual is not None):
        yield f"{where}: a residual buffer belongs to a residual output, and only there"
    if stage.residual and sizes[stage.residual] != outputs:
        yield f"{where}: makes {outputs} elements, but adds to {sizes[stage.residual]}"
    biased = stage.matrix.experts * stage.matrix.rows, stage.matrix.arrangement
    if stage.bias and (stage.bias.size, stage.bias.arrangement) != biased:
        yield f"{where}: its bias is not arranged like its rows"
    if (stage.order is not None) != stage.matrix.format.ordered:
        yield f"{where}: an order belongs to an ordered matrix, and only there"
    if isinstance(stage.input, Norm) and stage.input.weight.size != stage.matrix.cols:
        yield f"{where}: its norm has {stage.input.weight.size} weights for {stage.matrix.cols} columns"
    interleaved = stage.matrix.arrangement is Arrangement.INTERLEAVE
    if interleaved and len({rows for _, rows in stage.matrix.parts}) != 1:
        yield f"{where}: interleaved parts have different numbers of rows"
    if (stage.output is Output.GATE) != interleaved:
        yield f"{where}: a gate needs gate and up rows interleaved, and nothing else does"


def _continues_rightly(stage: Project, before: Project) -> bool:
    """Whether a stage needs no hand-off after the one before it: it makes the next rows of the same output, or
    activations of the same input, or it adds to the rows of the residual stream that the same worker has just
    written."""
    same_input = (before.input, before.reads, before.output) == (stage.input, stage.reads, stage.output)
    if stage.output is Output.STORE:
        follows = stage.first_row == before.first_row + before.matrix.rows
        return same_input and before.writes == stage.writes and follows
    if stage.output is Output.GATE:
        return same_input and before.writes != stage.writes and not stage.first_row
    same_output = stage.output is before.output is Output.RESIDUAL
    return same_output and stage.residual == stage.writes == before.writes


def _weights_once(program: Program) -> Iterator[str]:
    """No weight of the model is used twice."""
    users: list[Matrix | Vector] = [stage.matrix for stage in program.projections] + list(program.vectors())
    users += [program.table] if program.table else []
    # With several lanes the head's rows are a copy, under a name of their own, where it is tied to the embedding.
    for name, count in Counter(name for user in users for name, _ in user.parts).items():
        if count != 1:
            yield f"weight {name!r} is used {count} times"


def _buffer_reuse(program: Program) -> Iterator[str]:
    """A buffer is written again at least two hand-offs after it was last read, also across passes."""
    handed_over = list(accumulate(not continues(stage) for stage in program.stages))  # hand-offs up to each stage
    for buffer in program.buffers:
        writes = {i for i, stage in zip(handed_over, program.stages, strict=True) if buffer.name in writes_of(stage)}
        for i, stage in zip(handed_over, program.stages, strict=True):
            if buffer.name in reads_of(stage) and writes:
                following = min((w - i if w > i else w - i + handed_over[-1]) for w in writes)
                if following < REUSE_DISTANCE:
                    yield f"{_label(stage)}: {buffer.name!r} is rewritten {following} hand-off(s) after it is read"


def _rows_once(plan: Plan) -> Iterator[str]:
    """Every tile of every matrix is on exactly one tape, and all tapes have the program's stages in the same order."""
    for index, stage in enumerate(plan.program.projections):
        covered = 0
        for worker, tape in enumerate(plan.segments):
            if len(tape) != len(plan.program.projections) or tape[index].stage != index:
                yield f"worker {worker}: its stages are not the program's, in order"
                return
            if tape[index].first_tile != covered:
                yield f"{_label(stage)}: worker {worker} begins at tile {tape[index].first_tile}, not {covered}"
            covered = tape[index].first_tile + tape[index].tiles
        if covered != plan.layout.tiles(stage):
            yield f"{_label(stage)}: {covered} of {plan.layout.tiles(stage)} tiles are on the tapes"


def _tapes_contiguous(plan: Plan) -> Iterator[str]:
    """Segments follow each other without gaps, each as large as its tiles."""
    for worker, tape in enumerate(plan.segments):
        end = 0
        for segment, stage in zip(tape, plan.program.projections, strict=False):
            size = stage.matrix.experts * segment.tiles * plan.layout.tile_bytes(stage)
            if segment.offset != end or segment.size != size:
                yield f"worker {worker}, {_label(stage)}: its tape has a gap or a wrong size at byte {end}"
            end = segment.offset + segment.size


def _residual_owners(plan: Plan) -> Iterator[str]:
    """A row of the residual stream has one owner for the whole pass."""
    for worker, tape in enumerate(plan.segments):
        shares = {
            (segment.first_tile, segment.tiles)
            for segment, stage in zip(tape, plan.program.projections, strict=False)
            if stage.output is Output.RESIDUAL
        }
        if len(shares) > 1:
            yield f"worker {worker}: owns different rows of the residual stream in different stages"


def _balance(plan: Plan) -> Iterator[str]:
    """What workers stream differs by less than one tile per stage (and chosen expert) on average; where the workers are
    divided among the matrices of a stage, or of a layer, or some own no row of the residual stream, by less than the
    largest share."""
    allowed = 0
    for together in plan.program.projections_by_stage:
        for index in together:
            stage, counts = plan.program.projections[index], [tape[index].tiles for tape in plan.segments]
            divided = len(together) > 1 or stage.output is Output.RESIDUAL or plan.stream_owners
            tiles = max(counts) if divided and not min(counts) else 1
            allowed += tiles * stage.chosen * plan.layout.tile_bytes(stage)
    spread = max(plan.streamed_bytes) - min(plan.streamed_bytes)
    if spread >= allowed:
        yield f"tapes differ by {spread} bytes, which is not less than the {allowed} bytes that tiles explain"


def _label(stage: Stage) -> str:
    layer = getattr(stage, "layer", None)
    return stage.name if layer is None else f"layer {layer} {stage.name}"
