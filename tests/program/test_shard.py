"""A model divided among lanes: every head, row and token is somewhere, and the parts add up to the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.model.config import ModelConfig
from monolane.model.weights import from_bf16
from monolane.program.build import build_program
from monolane.program.check import problems
from monolane.program.plan import make_plan
from monolane.program.shard import LaneWeights, Shard
from monolane.program.stage import Exchange, Project
from monolane.target.generate import LAYOUT

models = st.builds(
    lambda kv_heads, group, ffn, vocab, tied: replace(
        SHAPES["llama-3.2-1b"], hidden=24, layers=2, heads=kv_heads * group, kv_heads=kv_heads, head_dim=4, ffn=ffn,
        vocab=vocab, windows=(None, None), qkv_bias=True, o_bias=True, mlp_bias=True, tied=tied,
    ),
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 40), st.integers(20, 90), st.booleans(),
)  # fmt: skip


def lanes_of(config: ModelConfig, count: int) -> list[LaneWeights]:
    weights, shard = MadeUpWeights(config), Shard(config, count)
    return [LaneWeights(weights, shard, lane) for lane in range(count)]


def matrix(weights: LaneWeights | MadeUpWeights, name: str, rows: int) -> NDArray[np.float32]:
    return from_bf16(weights.rows(name, 0, rows))


@settings(max_examples=60, deadline=None)
@given(models, st.integers(2, 9))
def test_every_query_head_is_on_one_lane_beside_its_kv_head(config: ModelConfig, count: int) -> None:
    shard = Shard(config, count)
    heads = [head for lane in range(count) for head in shard.heads_of(lane)]
    assert sorted(head for head in heads if head is not None) == list(range(config.heads))
    for lane in range(count):
        mine, kv_heads = shard.heads_of(lane), shard.kv_heads_of(lane)
        assert (len(mine), len(kv_heads)) == (shard.heads, shard.kv_heads)
        for place, head in enumerate(mine):
            if head is not None:
                assert kv_heads[place // shard.group] == head // (config.heads // config.kv_heads)


@settings(max_examples=12, deadline=None)
@given(models, st.integers(2, 9))
def test_the_parts_add_up(config: ModelConfig, count: int) -> None:
    whole, shard = MadeUpWeights(config), Shard(config, count)
    lanes = lanes_of(config, count)
    x = np.random.default_rng(0).standard_normal(config.hidden).astype(np.float32)
    # The FFN without its gate, with biases: rows of up, then columns of down.
    made = np.zeros(config.hidden, np.float32)
    for lane in lanes:
        up = matrix(lane, "layers.1.up", shard.ffn) @ x + lane.vector("layers.1.up.bias")
        made += matrix(lane, "layers.1.down", config.hidden) @ up + lane.vector("layers.1.down.bias")
    up = matrix(whole, "layers.1.up", config.ffn) @ x + whole.vector("layers.1.up.bias")
    down = matrix(whole, "layers.1.down", config.hidden) @ up + whole.vector("layers.1.down.bias")
    np.testing.assert_allclose(made, down, atol=1e-4)
    # The queries, as if attention gave them back.
    made = np.zeros(config.hidden, np.float32)
    for lane in lanes:
        q = matrix(lane, "layers.0.q", shard.heads * config.head_dim) @ x + lane.vector("layers.0.q.bias")
        made += matrix(lane, "layers.0.o", config.hidden) @ q
    q = matrix(whole, "layers.0.q", config.q_size) @ x + whole.vector("layers.0.q.bias")
    np.testing.assert_allclose(made, matrix(whole, "layers.0.o", config.hidden) @ q, atol=1e-4)
    head = np.concatenate([matrix(lane, "head", shard.vocab) for lane in lanes])
    name = "embed" if config.tied else "head"
    np.testing.assert_array_equal(head[: config.vocab], matrix(whole, name, config.vocab))
    assert not head[config.vocab :].any()


@settings(max_examples=40, deadline=None)
@given(models, st.integers(1, 9), st.integers(1, 5))
def test_every_plan_of_a_lane_keeps_the_invariants(config: ModelConfig, lanes: int, workers: int) -> None:
    assert list(problems(make_plan(build_program(config, lanes=lanes), LAYOUT, workers))) == []


def test_what_is_padded_or_copied_is_told() -> None:
    assert Shard(SHAPES["llama-3.1-8b"], 8).notes() == []
    assert Shard(SHAPES["qwen2.5-coder-1.5b"], 8).notes() == [
        "each of the 2 KV heads is on 4 lanes",
        "12 query heads are padded to 16",
    ]
    assert Shard(SHAPES["smollm2-135m"], 2).notes() == [
        "3 KV heads are padded to 4",
        "9 query heads are padded to 12",
    ]


@pytest.mark.parametrize(
    ("lanes", "changed", "told"),
    [(2, None, "an exchange belongs to"), (1, Exchange(), "an exchange belongs to"), (2, Exchange(late=3), "no such")],
)
def test_an_exchange_that_cannot_be_is_found(lanes: int, changed: Exchange | None, told: str) -> None:
    config = replace(SHAPES["smollm2-135m"], layers=2, windows=(None, None))
    program = build_program(config, lanes=lanes)
    stages = tuple(
        replace(stage, exchange=changed) if isinstance(stage, Project) and stage.name == "down" else stage
        for stage in program.stages
    )
    found = list(problems(make_plan(replace(program, stages=stages), LAYOUT, 2)))
    assert any(told in problem for problem in found)
