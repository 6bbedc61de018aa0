"""The machine that a plan is for, and the measured ceiling if it is the machine this process runs on."""

from __future__ import annotations

from dataclasses import dataclass

from monolane.bench.ceiling import store as ceiling_store
from monolane.bench.report.record import cpu_title, processor_name
from monolane.planner.machines import Cluster, Machine, cluster, is_this, known_gpu, this_machine
from monolane.planner.prediction import Ceiling
from monolane.target.cpu.machine import available_memory, processors
from monolane.target.cuda.opening import find_gpu


@dataclass(frozen=True)
class Place:
    """The machines of a plan, and their ceiling if ``monolane ceiling`` has measured it here."""

    cluster: Cluster
    measured: Ceiling | None


def place(spec: str, lanes: int | None) -> Place:
    """The machines of ``--on``. The ceiling of this machine is used if it is of the same type."""
    gpu = find_gpu()
    kind = "cuda" if gpu else "cpu"
    stored = ceiling_store.stored(kind)
    this: Machine | None = None
    if is_this(spec):
        cpu = cpu_title(processor_name(), len(processors()))
        this = this_machine(stored, (gpu.name, gpu.memory) if gpu else None, cpu, available_memory())
    found = cluster(spec, lanes, this)
    same = found.machine is this or (gpu is not None and found.machine is known_gpu(gpu.name))
    if not stored or not same:
        return Place(found, None)
    handoff_us, exchanges = ceiling_store.stored_handoff_us(kind), ceiling_store.stored_exchanges(kind)
    return Place(found, Ceiling(stored, "measured by 'monolane ceiling' on this machine", handoff_us, exchanges))
