"""An engine process with a real target and made-up weights: the command that tests give to AsyncEngine.

    python made_up_engine.py '{"device": "cpu", "stalls_once": "/some/file"}' PIPE RING

``stalls_once``: until that file is there, a worker stalls in every pass; it is made at the first start. CPU only.
``lanes_apart``: lanes in processes of their own. CPU only.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fake_model import fake_model
from monolane.bench.measure.shapes import MadeUpWeights, named
from monolane.engine.core import Loaded, serve
from monolane.engine.grammar import grammar_maker
from monolane.model.config import ModelConfig
from monolane.target import open_target
from monolane.target.base import Target

if TYPE_CHECKING:
    from monolane.progress import Progress

CONTEXT = 4096
SMALL = replace(
    named("smollm2-135m"), hidden=64, layers=2, heads=2, kv_heads=1, ffn=128, windows=(None,) * 2, vocab=258
)
CONFIGS = {"cpu": SMALL, "cuda": named("smollm2-135m")}
WORKERS = 2  # on the CPU


def load(progress: Progress, device: str, stalls_once: str | None = None, lanes_apart: int = 1) -> Loaded:
    config = CONFIGS[device]
    weights = MadeUpWeights(config)
    workers = WORKERS if device == "cpu" else None
    target = open_target(
        config,
        weights,
        device=device,
        workers=workers,
        lanes=lanes_apart,
        placement="apart",
        context=CONTEXT,
        progress=progress,
    )
    if stalls_once and not Path(stalls_once).exists():
        Path(stalls_once).touch()
        target = stalling(target, config)
    model = fake_model()
    return target, grammar_maker(model.tokenizer, model.stop_tokens, model.config.vocab)


def stalling(target: Target, config: ModelConfig) -> Target:
    """The same on a kernel whose second worker sleeps at a stage of every pass."""
    from monolane.target.cpu.compiler import build, find_compiler
    from monolane.target.cpu.generate import generate
    from monolane.target.cpu.machine import vector_level
    from monolane.target.cpu.native import Library, Place
    from monolane.target.cpu.runtime import CpuTarget

    assert isinstance(target, CpuTarget)
    compiler = find_compiler()
    assert compiler is not None
    source = generate(target.program, stall=(1, 2, 30))  # worker, stage, seconds
    (tape,) = target._tapes
    library = Library(build(source, compiler, vector_level()))
    return CpuTarget(library, [tape], CONTEXT, Place(tape.plan.workers), "stalling")


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    serve(lambda progress: load(progress, **options))
