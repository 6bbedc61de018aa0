"""The CUDA kernel's own sources, in the emulation, with random models: sizes that divide by nothing, every matrix in a
random format, any number of workers. What nobody thought of when writing a case by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from emulated import EmulatedTarget

from low_bit import LowBitWeights
from monolane.bench.measure import accuracy, reference
from monolane.model.format import FORMATS
from monolane.model.weights import expected_shapes
from random_models import MIXTURES, Case, RandomModel, random_model
from thorough import thorough

TOKENS = 24
DECODED = range(TOKENS - 4, TOKENS)  # positions that are also computed by decode passes, one by one
EXPERTS = {case.family: case for case in MIXTURES if case.family in ("Qwen3Moe", "GptOss", "Mixtral")}


def dense(random: Random, name: str) -> Case:
    heads, kv_heads = random.choice((2, 4, 6)), random.choice((1, 2))
    hidden = random.choice((32 * random.randint(2, 60), 4 * random.randint(20, 500)))
    ffn = random.choice((32 * random.randint(2, 60), random.randint(60, 1900)))
    sizes = random.choice((32, 64, 128)), random.choice((1, 2)), random.randint(100, 900), ffn
    return Case(name, "Qwen3", hidden, heads, kv_heads, *sizes, random.random() < 0.3)


def experts(random: Random, name: str) -> Case:
    family = random.choice(sorted(EXPERTS))
    ffn, count = random.choice((32 * random.randint(9, 30), random.randint(257, 900))), random.randint(3, 14)
    extra = dict(EXPERTS[family].extra)
    for key in ("num_experts", "num_local_experts"):
        extra |= {key: count} if key in extra else {}
    extra |= {"num_experts_per_tok": random.choice([chosen for chosen in (1, 2, 3, 4, 6, 8) if chosen <= count])}
    extra |= {"moe_intermediate_size": ffn, "mlp_only_layers": []} if family == "Qwen3Moe" else {}
    return replace(dense(random, name), family=family, layers=1, ffn=ffn, extra=extra | {"layer_types": None})


def low_bit(random: Random, model: RandomModel) -> LowBitWeights:
    """All matrices but routers, or those of experts alone, in one format or each in one of its own."""
    names = [name for name, shape in expected_shapes(model.config) if len(shape) == 2 and not name.endswith("router")]
    if model.config.experts and random.random() < 0.5:
        names = [name for name in names if ".experts." in name]
    chosen = random.sample(sorted(FORMATS), k=random.choice((1, len(FORMATS))))
    return LowBitWeights(model.weights, names, [FORMATS[name] for name in chosen])


@thorough
@pytest.mark.parametrize("kind", [dense, experts])
@pytest.mark.parametrize("seed", range(12))
def test_logits_are_as_near_to_fp32_as_those_of_bf16(seed: int, kind: Callable[[Random, str], Case]) -> None:
    random = Random(f"{kind.__name__} {seed}")
    model = random_model(kind(random, f"random-{kind.__name__}-{seed}"), TOKENS)
    weights = low_bit(random, model)
    target = EmulatedTarget(model.config, weights, random.choice((1, 2, 3, 5, 12)))
    truth = reference.read(model.config, weights, model.tokens)
    prefilled = target.logits(model.tokens)
    decoded = np.concatenate([target.logits(model.tokens[: at + 1], at) for at in DECODED])
    for positions, found in (range(TOKENS), prefilled), (DECODED, decoded):
        readings = reference.Readings(truth.exact[positions], truth.rounded[positions])
        # The median, as in the benchmark: where two experts are nearly equal, another choice is a large difference. Of
        # four positions it varies more than the accuracy gate's tenth.
        verdict = accuracy.compare(readings, found, found.argmax(1).tolist(), np.median)
        assert verdict.divergence <= 1.5 * verdict.divergence_of_bf16 + accuracy.NOISE, verdict
