"""Opens a target for a model: device, workers, context and memory are checked before anything large is allocated."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from monolane.cache import human_size
from monolane.errors import NotEnoughMemoryError, UsageError, pip_install
from monolane.lanes.memory import SharedAllocator, SharedMemory
from monolane.model.config import ModelConfig
from monolane.model.format import FormatOf, all_bf16
from monolane.model.quantise import quantised
from monolane.model.weights import Weights
from monolane.program.build import build_program
from monolane.program.check import check
from monolane.program.plan import Plan, make_plan
from monolane.program.shard import Shard, lane_formats
from monolane.program.stage import PASS_ROWS, CacheFormat, Program
from monolane.program.tape import constant_offsets
from monolane.program.tape_store import load_lanes
from monolane.progress import Progress, Silent
from monolane.target.base import Target
from monolane.target.caches import resident_caches
from monolane.target.cpu import machine
from monolane.target.cpu.compiler import build, find_compiler, is_built
from monolane.target.cpu.follower import lane_setups
from monolane.target.cpu.generate import generate
from monolane.target.cpu.memory import allocate
from monolane.target.cpu.native import Library, Place
from monolane.target.cpu.runtime import CacheShape, CpuTarget
from monolane.target.cuda.opening import find_gpu, open_cuda, open_cuda_apart, required_gpu, unused_gpu
from monolane.target.generate import LAYOUT
from monolane.target.interpreter import InterpreterTarget
from monolane.target.lane_processes import LaneProcesses
from monolane.target.structs import Entry
from monolane.target.widened import note_widened

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Device

DEVICES = ("auto", "cuda", "cpu", "interpreter")
PLACEMENTS = ("together", "apart")  # of lanes: in one process, or each in its own
DEFAULT_CONTEXT = 8192  # tokens, if the model allows as many and the user chooses nothing else
MAX_WORKERS = 1024
MAX_LANES = 64
ENTRY_BYTES = ctypes.sizeof(Entry)


def plan_for(
    config: ModelConfig,
    workers: int | None = None,
    cache_format: CacheFormat = "bf16",
    lanes: int | None = None,
    formats: FormatOf = all_bf16,
) -> Plan:
    """The plan that ``open_target`` runs on a CPU, checked. ``workers`` may be more than this machine has cores. With
    several lanes it is the plan of each lane: they share the workers evenly, and each has one at least. ``formats``:
    those of the model's matrices."""
    workers = len(machine.processors()) if workers is None else workers
    if not 1 <= workers <= MAX_WORKERS:
        raise UsageError(f"{workers} workers are not possible.", f"Choose between 1 and {MAX_WORKERS} workers.")
    lanes = choose_lanes(config, lanes)
    formats = lane_formats(formats, Shard(config, lanes)) if lanes > 1 else formats
    program = build_program(config, cache_format, lanes=lanes, formats=formats)
    plan = make_plan(program, LAYOUT, max(1, workers // lanes))
    check(plan)
    return plan


def choose_lanes(config: ModelConfig, asked: int | None) -> int:
    """The number of lanes: a Laneformer's own; of any other model as many as are asked for."""
    own = config.lanes.count if config.lanes else None
    if own is not None and asked not in (None, own):
        raise UsageError(f"This model has {own} lanes, not {asked}.", "Leave the number of lanes out.")
    lanes = own or (1 if asked is None else asked)
    if not 1 <= lanes <= MAX_LANES:
        raise UsageError(f"{lanes} lanes are not possible.", f"Choose between 1 and {MAX_LANES} lanes.")
    return lanes


def open_target(
    config: ModelConfig,
    weights: Weights,
    *,
    device: str = "auto",
    workers: int | None = None,
    context: int | None = None,
    cache_format: CacheFormat = "bf16",
    lanes: int | None = None,
    placement: str = "together",
    quantise: str | None = None,
    sharing: int = 1,
    progress: Progress | None = None,
) -> Target:
    """Compile the kernel, allocate memory and pack the tape. ``placement``: lanes in one process, or one process per
    lane. ``quantise``: "q8" or "q4" for matrices that are not low-bit. ``sharing``: so many models share the memory
    that is left for KV caches. ``progress`` shows the loading, and notes for the user."""
    progress = progress or Silent()
    weights = quantised(weights, quantise)
    if placement not in PLACEMENTS:
        raise UsageError(f"There is no placement {placement!r}.", f"Choose one of: {', '.join(PLACEMENTS)}.")
    if device not in DEVICES:
        raise UsageError(f"There is no device {device!r}.", f"Choose one of: {', '.join(DEVICES)}.")
    context = choose_context(config.context, context)
    count = choose_lanes(config, lanes)
    gpu = _choose_gpu(device, workers, progress)
    if gpu is not None and placement == "apart" and count > 1:
        return open_cuda_apart(config, weights, context, gpu, progress, count, sharing)
    if gpu is not None:
        return open_cuda(config, weights, context, gpu, progress, count, sharing)
    require_processors(workers)
    plan = plan_for(config, workers, cache_format, lanes, weights.format)
    note_widened(plan.program, weights, progress)
    needed = require_memory(plan, context)
    compiler = None if device == "interpreter" else find_compiler()
    if compiler is None:
        if device != "interpreter":
            progress.note(
                "No C++ compiler was found (CXX, c++, g++, clang++, the ziglang package): running in the interpreter, "
                f"which is very slow. Install one, for example: {pip_install('ziglang')}"
            )
        return InterpreterTarget(load_lanes(plan, weights, config, allocate, progress), context, needed)
    level = machine.vector_level()
    source = generate(plan.program)
    cores, lanes = machine.processors(), plan.program.lanes
    # With fewer cores than lanes, a thread runs several lanes; in processes of their own they share the cores.
    few = min(lanes, len(cores) if workers is None else workers)
    threads = plan.workers * lanes if plan.workers > 1 or placement == "apart" else few
    pinned = cores[:threads] if threads <= len(cores) else None
    if pinned is None:
        progress.note(f"{threads} workers share {len(cores)} cores: that is slower than one worker per core.")
    cache_bytes = CacheShape.of(plan.program, context, lanes).nbytes
    caches = resident_caches(cache_bytes, machine.available_memory(), sharing)
    held = needed + (caches - 1) * cache_bytes
    if placement == "apart" and lanes > 1:
        name = f"cpu ({lanes} lanes apart, {plan.workers} x {level.name} each)"
        library = Library(build(source, compiler, level))
        return _open_apart(library, plan, config, weights, context, pinned, caches, name, held, progress)
    # The compiler gets a processor of its own: on a machine with few of them a first start waits for it.
    spare = 0 if is_built(source, compiler, level) else 1
    with ThreadPoolExecutor(1, "compile") as pool:
        built = pool.submit(build, source, compiler, level)
        tapes = load_lanes(plan, weights, config, allocate, progress, spare)
        library = Library(built.result())
    name = f"cpu ({threads} x {level.name}" + (f", {lanes} lanes)" if lanes > 1 else ")")
    return CpuTarget(library, tapes, context, Place(threads, pinned), name, caches=caches, memory_bytes=held)


def _open_apart(
    library: Library,
    plan: Plan,
    config: ModelConfig,
    weights: Weights,
    context: int,
    processors: Sequence[int] | None,
    caches: int,
    name: str,
    held: int,
    progress: Progress,
) -> CpuTarget:
    """Every lane in a process of its own; the first is this one."""
    memory, workers = SharedAllocator(), plan.workers
    tapes = load_lanes(plan, weights, config, memory.allocate, progress)
    shared = SharedMemory.of(library.shared_bytes(workers))
    places = [
        Place(workers, processors and processors[lane * workers : (lane + 1) * workers], lane, shared.address)
        for lane in range(plan.program.lanes)
    ]
    others = LaneProcesses(lane_setups(library, tapes, memory, shared, places, context, caches))
    others.ready()
    memory.close_files()
    return CpuTarget(
        library,
        tapes[:1],
        context,
        places[0],
        name,
        caches=caches,
        others=others,
        shared=shared,
        memory_bytes=held,
    )


def _choose_gpu(device: str, workers: int | None, progress: Progress) -> Device | None:
    """The GPU to run on, or None for the CPU. Where the machine has a GPU that is not used, a note says why."""
    if device != "auto":
        return required_gpu() if device == "cuda" else None
    gpu = find_gpu() if workers is None else None
    if gpu is None and (line := unused_gpu(workers)) is not None:
        progress.note(line)
    return gpu


def choose_context(limit: int, asked: int | None) -> int:
    """The number of tokens that a KV cache holds: ``asked``, or a default."""
    if asked is None:
        return min(limit, DEFAULT_CONTEXT)
    if not 1 <= asked <= limit:
        raise UsageError(
            f"A context of {asked} tokens is not possible: the model was made for 1 to {limit}.",
            f"Choose a context of at most {limit} tokens.",
        )
    return asked


def require_processors(workers: int | None) -> None:
    """Refuse more than 4 workers per processor (8 are always allowed): they would only wait for each other."""
    limit = max(8, 4 * (os.cpu_count() or 1))
    if workers is not None and workers > limit:
        raise UsageError(
            f"{workers} workers are too many for {os.cpu_count()} processors.",
            f"Choose at most {limit}; one per core ({len(machine.processors())}) is fastest.",
        )


def memory_needed(plan: Plan, context: int) -> dict[str, int]:
    """Bytes of memory that a loaded model takes, by purpose."""
    program = plan.program
    _, constants = constant_offsets(program)
    buffers = _buffer_bytes(program, context) + plan.workers * 4 * PASS_ROWS * _widest(plan)
    return {
        "weights": program.lanes * (plan.resident_bytes + 4 * constants) + _table_bytes(program),
        "cache": CacheShape.of(program, context, program.lanes).nbytes,
        "buffers": program.lanes * buffers + ENTRY_BYTES * context,
    }


def require_memory(plan: Plan, context: int) -> int:
    """The bytes that a model needs; it is refused where they are not available, and the message has the numbers."""
    needed, available = memory_needed(plan, context), machine.available_memory()
    total = sum(needed.values())
    if available is not None and total > available:
        parts = ", ".join(f"{human_size(size)} {name}" for name, size in needed.items())
        raise NotEnoughMemoryError(
            f"This needs {human_size(total)} of memory ({parts} for {context} tokens of context), "
            f"but only {human_size(available)} are available.",
            "Use a smaller model, a smaller context, or close other programs.",
            total,
            available,
        )
    return total


def _widest(plan: Plan) -> int:
    return max(plan.layout.padded_cols(stage) for stage in plan.program.projections)


def _table_bytes(program: Program) -> int:
    return program.table.rows * program.table.format.row_bytes(program.table.cols) if program.table else 0


def _buffer_bytes(program: Program, context: int) -> int:
    splits = program.attention.splits(context)
    return 4 * PASS_ROWS * sum(buffer.size * (splits if buffer.per_split else 1) for buffer in program.buffers)
