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

from monolane.bench.measure.mixtures import FP8, Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import MadeUpWeights
from monolane.model.config import ModelConfig, Rope
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
MODELS = {
    "tiny": TINY,
    "window, biases, a table of embeddings": replace(
        TINY, windows=(19, None), qkv_bias=True, o_bias=True, mlp_bias=True, tied=False
    ),
    "norms of heads, heads of 80": replace(TINY, head_dim=80, qk_norm=True, layers=1, windows=(None,)),
    # The input of `down` does not fit into shared memory in a prefill pass; several batches of tiles per thread block.
    "wide": replace(TINY, ffn=9000, layers=1, windows=(None,)),
    # Columns that are no multiple of 256: the last unit of a row is padded.
    Q4_K_M: replace(TINY, hidden=288, ffn=544),
    FP8: replace(TINY, hidden=288, ffn=544),
}
DRAWN = Sampling(0.8, 40, 0.9, 0.01, 3, 1.1, 0.5, 0.2, ((5, 1.0), (90, -100.0)))


def main() -> None:
    chosen = sys.argv[1:] or list(MODELS)
    if unknown := set(chosen) - MODELS.keys():
        sys.exit(f"There is no model {', '.join(map(repr, unknown))}. Choose of: {', '.join(map(repr, MODELS))}.")
    for name in chosen:
        config = MODELS[name]
        began = time.monotonic()
        tokens = np.random.default_rng(1).integers(0, config.vocab, 90).tolist()
        weights = MadeUpMixture(config, name) if name in (Q4_K_M, FP8) else MadeUpWeights(config)
        with opened(config, weights, 128, deadline_s=DEADLINE_S) as target:
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
