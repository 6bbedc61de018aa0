"""Opens the CUDA target for a model. What the GPU cannot hold or run is refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from monolane.cache import human_size
from monolane.errors import MonolaneError, NotEnoughMemoryError, UnsupportedModelError, UsageError
from monolane.lanes.memory import SharedAllocator
from monolane.model.config import ModelConfig
from monolane.model.format import FormatOf, all_bf16
from monolane.model.weights import Weights
from monolane.program.build import build_program
from monolane.program.check import check
from monolane.program.layout import Layout
from monolane.program.plan import Plan, make_plan
from monolane.program.shard import Shard, lane_formats
from monolane.program.stage import Output, Program, Project, Splitting
from monolane.program.tape import constant_offsets
from monolane.program.tape_store import load_lanes
from monolane.progress import Progress
from monolane.target.caches import resident_caches
from monolane.target.cuda import packages, presence
from monolane.target.cuda.cards import ARCHITECTURES, LARGE, SUPPORTED, TRIED
from monolane.target.cuda.constants import LINE_BYTES, MAX_SPLITS, PAGE_TOKENS, SPLIT_BYTES, SPLIT_PAGES
from monolane.target.cuda.generate import generate
from monolane.target.cuda.jit import Compiled, compile_kernel
from monolane.target.cuda.launch import MAX_LANES, scratch_sizes
from monolane.target.cuda.presence import Presence, Unreachable
from monolane.target.cuda.projections import least_slot_bytes
from monolane.target.cuda.stream_owners import layers_fit_registers, owners_for
from monolane.target.generate import LAYOUT
from monolane.target.lane_processes import LaneProcesses
from monolane.target.widened import note_widened

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Context, Device
    from monolane.target.cuda.runtime import CudaTarget

Loaded = TypeVar("Loaded")

WHOLE = replace(LAYOUT, name="rows8-short", whole_blocks=True, alignment=LINE_BYTES)
HALVED = replace(WHOLE, name="rows4-short", halves_residual=True)
SHORT_SPLITS = 2  # splits of a KV head in a context of a few hundred tokens
RUN_AHEAD_BYTES = 16 << 10  # of the largest tile that a worker may have beyond an equal share of a stage
MATRIX_OVERHEAD_BYTES = (
    48 << 10
)  # that stream in the time that a second matrix of a stage takes a worker besides its bytes
SPARE_BYTES = 512 << 20  # of GPU memory for the driver and for the arrays of requests


def find_gpu() -> Device | None:
    """The GPU, or None where there is none that can be used; ``unused_gpu`` says why."""
    found = presence.look()
    if found is None or _obstacle(found) is not None:
        return None
    from monolane.target.cuda.driver import find_devices

    return next(iter(find_devices()), None)


def required_gpu() -> Device:
    """The GPU, or an error that says what is missing."""
    found = presence.look()
    if found is not None and (error := _obstacle(found)) is not None:
        raise error
    if (device := find_gpu()) is None:
        raise UsageError("There is no NVIDIA GPU, or no driver for it.", "Use device='cpu'.")
    return device


def unused_gpu(workers: int | None) -> str | None:
    """One line for the user where the CPU will be used although there is a GPU: why, and what to do about it."""
    found = presence.look()
    if found is None:
        return None
    error = _obstacle(found)
    if error is None and workers is not None:
        return f"{_name(found)} is not used: workers are threads of the CPU. Leave --workers (workers=) out to use it."
    return f"{error.message} Running on the CPU. {error.hint}" if error else None


def _obstacle(found: Presence | Unreachable) -> MonolaneError | None:
    """The reason why the GPU of this machine cannot be used, or None."""
    if isinstance(found, Unreachable):
        return UsageError(
            f"{_name(found)} cannot be used: {found.reason}.",
            "The command nvidia-smi should list it; a container must be started with it (--gpus all).",
        )
    if found.capability not in ARCHITECTURES:
        capabilities = ", ".join(_dotted(known) for known in ARCHITECTURES)
        return UnsupportedModelError(
            f"{found.name} cannot be used: it has compute capability {_dotted(found.capability)}, and the kernel needs "
            f"one of {capabilities}.",
            f"These are {SUPPORTED}.",
        )
    if found.cuda < (packages.MAJOR, 0):
        return UsageError(
            f"{found.name} cannot be used: its driver knows CUDA {_dotted(found.cuda)}, and the kernel needs "
            f"{packages.MAJOR}.0.",
            f"Update the NVIDIA driver to version {packages.DRIVER} or later.",
        )
    if not packages.installed():
        return UsageError(
            f"{found.name} cannot be used: the CUDA packages are not installed.",
            f"Install them: {packages.how_to_install()}",
        )
    return None


def _name(found: Presence | Unreachable) -> str:
    return found.name if isinstance(found, Presence) else "The NVIDIA GPU of this machine"


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def cuda_plan(
    config: ModelConfig,
    processors: int,
    lanes: int = 1,
    formats: FormatOf = all_bf16,
    slot_bytes: int = least_slot_bytes(LARGE),
) -> Plan:
    """The plan for a GPU, checked: one worker per SM. With several lanes it is the plan of each lane: they share the
    SMs evenly, and those that are left over are idle. ``formats``: those of the model's matrices. ``slot_bytes``: the
    least that a slot has, from the GPU's shared memory (least_slot_bytes)."""
    workers = processors // lanes
    if not 1 <= lanes <= MAX_LANES or not workers:
        raise UsageError(
            f"A GPU with {processors} SMs does not run {lanes} lanes.",
            f"Choose at most {min(MAX_LANES, processors)} lanes, or device='cpu'.",
        )
    kv_heads = Shard(config, lanes).kv_heads
    most = max(1, min(MAX_SPLITS, workers // kv_heads))
    formats = lane_formats(formats, Shard(config, lanes)) if lanes > 1 else formats
    page_bytes = 2 * PAGE_TOKENS * config.head_dim * 2  # keys and values in bf16
    splitting = Splitting(max(1, min(SPLIT_PAGES, SPLIT_BYTES // page_bytes)) * PAGE_TOKENS, most)
    program = build_program(config, splitting=splitting, lanes=lanes, formats=formats)
    attending = SHORT_SPLITS * kv_heads
    plan = _owners_plan(program, workers, slot_bytes)
    if plan is None:
        layout = _layout(program, workers, slot_bytes)
        plan = make_plan(program, layout, workers, RUN_AHEAD_BYTES, MATRIX_OVERHEAD_BYTES, attending)
    check(plan)
    return plan


def _owners_plan(program: Program, workers: int, slot_bytes: int) -> Plan | None:
    """The plan in which the owners of the residual stream attend, where the model is small enough."""
    layout = _sized(WHOLE, slot_bytes)
    owners = owners_for(program, layout, workers)
    plan = make_plan(program, layout, workers, stream_owners=owners) if owners else None
    return plan if plan and layers_fit_registers(plan) else None


def _layout(program: Program, workers: int, slot_bytes: int) -> Layout:
    """Half tiles of what writes the residual stream, where the largest share of a worker gets smaller, because they
    double the loads of input. Tiles of FP8 are whole, and so are those of an odd number of experts' outputs, which are
    cut in two. Routers have half tiles, so that more workers share them."""
    halves_routers = not any(_is_fp8(stage) for stage in program.projections if stage.routes)
    whole, halved = (replace(_sized(layout, slot_bytes), halves_routers=halves_routers) for layout in (WHOLE, HALVED))
    residual = [stage for stage in program.projections if stage.output is Output.RESIDUAL]
    if any(_is_fp8(stage) or (stage.chosen > 1 and stage.chosen % 2) for stage in residual):
        return whole
    return _smaller(residual, whole, halved, workers)


def _sized(layout: Layout, slot_bytes: int) -> Layout:
    return replace(layout, name=f"{layout.name}-{slot_bytes >> 10}k", slot_bytes=slot_bytes)


def _is_fp8(stage: Project) -> bool:
    return stage.matrix.format.is_low_bit and not stage.matrix.format.is_integer


def _smaller(stages: list[Project], first: Layout, second: Layout, workers: int) -> Layout:
    """The layout in which the largest share of a worker has fewer bytes, padding included."""

    def largest(layout: Layout) -> int:
        return sum(-(-layout.tiles(stage) // workers) * stage.chosen * layout.tile_bytes(stage) for stage in stages)

    return min((first, second), key=largest)


def memory_needed(plan: Plan, context: int, lanes: int) -> int:
    """Bytes of GPU memory that a launch with so many lanes of a model takes (all, or one), with one KV cache."""
    program = plan.program
    table = program.table.rows * program.table.format.row_bytes(program.table.cols) if program.table else 0
    rotations = 4 * program.attention.head_dim * context
    _, constants = constant_offsets(program)
    weights = lanes * (plan.resident_bytes + 4 * constants) + table
    return weights + rotations + sum(scratch_sizes(plan, context, lanes).values()) + SPARE_BYTES


def open_cuda(
    config: ModelConfig,
    weights: Weights,
    context: int,
    device: Device,
    progress: Progress,
    lanes: int = 1,
    sharing: int = 1,
) -> CudaTarget:
    """Compile the kernel while the tapes of all lanes are packed and copied to the GPU. ``sharing``: so many models
    share the GPU's memory."""
    from monolane.target.cuda.driver import Context
    from monolane.target.cuda.launch_model import LaunchModel, place_tapes
    from monolane.target.cuda.launcher import Launcher
    from monolane.target.cuda.runtime import CudaTarget

    slot = least_slot_bytes(device.shared_limit)
    plan = cuda_plan(config, device.processors, lanes, weights.format, slot)
    _note_untried(device, progress)
    note_widened(plan.program, weights, progress)
    gpu = Context(device)
    caches, held = _caches_that_fit(plan, context, lanes, 1, gpu, sharing)
    source = generate(plan, device.shared_limit)
    compiled, (left, placed) = _compiled_meanwhile(
        source, device, lambda: place_tapes(plan, weights, config, gpu, progress)
    )
    launcher = Launcher(
        gpu,
        gpu.load(compiled.cubin, device.shared_limit),
        LaunchModel.of(plan, left, left[0].table, context, placed),
        caches,
    )
    target = CudaTarget(launcher, plan, partial(_traced, plan, device, False), memory_bytes=held)
    target.settle()
    return target


def open_cuda_apart(
    config: ModelConfig,
    weights: Weights,
    context: int,
    device: Device,
    progress: Progress,
    lanes: int,
    sharing: int = 1,
) -> CudaTarget:
    """Every lane in a process of its own; the first is this one. Each has a GPU, or a share of one."""
    from monolane.target.cuda import follower, peer_memory
    from monolane.target.cuda.driver import Context
    from monolane.target.cuda.launch_model import LaunchModel
    from monolane.target.cuda.launcher import Launcher
    from monolane.target.cuda.runtime import CudaTarget

    devices = lane_devices(lanes)
    here = sum(other.number == device.number for other in devices)  # lanes on this GPU
    slot = least_slot_bytes(device.shared_limit)
    plan = cuda_plan(config, device.processors * lanes // here, lanes, weights.format, slot)
    _note_untried(device, progress)
    note_widened(plan.program, weights, progress)
    gpu, memory = Context(device), SharedAllocator()
    caches, held = _caches_that_fit(plan, context, 1, here, gpu, sharing)
    source = generate(plan, device.shared_limit, apart=True)
    compiled, tapes = _compiled_meanwhile(
        source, device, lambda: load_lanes(plan, weights, config, memory.allocate, progress)
    )
    setups = follower.lane_setups(plan, tapes, compiled.cubin, memory, devices, context, caches)
    others = LaneProcesses(setups)
    try:
        model = LaunchModel.of(plan, tapes[:1], tapes[0].table, context)
        handoffs = peer_memory.share(gpu, model.handoff_bytes)
        kernel = gpu.load(compiled.cubin, device.shared_limit)
        launcher = Launcher(gpu, kernel, model, caches, handoffs=handoffs.address)
        launcher.connect(follower.meet(gpu, handoffs, others))
    except BaseException:
        others.close()
        raise
    memory.close_files()
    return CudaTarget(launcher, plan, partial(_traced, plan, device, True), others, held)


def lane_devices(lanes: int) -> list[Device]:
    """The GPU of each lane: one each where there are as many, else the first for all of them, which needs MPS."""
    from monolane.target.cuda.driver import find_devices, has_mps, reaches

    found = find_devices()
    if len(found) < lanes:
        if not has_mps(found[0]):
            raise UsageError(
                f"{lanes} lanes apart on one GPU need MPS: without it their kernels would take turns.",
                "Start it (nvidia-cuda-mps-control -d), or use --placement together.",
            )
        return found[:1] * lanes
    for one in found[:lanes]:
        if (one.capability, one.processors) != (found[0].capability, found[0].processors):
            raise UsageError(f"GPU {one.number} is another one than GPU 0.", "Use --placement together.")
        for other in found[:lanes]:
            if one.number != other.number and not reaches(one, other):
                raise UsageError(
                    f"GPU {one.number} cannot use the memory of GPU {other.number}.",
                    "Lanes on several GPUs need NVLink or peer access over PCIe; or use --placement together.",
                )
    return found[:lanes]


def _note_untried(device: Device, progress: Progress) -> None:
    if device.capability != TRIED:
        progress.note(
            f"Untried on this GPU: {device.name} ({device.architecture}). The kernel is compiled for it, but has only "
            "run on an H200 so far; device='cpu' (--device cpu) leaves it alone."
        )


def _caches_that_fit(
    plan: Plan, context: int, lanes: int, launches: int, gpu: Context, sharing: int
) -> tuple[int, int]:
    """How many KV caches fit beside the model, in so many launches of so many lanes each on one GPU; and the bytes that
    all of it takes. ``sharing``: so many models share the memory."""
    needed, free = launches * memory_needed(plan, context, lanes), gpu.free_memory()
    if needed > free:
        raise NotEnoughMemoryError(
            f"This needs {human_size(needed)} of GPU memory with {context:,} tokens of context, "
            f"but {gpu.device.name} has {human_size(free)} free.",
            "Use a smaller model or context, or free the GPU's memory.",
            needed,
            free,
        )
    sizes = scratch_sizes(plan, context, lanes)
    each = launches * (sizes["keys"] + sizes["values"])
    caches = resident_caches(each, free - needed, sharing)
    return caches, needed + (caches - 1) * each


def _compiled_meanwhile(source: str, device: Device, load: Callable[[], Loaded]) -> tuple[Compiled, Loaded]:
    """The kernel, compiled while the tapes are loaded."""
    with ThreadPoolExecutor(1) as compiler:
        compiled = compiler.submit(compile_kernel, source, device.architecture)
        loaded = load()
        return compiled.result(), loaded


def _traced(plan: Plan, device: Device, apart: bool) -> bytes:
    with_stamps = generate(plan, device.shared_limit, traced=True, apart=apart)
    return compile_kernel(with_stamps, device.architecture).cubin
