"""The model that is taken where none is named: the best coder with a name that this machine runs fast enough.

Every token reads all weights once, so a machine's speed is what it reads per second, over the size of the model's file:

    GPU                       qwen2.5-coder-1.5b
    5 cores with AVX-512      qwen2.5-coder-1.5b
    2 cores with AVX-512      qwen2.5-coder-0.5b
    weaker                    smollm2-135m

Cores with AVX2 or NEON count half. A model must also leave half of the available memory free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from monolane.model.catalogue import CATALOGUE
from monolane.target.cpu import machine
from monolane.target.cuda.opening import find_gpu

if TYPE_CHECKING:
    from monolane.progress import Progress

FAST_ENOUGH = 20  # tokens per second: faster than people read
CODERS = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")  # the best first
SMALLEST = "smollm2-135m"
# Bytes of low-bit weights that a core gets through per second: a round estimate, half of it for half as wide vectors.
PER_CORE = {"avx512vnni": 5e9, "avx512": 5e9, "avx2": 2.5e9, "dotprod": 2.5e9}


@dataclass(frozen=True)
class Choice:
    """A model's name, and why it was chosen: one line for the user."""

    name: str
    line: str


def default_model(device: str, workers: int | None) -> Choice:
    """``device`` and ``workers`` as for LLM."""
    on_gpu = device == "cuda" or (device == "auto" and workers is None and find_gpu() is not None)
    if on_gpu:
        return _choice(CODERS[0], "a GPU")
    level = machine.vector_level().name
    cores = min(len(machine.processors()), workers or len(machine.processors()))
    speed = 0.0 if device == "interpreter" else cores * PER_CORE.get(level, 0.0)
    memory = machine.available_memory()
    for name in CODERS:
        size = CATALOGUE[name].size_bytes
        if FAST_ENOUGH * size <= speed and (memory is None or 2 * size <= memory):
            return _choice(name, f"{cores} x {level}")
    return _choice(SMALLEST, f"{cores} x {level}")


def noted_default(device: str, workers: int | None, progress: Progress) -> str:
    """The name alone; the line goes to ``progress``."""
    choice = default_model(device, workers)
    progress.note(choice.line)
    return choice.name


def _choice(name: str, where: str) -> Choice:
    return Choice(name, f"No model was named: {name}, chosen for {where}. 'monolane models' lists others.")
