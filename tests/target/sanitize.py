"""A few small requests for NVIDIA's compute-sanitizer, which checks every memory access. From the repository:

    export PYTHONPATH=src:tests
    compute-sanitizer --tool memcheck  --error-exitcode 3 python tests/target/sanitize.py
    compute-sanitizer --tool synccheck --error-exitcode 3 python tests/target/sanitize.py
    compute-sanitizer --tool racecheck --print-limit 100000 python tests/target/sanitize.py

memcheck: accesses outside of memory, or misaligned. synccheck: barriers that not all threads reach. racecheck: two
threads of a thread block that access the same word of shared memory without synchronisation; it also reports accesses
that it cannot follow (benchmarks/h200/README.md), so its reports have to be read. The tagged words in global memory are
races on purpose; none of the three tools checks those.

Each tool slows the kernel down many times over, so waits get a long deadline; names of models after the command choose
some of them. The models need neither torch nor files.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
from devices import opened, run

from monolane.bench.measure.mixtures import FP8, MXFP4, Q4_K_M, made_up
from monolane.model.config import Experts, Gate, LaneConfig, ModelConfig, Rope
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request

DEADLINE_S = 300.0
TINY = ModelConfig(
    family="llama",
    hidden=72,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    ffn=100,
    vocab=333,
    context=256,
    norm_eps=1e-5,
    rope=Rope(1e4),
    windows=(None, None),
    tied=True,
)
# Columns that are no multiple of 256: the last unit of a row is padded.
LOW_BIT = replace(TINY, hidden=288, ffn=544)
EXPERTS = Experts(count=7, chosen=4, ffn=72, layers=(True, False), normalised=True)
GPT_OSS = Experts(5, 4, 160, (True, True), normalised=True, biased=True, gate=Gate(slope=1.702, shift=1.0, limit=7.0))
MODELS = {
    "tiny": TINY,
    "window, biases, a table of embeddings": replace(
        TINY, windows=(19, None), qkv_bias=True, o_bias=True, mlp_bias=True, tied=False
    ),
    "norms of heads, heads of 80": replace(TINY, head_dim=80, qk_norm=True, layers=1, windows=(None,)),
    # The input of `down` does not fit into shared memory in a prefill pass; several batches of tiles per thread block.
    "wide": replace(TINY, ffn=9000, layers=1, windows=(None,)),
    "experts": replace(TINY, family="qwen3_moe", qk_norm=True, tied=False, experts=EXPERTS),
    "a shared expert": replace(
        TINY, family="qwen2_moe", qkv_bias=True, tied=False, experts=replace(EXPERTS, normalised=False, shared_ffn=100)
    ),
    "gpt-oss": replace(
        LOW_BIT,
        family="gpt_oss",
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        windows=(19, None),
        tied=False,
        experts=GPT_OSS,
    ),
    "experts in q4_k_m": replace(
        LOW_BIT, family="qwen3_moe", qk_norm=True, tied=False, experts=replace(EXPERTS, ffn=288)
    ),
    # The owners of the residual stream attend.
    "a head for each lane": replace(
        TINY, family="laneformer_tp", heads=4, kv_heads=4, head_dim=64, tied=False, lanes=LaneConfig(count=4, delay=1)
    ),
    Q4_K_M: LOW_BIT,
    FP8: LOW_BIT,
}
MIXTURES = {"gpt-oss": MXFP4, "experts in q4_k_m": Q4_K_M, Q4_K_M: Q4_K_M, FP8: FP8}  # all others are in bf16
DRAWN = Sampling(0.8, 40, 0.9, 0.01, 3, 1.1, 0.5, 0.2, ((5, 1.0), (90, -100.0)))


def main() -> None:
    chosen = sys.argv[1:] or list(MODELS)
    if unknown := set(chosen) - MODELS.keys():
        sys.exit(f"There is no model {', '.join(map(repr, unknown))}. Choose of: {', '.join(map(repr, MODELS))}.")
    for name in chosen:
        config = MODELS[name]
        began = time.monotonic()
        tokens = np.random.default_rng(1).integers(0, config.vocab, 90).tolist()
        lanes = config.lanes.count if config.lanes else 1
        weights = made_up(config, MIXTURES.get(name))
        with opened(config, weights, 128, deadline_s=DEADLINE_S, lanes=lanes) as target:
            assert np.isfinite(target.logits(tokens[:34])).all()
            for sampling, logprobs in ((Sampling(), None), (Sampling(), 3), (DRAWN, None), (DRAWN, 20)):
                for length, cached in ((1, 0), (20, 0), (22, 20), (23, 22)):
                    request = Request(tokens[:length], cached, 3, frozenset({1}), sampling, logprobs)
                    assert run(target, request)[1] in (Finish.LENGTH, Finish.STOP)
            # Beyond one split of the context.
            assert run(target, Request(tokens, 0, 2, frozenset(), Sampling()))[1] is Finish.LENGTH
        print(f"{name}: 18 requests, {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
