"""Shows a CUDA kernel without running it: the resources it takes, and the predicted time of a token."""

from __future__ import annotations

import re
from dataclasses import replace

from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.format import FormatOf, all_bf16
from monolane.program.plan import Plan
from monolane.target.cuda import packages
from monolane.target.cuda.cards import CARDS, Card, card_named
from monolane.target.cuda.constants import THREADS
from monolane.target.cuda.generate import generate
from monolane.target.cuda.jit import Compiled, compile_kernel
from monolane.target.cuda.opening import cuda_plan, find_gpu
from monolane.target.cuda.predict import CEILING, handoff_us, predicted_us, stage_bytes, stream_us
from monolane.target.cuda.projections import least_slot_bytes
from monolane.target.cuda.shared_memory import shared_memory

MEGA = 1e6


H200 = replace(CARDS["h200"], name="NVIDIA H200, assumed because no such GPU is here")


def choose_card(device: str, workers: int | None, named: str | None = None) -> Card | None:
    """The GPU that a model would run on: the one named, or that of this machine, or an H200 where ``device`` is cuda
    and this machine has none. None: the model would run on the CPU."""
    if (device == "cuda" or named is not None) and workers is not None:
        raise UsageError("A GPU has a worker per multiprocessor: their number is not chosen.", "Leave --workers out.")
    if named is not None:
        return card_named(named)
    if device != "cuda" and (device != "auto" or workers is not None):
        return None
    gpu = find_gpu()
    if gpu is None:
        return H200 if device == "cuda" else None
    return Card(gpu.name, gpu.processors, gpu.shared_limit, gpu.architecture)


def plan_for(config: ModelConfig, card: Card, lanes: int | None = None, formats: FormatOf = all_bf16) -> Plan:
    """``lanes``: None for one, or a Laneformer's own. ``formats``: those of the model's matrices."""
    lanes = lanes or (config.lanes.count if config.lanes else 1)
    return cuda_plan(config, card.workers, lanes, formats, least_slot_bytes(card.shared_limit))


def report(plan: Plan, context: int, card: Card) -> str:
    """The kernel's resources and its shared memory; for an H200, whose memory was measured, also predicted times."""
    compiled = compiled_for(plan, card)
    memory = shared_memory(plan, card.shared_limit)
    workers = f"{card.workers} workers, {card.shared_limit:,} bytes of shared memory each"
    return "\n".join(
        [
            f"{card.name} ({card.architecture}): {workers}",
            *_resources(compiled, card),
            f"ring: {memory.slots} slots of {memory.slot_bytes:,} bytes; {memory.prefill_slots} in a prefill pass",
            *(f"  {name}: {size:,} bytes" for name, size in memory.regions()),
            *(["", *_prediction(plan, context, memory.slots)] if "H200" in card.name else []),
        ]
    )


def compiled_for(plan: Plan, card: Card) -> Compiled:
    """Compile the kernel for a card; NVRTC needs no GPU."""
    if not packages.installed():
        raise UsageError("The CUDA packages are not installed.", f"Install them: {packages.how_to_install()}")
    return compile_kernel(generate(plan, card.shared_limit), card.architecture)


def _resources(compiled: Compiled, card: Card) -> list[str]:
    used = compiled.resources
    static = sum(int(size) for size in re.findall(r"(\d+) bytes smem", compiled.log))
    spilled = f"{used.spill_store_bytes:,} bytes of spill stores, {used.spill_load_bytes:,} of spill loads"
    return [
        f"kernel: {used.registers} registers a thread, {THREADS} threads a worker",
        f"local memory: {used.stack_bytes:,} bytes of stack a thread, {spilled}",
        f"shared memory: {static:,} bytes static, {card.shared_limit - static:,} dynamic",
    ]


def _prediction(plan: Plan, context: int, slots: int) -> list[str]:
    """One line per kind of stage, in the order of the program, and the total."""
    stages, predicted = plan.program.stages, predicted_us(plan, slots)
    lines = [f"{'stage':10}{'times':>6}{'MB each':>10}{'stream each':>13}{'adds each':>11}{'adds in all':>13}   (µs)"]
    for name in dict.fromkeys(stage.name for stage in stages):
        which = [index for index, stage in enumerate(stages) if stage.name == name]
        size = sum(stage_bytes(plan, stages[index]) for index in which) / len(which)
        total = sum(predicted[index] for index in which)
        lines.append(
            f"{name:10}{len(which):6}{size / MEGA:10,.2f}{stream_us(size):13,.2f}"
            f"{total / len(which):11,.2f}{total:13,.1f}"
        )
    token, ceiling = sum(predicted), stream_us(plan.bytes_per_token * plan.program.lanes)
    cache = stream_us(plan.program.cache_bytes(context) * plan.program.lanes)
    return [
        *lines,
        f"predicted: {token:,.0f} µs per token, of which {ceiling:,.0f} are the weights at {CEILING / 1e12:.2f} TB/s "
        f"and {token - ceiling:,.0f} hand-offs ({handoff_us(plan)} µs each, less what the ring hides)",
        f"and {cache:,.1f} µs more for the cache when it holds {context:,} tokens",
    ]
