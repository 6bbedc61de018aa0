"""What the kernel knows of exchanges between lanes, from the program."""

from __future__ import annotations

from monolane.program.stage import Combine, Exchange, Joining, Norm, Program, Project
from monolane.program.tape import constant_offsets
from monolane.target.cpp import braces, integer_constants
from monolane.target.cuda.layers import places, stage_at
from monolane.target.generate import literal

NEVER = -1  # in the place of a delay: nothing of the other lanes is added


def exchanging(program: Program) -> list[list[Project]]:
    """The projections of a layer that exchange their outputs, each with that of every layer."""
    names = dict.fromkeys(stage.name for stage in program.projections if stage.exchange)
    return [[stage for stage in program.projections if stage.name == name] for name in names]


def combine_of(program: Program) -> Combine | None:
    return next((stage for stage in program.stages if isinstance(stage, Combine)), None)


def any_late(program: Program) -> bool:
    """Whether lanes add outputs of the others later than at once, or not at all, in any layer."""
    return any(stage.exchange.late != 0 for stage in program.projections if stage.exchange)


def all_late(program: Program) -> bool:
    """Whether they do so in all layers."""
    exchanges = [stage.exchange for stage in program.projections if stage.exchange]
    return bool(exchanges) and all(exchange.late != 0 for exchange in exchanges)


def depth(program: Program) -> int:
    """Slots of the mailbox for each projection: layers that lanes may be apart, plus the one being written.

    Let d be the largest delay. A lane in layer g has received what every other lane sent in a layer not before g - 3d:
    a pass may begin with 2d layers that receive nothing, and what is received is d layers old. The slowest lane may
    still be reading what was sent d layers before that.
    """
    delays = [stage.exchange.late or 0 for stages in exchanging(program) for stage in stages if stage.exchange]
    return 4 * max(delays, default=0) + 2


def slots(program: Program) -> int:
    """Slots of a mailbox; 0 where there is one lane."""
    return len(exchanging(program)) * depth(program) + 2 * (combine_of(program) is not None)


def definitions(program: Program) -> list[str]:
    """C++ of all of it: for each exchanging projection and layer, what is added; and how streams are combined."""
    projections = exchanging(program)
    buffers = {buffer.name: place for place, buffer in enumerate(program.buffers)}
    combine = combine_of(program)
    norm = combine.norm if combine else None
    offsets, _ = constant_offsets(program)
    tables = [_table(program, stages) for stages in projections]
    integers = {
        "kExchangeDepth": depth(program),
        "kExchangingProjections": len(projections),
        "kAnyLate": int(any_late(program)),
        "kAllLate": int(all_late(program)),
        "kCombines": int(combine is not None),
        "kConcatenates": int(combine is not None and combine.joining is Joining.CONCAT),
        "kAverages": int(combine is not None and combine.joining is Joining.MEAN),
        "kCombined": buffers[combine.writes] if combine else -1,
    }
    return [
        *integer_constants(integers),
        "struct Exchange {",
        "  float own;  // factor of the lane's own output",
        "  int late;   // layers before which the outputs of the other lanes were made that are added; kNone: none are",
        "  int sends;  // whether any lane needs this output",
        "};",
        f"MONOLANE_CONSTANT Exchange kExchanges[][kLayers] = {braces(tables or ['{}'])};",
        f"MONOLANE_CONSTANT int kExchangeStages[] = {braces(_first_stages(program, projections))};",
        *_combined_type(program, norm, combine, offsets, buffers),
    ]


def _first_stages(program: Program, projections: list[list[Project]]) -> list[str]:
    """The stage of each exchanging projection in the first layer."""
    rows = places(program)
    found = [next(place for place, row in enumerate(rows) if stages[0] in row) for stages in projections]
    return [str(stage_at(program, place)) for place in found] or ["0"]


def _table(program: Program, stages: list[Project]) -> str:
    """The exchanges of one projection in all layers; one that does nothing where a layer does not have it."""
    by_layer = {stage.layer: stage.exchange for stage in stages}
    made = []
    for layer in range(program.layers):
        exchange = by_layer.get(layer) or Exchange(late=None)
        needed = exchange.late == 0 or any(
            later is not None and later.late == number - layer
            for number, later in by_layer.items()
            if number is not None and number > layer
        )
        late = NEVER if exchange.late is None else exchange.late
        made.append(braces((literal(exchange.own), str(late), str(int(needed)))))
    return braces(made)


def _combined_type(
    program: Program, norm: Norm | None, combine: Combine | None, offsets: dict[str, int], buffers: dict[str, int]
) -> list[str]:
    """The type of the stage that combines streams: what prepare.cuh needs to compute the norm of a lane's stream."""
    fields = {
        "int kCols": program.hidden,
        "int kFragmentCols": 32,
        "int kNorm": offsets[norm.weight.name] if norm else -1,
        "int kOrder": -1,
        "int kSegments": 1,
        "float kEps": literal(norm.eps if norm else 0.0),
        "int kReads": buffers[combine.reads] if combine else 0,
    }
    return [
        "struct LaneStream {  // the residual stream of a lane, as the stage that combines streams reads it",
        "  using Format = Bf16;",
        *(f"  static constexpr {name} = {value};" for name, value in fields.items()),
        "};",
    ]
