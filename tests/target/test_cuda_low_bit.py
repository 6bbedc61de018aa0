"""Low-bit weights in the CUDA kernel's own sources, in the emulation: compared with transformers, and with itself."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from emulated import EmulatedTarget
from numpy.typing import NDArray
from test_low_bit import MIXTURES, SHAPES, TOKENS, Stretched, model

from low_bit import LowBitWeights
from monolane.model.config import ModelConfig
from monolane.model.format import FORMATS
from monolane.model.weights import expected_shapes
from monolane.program.stage import continues
from monolane.target.cuda import generate, opening, projections
from monolane.target.cuda.cards import SMALL
from monolane.target.cuda.constants import FRAGMENT_BYTES
from monolane.target.cuda.formats import fragment_bytes
from monolane.target.cuda.opening import cuda_plan
from monolane.target.cuda.shared_memory import shared_memory
from oracle import Verdict, judge_weights, near_enough
from random_models import random_model
from thorough import seldom, thorough

DECODED = range(TOKENS - 8, TOKENS)  # positions that are also computed by decode passes, one by one


def config_of(name: str) -> ModelConfig:
    case = SHAPES[name]
    return random_model(replace(case, name=f"{case.name}-low-bit", layers=min(case.layers, 2)), TOKENS).config


def tokens_of(name: str) -> list[int]:
    case = SHAPES[name]
    return random_model(replace(case, name=f"{case.name}-low-bit", layers=min(case.layers, 2)), TOKENS).tokens


def open_mixture(name: str, workers: int = 4, **options: object) -> EmulatedTarget:
    return EmulatedTarget(config_of(name), model(name)[0], workers, **options)  # type: ignore[arg-type]


def check(target: EmulatedTarget, name: str) -> None:
    """Prefill passes, which multiply in bf16, and decode passes, which multiply integers."""
    tokens, verdict = tokens_of(name), model(name)[1]
    near_enough(verdict, target.logits(tokens))
    decoded = np.concatenate([target.logits(tokens[: at + 1], at) for at in DECODED])
    near_enough(Verdict(verdict.exact[DECODED], verdict.rounded[DECODED]), decoded)


# The CPU's tests have all mixtures in every run.
EVERY_RUN, IN_HALF_TILES = "qwen2-64", "qwen3-96-seven-kv-heads"


@pytest.mark.parametrize(
    "name", [EVERY_RUN, *(seldom(name) for name in MIXTURES if name not in (EVERY_RUN, IN_HALF_TILES))]
)
def test_logits_are_as_near_as_those_of_bf16(name: str) -> None:
    """Every format; q, k and v in different ones, and different ones in different layers; a tied head, and a table."""
    check(open_mixture(name), name)


@pytest.mark.parametrize("name", [EVERY_RUN, *(seldom(name) for name in MIXTURES if name != EVERY_RUN)])
def test_the_shared_memory_of_a_small_card(name: str) -> None:
    """Slots are smaller there, so tiles have more chunks, and others end with a short super-block."""
    check(open_mixture(name, shared_limit=SMALL), name)


def test_half_tiles_hold_low_bit_weights_of_the_residual_stream() -> None:
    plan = cuda_plan(config_of(IN_HALF_TILES), 4, formats=model(IN_HALF_TILES)[0].format)
    assert plan.layout.halves_residual
    check(open_mixture(IN_HALF_TILES), IN_HALF_TILES)


@thorough
@pytest.mark.parametrize("name", [name for name in MIXTURES if name != IN_HALF_TILES])
def test_half_tiles_of_all_formats(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_smaller", lambda _, whole, halved, __: halved)
    check(open_mixture(name), name)


def test_the_mixtures_have_stages_and_layers_of_several_formats() -> None:
    plans = [cuda_plan(config_of(name), 4, formats=model(name)[0].format) for name in MIXTURES]
    stages = [stage for plan in plans for stage in plan.program.projections]
    assert any(continues(stage) for stage in stages)
    down = [stage.matrix.format for stage in plans[1].program.projections if stage.name == "down"]
    assert len(set(down)) > 1


@thorough
def test_inputs_that_shared_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "shared_memory", lambda *given: replace(shared_memory(*given), prefill_cols=0))
    check(open_mixture("qwen2-64"), "qwen2-64")


@thorough
def test_splits_of_a_context_that_a_low_bit_projection_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SPLIT_PAGES", 1)
    check(open_mixture("qwen2-96", workers=6), "qwen2-96")


def some_logits(target: EmulatedTarget, name: str) -> NDArray[np.float32]:
    """Of decode passes after a prefill pass."""
    tokens = tokens_of(name)[:20]
    return np.concatenate([target.logits(tokens[:18]), target.logits(tokens[:19], 18), target.logits(tokens, 19)])


@thorough
def test_workers_and_delays_change_no_bit() -> None:
    """With 40 workers some have no tile of q and k, and others none of v."""
    name = "qwen2-64"
    found = [
        some_logits(open_mixture(name, workers, delay_permille=delay), name)
        for workers, delay in ((2, 0), (5, 30), (40, 0))
    ]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@thorough
def test_the_largest_scales_of_fp8_change_no_bit() -> None:
    name = "llama-96-biases"
    weights = model(name)[0]
    stretched = Stretched(weights.inner, weights.names, weights.formats)
    found = some_logits(EmulatedTarget(config_of(name), stretched, 4), name)
    np.testing.assert_array_equal(found, some_logits(open_mixture(name), name))


def test_lanes_share_low_bit_matrices() -> None:
    target = open_mixture("qwen2-96", workers=4, lanes=2)
    verdict = model("qwen2-96")[1]
    near_enough(verdict, target.logits(tokens_of("qwen2-96")))


@pytest.mark.parametrize("slot_fragments", [4, seldom(8)])
def test_threads_that_share_a_sum_change_no_bit(slot_fragments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 12 workers a row of down has four threads, or two where a tile is one chunk; with one worker it has one."""
    case = replace(SHAPES["qwen2-64"], name="shared-sums", hidden=96, heads=2, kv_heads=1, layers=1, ffn=4096)
    made = random_model(case, TOKENS)
    matrices = [name for name, shape in expected_shapes(made.config) if len(shape) == 2]
    weights = LowBitWeights(made.weights, matrices, [FORMATS["i6k16"]])
    monkeypatch.setattr(opening, "_smaller", lambda _, whole, halved, __: halved)
    slot = -(-slot_fragments * fragment_bytes(FORMATS["i6k16"]) // FRAGMENT_BYTES) * FRAGMENT_BYTES
    monkeypatch.setattr(projections, "_low_bit_slot_bytes", lambda _: slot)
    found = []
    for workers, tiles in ((1, 24), (12, 2)):
        text = "\n".join(projections.projection_types(cuda_plan(made.config, workers, formats=weights.format)))
        down = text[text.index("// down") :]
        assert f"int kChunks = {8 // slot_fragments};" in down
        assert f"int kMaxTiles = {tiles};" in down
        target = EmulatedTarget(made.config, weights, workers)
        found.append(np.concatenate([target.logits(made.tokens[: at + 1], at) for at in range(4)]))
    np.testing.assert_array_equal(found[0], found[1])
    exact = judge_weights(made.config, weights, made.tokens)
    near_enough(Verdict(exact.exact[:4], exact.rounded[:4]), found[0])


@pytest.mark.parametrize("format", ["i8g32", seldom("fp4e32"), seldom("nl4g32"), seldom("i8g32z")])
@pytest.mark.parametrize("slot_fragments", [4, seldom(8)])
def test_columns_that_end_within_a_super_block(
    format: str, slot_fragments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of five super-blocks and six groups, and of five and two: tiles of one chunk or two, the
    second of which does not begin where a line of memory does; a tied head, whose tiles the embedding is read from."""
    case = replace(SHAPES["qwen2-64"], name="short", hidden=1472, heads=23, kv_heads=1, layers=1, ffn=1300, tied=True)
    made = random_model(case, TOKENS)
    matrices = [name for name, shape in expected_shapes(made.config) if len(shape) == 2]
    weights = LowBitWeights(made.weights, matrices, [FORMATS[format]])
    monkeypatch.setattr(opening, "_smaller", lambda _, whole, halved, __: whole)
    slot = -(-slot_fragments * fragment_bytes(FORMATS[format]) // FRAGMENT_BYTES) * FRAGMENT_BYTES
    monkeypatch.setattr(projections, "_low_bit_slot_bytes", lambda _: slot)
    text = "\n".join(projections.projection_types(cuda_plan(made.config, 3, formats=weights.format)))
    assert [int(found) for found in re.findall(r"kShortGroups = (\d+)", text)] == [6, 6, 6, 2, 6]
    assert [int(found) for found in re.findall(r"kChunks = (\d+)", text)] == 5 * [2 if slot_fragments == 4 else 1]
    target = EmulatedTarget(made.config, weights, 3)
    verdict = judge_weights(made.config, weights, made.tokens)
    near_enough(verdict, target.logits(made.tokens))
    decoded = np.concatenate([target.logits(made.tokens[: at + 1], at) for at in DECODED])
    near_enough(Verdict(verdict.exact[DECODED], verdict.rounded[DECODED]), decoded)
