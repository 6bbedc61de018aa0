"""Whether the owners of the residual stream attend, in lanes of small models.

The time of a small model is that of its hand-offs. Where a lane has one KV head, its workers are divided in two: the
owners have the rows of the residual stream, so o and down, and the others have qkv and gate_up. So every worker has a
stage's time to load its weights into registers before its input is there. And all owners attend, each of them to the
whole context, so that no hand-off lies between attention and o (csrc/attend_at_once.cuh).
"""

from __future__ import annotations

from monolane.program.layout import Layout
from monolane.program.plan import Plan
from monolane.program.stage import Merge, Output, Program
from monolane.target.cuda.constants import (
    AT_ONCE_QUERIES,
    AT_ONCE_REGISTERS,
    AT_ONCE_WARPS,
    CONSUMER_WARPS,
    PAGE_TOKENS,
)
from monolane.target.cuda.projections import is_plain, is_small

VALUE_DIMS, KEY_DIMS = 16, 32  # of a fragment of the cache; two queries have whole ones


def owners_for(program: Program, layout: Layout, workers: int) -> int:
    """How many owners there should be: the fewest that have one tile of o for each warp. 0 where the heads of a lane
    do not allow it; whether the layers fit registers is known of the plan alone (``layers_fit_registers``)."""
    shape = program.attention
    if program.lanes == 1 or shape.kv_heads != 1 or shape.heads > AT_ONCE_QUERIES:
        return 0
    if shape.head_dim % (VALUE_DIMS if shape.heads == 1 else KEY_DIMS):
        return 0
    behind = [stage for stage in program.projections if isinstance(stage.input, Merge)]
    if any(stage.input.sinks for stage in behind if isinstance(stage.input, Merge)):
        return 0
    owners = max(-(-layout.tiles(stage) // CONSUMER_WARPS) for stage in behind)
    return owners if owners < workers else 0


def layers_fit_registers(plan: Plan) -> bool:
    """Whether all matrices of a layer fit the registers of the workers that have them."""
    layers = [stage for stage in plan.program.projections if stage.output is not Output.LOGITS]
    return all(is_plain(plan, stage) if isinstance(stage.input, Merge) else is_small(plan, stage) for stage in layers)


def at_once_pages(plan: Plan) -> int:
    """The most pages of the cache that owners attend to at once: longer contexts are divided into splits."""
    head_dim = plan.program.attention.head_dim
    dims = -(-head_dim // KEY_DIMS) * KEY_DIMS + -(-head_dim // VALUE_DIMS) * VALUE_DIMS  # of a key and a value
    return AT_ONCE_WARPS * (AT_ONCE_REGISTERS * 4 * 32 // (PAGE_TOKENS * dims * 2))
