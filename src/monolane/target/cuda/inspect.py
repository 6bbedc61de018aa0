"""A CUDA kernel for people, without running it: what it takes of a GPU, and what a token should take on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.program.plan import Plan
from monolane.target.cuda.generate import generate, slot_bytes, slots
from monolane.target.cuda.jit import Compiled, compile_kernel
from monolane.target.cuda.opening import cuda_plan, find_gpu
from monolane.target.cuda.predict import CEILING, HANDOFF_US, predicted_us, stage_bytes, stream_us

MEGA = 1e6


@dataclass(frozen=True)
class Card:
    """What the kernel is generated for."""

    name: str
    workers: int  # streaming multiprocessors
    shared_limit: int  # bytes of shared memory a block may have


H200 = Card("NVIDIA H200, assumed because no such GPU is here", 132, 232448)


def choose_card(device: str, workers: int | None) -> Card | None:
    """The GPU that a model would run on, an H200 where cuda is asked for and none is here; None: no GPU."""
    if device == "cuda" and workers is not None:
        raise UsageError("A GPU has a worker per multiprocessor: their number is not chosen.", "Leave --workers out.")
    if device != "cuda" and (device != "auto" or workers is not None):
        return None
    gpu = find_gpu()
    if gpu is None:
        return H200 if device == "cuda" else None
    return Card(gpu.name, gpu.processors, gpu.shared_limit)


def plan_for(config: ModelConfig, card: Card) -> Plan:
    return cuda_plan(config, card.workers)


def report(plan: Plan, context: int, card: Card) -> str:
    """The kernel's resources, its ring, and its stages with their bytes and predicted times."""
    compiled = compiled_for(plan, card)
    narrow, wide, _ = slots(plan, card.shared_limit)
    return "\n".join(
        [
            f"{card.name}: {card.workers} workers, {card.shared_limit:,} bytes of shared memory each",
            *_resources(compiled, card),
            f"ring: {narrow} slots of {slot_bytes(plan):,} bytes when decoding, {wide} when reading a prompt",
            "",
            *_prediction(plan, context, narrow),
        ]
    )


def compiled_for(plan: Plan, card: Card) -> Compiled:
    """The kernel, compiled; NVRTC needs no GPU."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # no bindings, or no library behind them
        raise UsageError("The CUDA packages are not installed.", "pip install 'monolane[cuda]'") from error
    return compile_kernel(generate(plan, card.shared_limit), "sm_90a")


def _resources(compiled: Compiled, card: Card) -> list[str]:
    from monolane.target.cuda.runtime import THREADS

    used = compiled.resources
    static = sum(int(size) for size in re.findall(r"(\d+) bytes smem", compiled.log))
    spilled = f"{used.spill_store_bytes:,} bytes of spill stores, {used.spill_load_bytes:,} of spill loads"
    return [
        f"kernel: {used.registers} registers a thread, {THREADS} threads a worker",
        f"local memory: {used.stack_bytes:,} bytes of stack a thread, {spilled}",
        f"shared memory: {static:,} bytes static, {card.shared_limit - static:,} dynamic",
    ]


def _prediction(plan: Plan, context: int, narrow: int) -> list[str]:
    """One line per kind of stage, in the order in which they come."""
    stages, predicted = plan.program.stages, predicted_us(plan, narrow)
    lines = [f"{'stage':10}{'times':>6}{'MB each':>10}{'stream each':>13}{'adds each':>11}{'adds in all':>13}   (µs)"]
    for name in dict.fromkeys(stage.name for stage in stages):
        which = [index for index, stage in enumerate(stages) if stage.name == name]
        size = sum(stage_bytes(plan, stages[index]) for index in which) / len(which)
        total = sum(predicted[index] for index in which)
        lines.append(
            f"{name:10}{len(which):6}{size / MEGA:10,.2f}{stream_us(size):13,.2f}"
            f"{total / len(which):11,.2f}{total:13,.1f}"
        )
    token, ceiling = sum(predicted), stream_us(plan.bytes_per_token)
    cache = stream_us(plan.program.cache_bytes(context))
    return [
        *lines,
        f"predicted: {token:,.0f} µs per token, of which {ceiling:,.0f} are the weights at {CEILING / 1e12:.2f} TB/s "
        f"and {token - ceiling:,.0f} hand-offs ({HANDOFF_US} µs each, less what the ring hides)",
        f"and {cache:,.1f} µs more for the cache when it holds {context:,} tokens",
    ]
