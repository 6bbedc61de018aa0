"""From a model to a CUDA target: what the GPU cannot hold or run is refused with numbers, before it is allocated."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from monolane.errors import ResourceError, UnsupportedModelError, UsageError
from monolane.model.cache import human_size
from monolane.model.config import ModelConfig
from monolane.model.progress import Progress
from monolane.model.weights import Weights
from monolane.program.build import build_program
from monolane.program.check import check
from monolane.program.layout import Layout
from monolane.program.plan import Plan, make_plan
from monolane.program.stage import Program
from monolane.program.tape import constant_offsets
from monolane.program.tape_store import load_tape
from monolane.target.cuda.generate import RUN_AHEAD_BYTES, generate, residual_projection
from monolane.target.cuda.jit import compile_kernel
from monolane.target.cuda.launch import scratch_sizes
from monolane.target.generate import LAYOUT

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Device, Kernel
    from monolane.target.cuda.runtime import CudaTarget

HALVED = replace(LAYOUT, name="rows8-4", halves_residual=True)
CAPABILITY = (9, 0)  # bulk copies and barriers of copies came with Hopper
SPARE_BYTES = 512 << 20  # of GPU memory: the driver's own, and what requests bring along


def find_gpu() -> Device | None:
    """The GPU, if there is one that we can use; None also where the CUDA packages are not installed."""
    try:
        from monolane.target.cuda.driver import find_device
    except ImportError:
        return None
    device = find_device()
    return device if device and device.capability == CAPABILITY else None


def required_gpu() -> Device:
    """The GPU, or an error that says what is missing."""
    try:
        from monolane.target.cuda.driver import find_device
    except ImportError as error:
        raise UsageError("The CUDA packages are not installed.", "pip install 'monolane[cuda]'") from error
    device = find_device()
    if device is None:
        raise UsageError("There is no NVIDIA GPU, or no driver for it.", "Use device='cpu'.")
    if device.capability != CAPABILITY:
        version = ".".join(map(str, device.capability))
        raise UnsupportedModelError(
            f"{device.name} has compute capability {version}; the kernel needs 9.0 (H100, H200).", "Use device='cpu'."
        )
    return device


def cuda_plan(config: ModelConfig, workers: int) -> Plan:
    """One worker per multiprocessor."""
    program = build_program(config)
    plan = make_plan(program, _layout(program, workers), workers, RUN_AHEAD_BYTES)
    check(plan)
    return plan


def _layout(program: Program, workers: int) -> Layout:
    """Half tiles, which take twice the loads of input, only where the largest share of the residual stream is less."""
    stage = program.projections[residual_projection(program)]
    return min((LAYOUT, HALVED), key=lambda layout: -(-layout.tiles(stage) // workers) * layout.rows(stage))


def memory_needed(plan: Plan, context: int) -> int:
    """Bytes on the GPU."""
    program = plan.program
    table = 2 * program.table.rows * program.table.cols if program.table else 0
    rotations = 4 * program.attention.head_dim * context
    _, constants = constant_offsets(program)
    weights = plan.bytes_per_token + table + 4 * constants
    return weights + rotations + sum(scratch_sizes(plan, context).values()) + SPARE_BYTES


def open_cuda(config: ModelConfig, weights: Weights, context: int, device: Device, progress: Progress) -> CudaTarget:
    """Compile and meanwhile pack; then copy."""
    from monolane.target.cuda.driver import Context
    from monolane.target.cuda.runtime import CudaTarget

    plan = cuda_plan(config, device.processors)
    source = generate(plan, device.shared_limit)
    gpu = Context(device)
    needed, free = memory_needed(plan, context), gpu.free_memory()
    if needed > free:
        raise ResourceError(
            f"This needs {human_size(needed)} of GPU memory with {context:,} tokens of context, "
            f"but {device.name} has {human_size(free)} free.",
            "Use a smaller model or context, or free the GPU's memory.",
        )
    with ThreadPoolExecutor(1) as compiler:
        compiled = compiler.submit(compile_kernel, source, "sm_90a")
        tape = load_tape(plan, weights, lambda size: np.zeros(size, np.uint8), progress)
        kernel = gpu.load(compiled.result().cubin, device.shared_limit)

    def traced() -> Kernel:
        with_stamps = generate(plan, device.shared_limit, traced=True)
        return gpu.load(compile_kernel(with_stamps, "sm_90a").cubin, device.shared_limit)

    return CudaTarget(gpu, kernel, tape, context, traced)
