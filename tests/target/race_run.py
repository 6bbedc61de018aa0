"""Runs a small model in the emulated kernel, from the library that the command line names: with one lane and all
optional features, a Laneformer with two lanes, or experts and low-bit weights.

A program of its own, because ThreadSanitizer must be in a process from its start; see test_cuda_races.py.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

from emulated import EmulatedTarget

from monolane.bench.measure.mixtures import Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import MadeUpWeights
from monolane.model.config import Experts, LaneConfig, ModelConfig, Rope
from monolane.program.plan import Plan
from monolane.program.sample import Sampling
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cuda.opening import cuda_plan

WORKERS = 2
MODEL = ModelConfig(
    family="llama",
    hidden=60,
    layers=2,
    heads=6,
    kv_heads=3,  # more than blocks, and no multiple: splits of one head are in several blocks
    head_dim=20,
    ffn=100,
    vocab=97,
    context=256,
    norm_eps=1e-5,
    rope=Rope(1e4),
    windows=(19, None),
    qkv_bias=True,
    qk_norm=True,
    tied=False,
)
LANEFORMER = replace(
    MODEL, family="laneformer_tp", layers=3, heads=4, kv_heads=2, windows=(None, 19, None), qkv_bias=False,
    qk_norm=False, lanes=LaneConfig(2, delay=1),
)  # fmt: skip
EXPERTS = replace(MODEL, family="qwen3_moe", layers=2, experts=Experts(6, 2, 70, (True, True), True))
MODELS = {
    "one lane": (MODEL, 1),
    "two lanes": (LANEFORMER, 2),
    "two lanes whose owners attend": (replace(LANEFORMER, head_dim=32), 2),
    "experts": (EXPERTS, 1),
}
# Tokens of the longer prompt: several splits of the context need no lanes.
PROMPTS = {"one lane": 70, "two lanes": 20, "two lanes whose owners attend": 20, "experts": 20}
# Prefill and decode passes, one and several splits of the context, and every way to choose a token.
DRAWN = Sampling(temperature=0.8, top_k=40, top_p=0.9, frequency_penalty=0.3, logit_bias=((5, 2.0), (90, -3.0)))


LOST = "monolane_lost"  # a variable of a library whose synchronisation can be lost: what is lost, by number


def plan_of(name: str) -> Plan:
    config, lanes = MODELS[name]
    return cuda_plan(config, WORKERS * lanes, lanes, weights_of(name).format)


def weights_of(name: str) -> MadeUpWeights:
    config, _ = MODELS[name]
    return MadeUpMixture(config, Q4_K_M) if config.experts else MadeUpWeights(config)


def main(name: str, library: Path, lost: int | None = None) -> None:
    if lost is not None:
        ctypes.c_int.in_dll(ctypes.CDLL(str(library)), LOST).value = lost
    config, lanes = MODELS[name]
    target = EmulatedTarget(config, weights_of(name), WORKERS * lanes, delay_permille=5, library=library, lanes=lanes)
    shorter = Request(range(12), 0, 3, frozenset(), Sampling())
    for request in (shorter, Request(range(PROMPTS[name]), 0, 2, frozenset(), DRAWN, 2)):
        tokens, outcome = target.run(request)
        assert outcome.status == structs.Status.LENGTH_REACHED
        assert len(tokens) == request.max_tokens


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
