"""Thread block clusters: where the workers of a lane are one, they hand each other activations through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monolane.program.plan import Plan
from monolane.program.stage import Program
from monolane.target.cuda.exchange import any_late

if TYPE_CHECKING:
    from monolane.target.cuda.driver import Device

MAX_CLUSTER = 16  # thread blocks
# Measured on an H200.
SAVED_S = 0.3e-6  # what a hand-off through shared memory takes less than one through global memory
SM_BYTES_PER_S = 35e9  # what an SM reads while all of them do


def clusters_pay(program: Program, workers: int, cluster: int) -> bool:
    """Whether lanes of ``cluster`` workers each, which are clusters, are faster than lanes of ``workers``: hand-offs are
    shorter, but SMs that are in no cluster read nothing. Lanes that wait for each other gain little."""
    size = 2 * sum(stage.matrix.rows * stage.matrix.cols for stage in program.projections)
    lost = size / SM_BYTES_PER_S * (1 / cluster - 1 / workers)
    return any_late(program) and len(program.stages) * SAVED_S > lost


def largest_cluster(resident: tuple[int, ...], lanes: int) -> int:
    """The most workers of a cluster of which the GPU runs ``lanes`` at the same time; 0 where it runs none.
    ``resident``: how many clusters of 1, 2, … workers it runs."""
    return max((size for size, count in enumerate(resident, 1) if count >= lanes), default=0)


def cluster_of(plan: Plan) -> int:
    """Thread blocks of a cluster; 1 where the plan has no clusters."""
    return plan.workers if plan.clustered else 1


_NOTHING = """
__constant__ int monolane_launch;
extern "C" __global__ void __launch_bounds__(%d, 1) monolane_kernel(int* out) { if (out) *out = monolane_launch; }
"""


def resident_clusters(device: Device) -> tuple[int, ...]:
    """How many clusters of 1, 2, … MAX_CLUSTER thread blocks the GPU runs at the same time, each with an SM of its own.
    GPUs of the same name differ: a cluster lies within a GPC, and not all GPCs have the same number of SMs."""
    from monolane.target.cuda.constants import THREADS
    from monolane.target.cuda.driver import Context
    from monolane.target.cuda.jit import compile_kernel

    cubin = compile_kernel(_NOTHING % THREADS, device.architecture).cubin
    context = Context(device)
    try:
        kernels = [context.load(cubin, device.shared_limit, size) for size in range(1, MAX_CLUSTER + 1)]
        found = [context.resident_clusters(kernel, THREADS, device.shared_limit) for kernel in kernels[1:]]
    finally:
        context.close()
    return (device.processors, *found)
