"""Plans satisfy the invariants for any model and any number of workers, and the checker names a violated one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.model.config import Experts, ModelConfig, Rope
from monolane.model.format import FORMATS, Format
from monolane.program.build import build_program
from monolane.program.check import BrokenPlanError, check, problems
from monolane.program.layout import Layout
from monolane.program.plan import Plan, make_plan
from monolane.program.stage import Arrangement, Attend, Matrix, Output, Plain, Project

LAYOUT = Layout("test", tile_rows=8, k_block=32)
HALVED = replace(LAYOUT, halves_residual=True)


def config(**changes: object) -> ModelConfig:
    base = ModelConfig(
        family="llama",
        hidden=72,
        layers=2,
        heads=6,
        kv_heads=2,
        head_dim=20,
        ffn=100,
        vocab=131,
        context=512,
        norm_eps=1e-5,
        rope=Rope(10000.0),
        windows=(None, 64),
        tied=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def plan(workers: int = 3, layout: Layout = LAYOUT, **changes: object) -> Plan:
    return make_plan(build_program(config(**changes)), layout, workers)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from((LAYOUT, HALVED)),
    st.integers(1, 300),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 40).map(lambda half: 2 * half),
    st.integers(1, 700),
    st.integers(1, 900),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_plan_keeps_the_invariants(
    workers: int,
    layout: Layout,
    hidden: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    tied: bool,
    biased: bool,
    qk_norm: bool,
) -> None:
    shape = {"hidden": hidden, "kv_heads": kv_heads, "heads": kv_heads * group, "head_dim": head_dim, "ffn": ffn}
    biases = {"qkv_bias": biased, "o_bias": biased, "mlp_bias": biased}
    check(plan(workers, layout, vocab=vocab, tied=tied, qk_norm=qk_norm, **shape, **biases))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.sampled_from((LAYOUT, HALVED)), st.integers(1, 9), st.data())
def test_every_plan_with_experts_keeps_the_invariants(
    workers: int, layout: Layout, count: int, data: st.DataObject
) -> None:
    experts = Experts(
        count,
        data.draw(st.integers(1, count)),
        data.draw(st.integers(1, 90)),
        (data.draw(st.booleans()), True),
        normalised=data.draw(st.booleans()),
        shared_ffn=data.draw(st.integers(0, 70)),
        biased=data.draw(st.booleans()),
    )
    made = plan(workers, layout, experts=experts, sinks=data.draw(st.booleans()))
    check(made)
    for tape in made.segments:  # a worker has as many tiles of one expert as of any other
        for segment, stage in zip(tape, made.program.projections, strict=True):
            assert segment.size == stage.matrix.experts * segment.tiles * layout.tile_bytes(stage)


def test_a_worker_without_work_still_passes_every_stage() -> None:
    crowded = plan(workers=64)
    assert all(len(tape) == len(crowded.program.projections) for tape in crowded.segments)
    assert min(crowded.tape_bytes) < max(crowded.tape_bytes)


def test_half_tiles_even_out_who_owns_the_residual_stream() -> None:
    """72 rows are 9 tiles or 18 halves: of five workers, four own two tiles, or three own four halves."""
    whole, halved = plan(5), plan(5, HALVED)
    for index, stage in enumerate(whole.program.projections):
        rows = [[tape[index].tiles * p.layout.rows(stage) for tape in p.segments] for p in (whole, halved)]
        if stage.output is Output.RESIDUAL:
            assert rows == [[16, 16, 16, 16, 8], [16, 16, 16, 12, 12]]
        else:
            assert halved.layout.rows(stage) == LAYOUT.tile_rows


def test_five_stages_a_layer_and_six_with_experts() -> None:
    names = [stage.name for stage in build_program(config()).stages]
    layer = ["qkv", "attend", "o", "gate_up", "down"]
    assert names == ["embed", *layer, *layer, "head", "sample"]
    experts = Experts(5, 2, 30, (False, True), normalised=True, shared_ffn=20)
    program = build_program(config(experts=experts))
    sparse = ["qkv", "attend", "o", "router", "gate_up", "shared_gate_up", "down", "shared_down"]
    assert [stage.name for stage in program.stages] == ["embed", *layer, *sparse, "head", "sample"]
    assert program.handoffs == 1 + 5 + 6 + 1


def broken(change: str) -> Plan:
    """A good plan with one thing wrong."""
    good = plan()
    tape = list(good.segments[1])
    stages = list(good.program.stages)
    qkv, attend = stages[1], stages[2]
    assert isinstance(qkv, Project)
    assert isinstance(attend, Attend)
    if change == "row twice":
        tape[0] = replace(tape[0], first_tile=tape[0].first_tile - 1, tiles=tape[0].tiles + 1)
    elif change == "row missing":
        tape[-1] = replace(tape[-1], tiles=0, size=0)
    elif change == "last row missing":
        last = good.segments[2][-1]
        short = replace(last, tiles=last.tiles - 1)
        return replace(good, segments=(*good.segments[:2], (*good.segments[2][:-1], short)))
    elif change == "gap":
        tape[2] = replace(tape[2], offset=tape[2].offset + 64)
    elif change == "other order":
        tape[0], tape[1] = tape[1], tape[0]
    elif change == "unbalanced":
        wide = make_plan(good.program, LAYOUT, 2)
        first = tuple(replace(s, first_tile=0, tiles=0, offset=0, size=0) for s in wide.segments[0])
        return replace(wide, segments=(first, make_plan(good.program, LAYOUT, 1).segments[0]))
    elif change == "buffer reuse":
        fields = ("reads", "writes", "residual")
        one = [{name: "stream_a" for name in fields if getattr(s, name, "") == "stream_b"} for s in stages]
        stages = [replace(stage, **changes) for stage, changes in zip(stages, one, strict=True)]
    elif change == "wrong size":
        stages[1] = replace(qkv, matrix=replace(qkv.matrix, cols=71))
    elif change == "no buffer":
        stages[2] = replace(attend, reads="nowhere")
    elif change in ("other experts", "logits elsewhere"):
        experts = Experts(5, 2, 30, (True, True), normalised=True)
        good = plan(experts=experts)
        stages, tape = list(good.program.stages), list(good.segments[1])
        gate_up = stages[5]
        assert isinstance(gate_up, Project)
        assert gate_up.routing is not None
        first, count = (0, 4) if change == "other experts" else (1, 5)
        stages[5] = replace(gate_up, routing=replace(gate_up.routing, first=first, count=count))
    elif change == "weight twice":
        stages[6] = replace(stages[6], matrix=qkv.matrix)  # type: ignore[call-arg]
    return replace(
        good,
        program=replace(good.program, stages=tuple(stages)),
        segments=(good.segments[0], tuple(tape), good.segments[2]),
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("row twice", "worker 1 begins at tile"),
        ("row missing", "worker 2 begins at tile"),
        ("last row missing", "tiles are on the tapes"),
        ("gap", "gap or a wrong size"),
        ("other order", "not the program's, in order"),
        ("unbalanced", "tapes differ by"),
        ("buffer reuse", "rewritten 1 hand-off"),
        ("wrong size", "works on 71 elements"),
        ("no buffer", "no buffer 'nowhere'"),
        ("weight twice", "is used 2 times"),
        ("other experts", "another number of experts"),
        ("logits elsewhere", "not in 'routed'"),
    ],
)
def test_the_checker_names_what_breaks(change: str, named: str) -> None:
    assert any(named in problem for problem in problems(broken(change)))
    with pytest.raises(BrokenPlanError, match=r"tile|tape|program|hand-off|works|buffer|used|routing"):
        check(broken(change))


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 100),
    st.sampled_from([(8, 32, False), (16, 64, False), (1, 8, False), (8, 32, True)]),
    st.sampled_from([Output.STORE, Output.RESIDUAL]),
)
def test_packing_can_be_undone(rows: int, cols: int, tile: tuple[int, int, bool], output: Output) -> None:
    layout = Layout("test", *tile)
    stage = Project("m", None, Matrix("m", (("m", rows),), cols), Plain(), output, reads="x", writes="y")
    bits = np.random.default_rng(rows * cols).integers(0, 2**16, (rows, cols), np.uint16)
    tape = layout.pack(bits, stage)
    assert tape.nbytes == layout.tiles(stage) * layout.tile_bytes(stage)
    unpacked = layout.unpack(tape, stage)
    np.testing.assert_array_equal(unpacked[:rows], bits)
    assert not unpacked[rows:].any()


def test_half_a_tile_keeps_two_blocks_where_a_whole_one_keeps_one() -> None:
    """What a warp reads at once, 256 numbers, is eight rows of one block, or four rows of one and of the next."""
    stage = Project("m", None, Matrix("m", (("m", 4),), 70), Plain(), Output.RESIDUAL, reads="x", writes="y")
    bits = np.arange(4 * 70, dtype=np.uint16).reshape(4, 70)
    units = HALVED.pack(bits, stage).view(np.uint16).reshape(-1, 8, 32)
    np.testing.assert_array_equal(units[0], np.concatenate([bits[:, :32], bits[:, 32:64]]))
    np.testing.assert_array_equal(units[1, :4, :6], bits[:, 64:])
    assert len(units) == 2
    assert not units[1, :4, 6:].any()
    assert not units[1, 4:].any()


def test_a_worker_has_tiles_of_one_matrix_of_a_stage_where_another_would_take_it_longer() -> None:
    """Stages of q, k and v have two matrices here, because v has a format of its own."""

    def formats(name: str) -> Format:
        return FORMATS["i6k16" if name.endswith(".v") else "u4k32"]

    program = build_program(config(kv_heads=3, head_dim=64), formats=formats)
    several = [indices for indices in program.projections_by_stage if len(indices) > 1]
    assert len(several) == 2

    def most_matrices(matrix_overhead: int) -> int:
        made = make_plan(program, LAYOUT, 12, matrix_overhead=matrix_overhead)
        check(made)
        return max(sum(tape[index].tiles > 0 for index in indices) for tape in made.segments for indices in several)

    assert most_matrices(matrix_overhead=1 << 20) == 1
    assert most_matrices(matrix_overhead=0) == 2


def test_workers_that_attend_own_no_rows_of_the_residual_stream_where_others_own_no_more_for_it() -> None:
    program = build_program(config(hidden=120, heads=3, head_dim=40))  # 15 tiles

    def owned(workers: int, attending: int) -> list[int]:
        made = make_plan(program, LAYOUT, workers, attending=attending)
        check(made)
        return [tape[1].tiles for tape in made.segments]

    assert owned(workers=9, attending=1) == [0, 2, 2, 2, 2, 2, 2, 2, 1]
    assert owned(workers=9, attending=0) == [2, 2, 2, 2, 2, 2, 1, 1, 1]
    assert owned(workers=24, attending=8) == [1] * 15 + [0] * 9  # more are left over than attend
    assert owned(workers=5, attending=5) == [3] * 5


def test_owners_of_the_residual_stream_have_no_part_of_two_stages_in_a_row() -> None:
    program = build_program(config())
    made = make_plan(program, LAYOUT, 7, stream_owners=3)
    check(made)
    for number, stage in enumerate(program.projections):
        having = [tape[number].tiles > 0 for tape in made.segments]
        if stage.output is Output.RESIDUAL:
            assert having == [True] * 3 + [False] * 4
        elif stage.output is not Output.LOGITS:
            assert having == [False] * 3 + [True] * 4
    with pytest.raises(ValueError, match="owns nothing"):
        make_plan(program, LAYOUT, 7, stream_owners=7)


@settings(deadline=None)
@given(st.integers(1, 20), st.data())
def test_rows_of_a_matrix_are_found_in_its_parts(size: int, data: st.DataObject) -> None:
    parts = (("a", size), ("b", size))
    for arrangement in Arrangement:
        matrix = Matrix("m", parts, 4, arrangement)
        start = data.draw(st.integers(0, matrix.rows - 1))
        stop = data.draw(st.integers(start + 1, matrix.rows))
        stacked = [(name, row) for name, rows in parts for row in range(rows)]
        interleaved = [(name, row) for row in range(size) for name in "ab"]
        expected = (stacked if arrangement is Arrangement.STACK else interleaved)[start:stop]
        found: list[object] = [None] * (stop - start)
        for name, first, last, where in matrix.part_rows(start, stop):
            found[where] = [(name, row) for row in range(first, last)]
        assert found == expected
