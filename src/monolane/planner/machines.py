"""The machines that the planner knows: figures of their data sheets, and assumptions where nothing was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from monolane.errors import ResourceError, UsageError

Kind = Literal["gpu", "cpu"]

MOST_LANES = 64
THIS = "this"
RESERVED = 0.05  # the share of a machine's memory for the driver, buffers and the kernel

_FABRIC_US = 3.0  # an upper bound, published for the one other engine with exchanges inside its kernel
_PCIE_US = 10.0
_WIRE_US = 0.7  # by which a word stored in another GPU's memory is seen later than one in the own: not measured
_FABRIC = "published for another engine's exchanges inside a kernel; not measured by this program"
_PCIE = "a guess for PCIe without direct links; not measured"


@dataclass(frozen=True)
class Wire:
    """The direct links between GPUs of one computer."""

    name: str
    bytes_per_s: float  # that one GPU sends, by the data sheet
    latency_us: float = _WIRE_US


@dataclass(frozen=True)
class Machine:
    """A GPU, or a computer without one."""

    name: str
    kind: Kind
    memory: int  # bytes
    bandwidth: float | None  # nominal, in bytes per second; None where it is not known
    ceiling_share: float  # read ceiling / bandwidth, where the ceiling was not measured
    exchange_us: float = _FABRIC_US  # of a hand-off that crosses lanes, where none was measured
    assumed: Mapping[str, str] = field(default_factory=dict)  # figure -> why it is assumed
    wire: Wire | None = None  # None: no direct links

    @property
    def room(self) -> float:
        """Bytes for weights and cache."""
        return self.memory * (1 - RESERVED)


def _gpu(name: str, gigabytes: int, bandwidth: float, share: float, why: str, wire: Wire | None = None) -> Machine:
    assumed = {"ceiling": why, "exchange": _FABRIC if wire else _PCIE}
    exchange = _FABRIC_US if wire else _PCIE_US
    return Machine(name, "gpu", gigabytes * 10**9, bandwidth, share, exchange, assumed, wire)


_LIKE_H200 = "the share that reads reach on an H200; not measured on this one"

MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        _gpu("H200", 141, 4.8e12, 0.95, "as measured by the probes this program began with", Wire("NVLink", 450e9)),
        _gpu("H100", 80, 3.35e12, 0.95, _LIKE_H200, Wire("NVLink", 450e9)),
        _gpu("B200", 180, 8.0e12, 0.95, _LIKE_H200, Wire("NVLink", 900e9)),
        _gpu(
            "MI300X",
            192,
            5.3e12,
            0.79,
            "33.6 of 42.4 TB/s, which another engine's makers call effective",
            Wire("Infinity Fabric", 448e9),
        ),
        _gpu("RTX 4090", 24, 1.008e12, 0.95, _LIKE_H200),
        _gpu("RTX 5090", 32, 1.792e12, 0.95, _LIKE_H200),
        Machine(
            "CPU",
            "cpu",
            64 * 10**9,
            89.6e9,
            0.85,
            assumed={
                "machine": "a desktop with 64 GB in two channels of DDR5-5600",
                "ceiling": "what plain reads usually get of such memory",
            },
        ),
    )
}


@dataclass(frozen=True)
class Cluster:
    """``count`` machines of one type, of which ``lanes`` work on a request, one lane each."""

    machine: Machine
    count: int
    lanes: int

    @property
    def name(self) -> str:
        return self.machine.name if self.count == 1 else f"{self.count} x {self.machine.name}"


def cluster(spec: str, lanes: int | None, this: Machine | None) -> Cluster:
    """The machines of a spec such as ``8xH200``, ``rtx-4090`` or ``this``; ``this`` then is the current machine."""
    match = re.fullmatch(r"(?:(\d{1,4})\s*[x\u00d7*]\s*)?(\S.*)", spec.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError("The name of the machine is empty.", "Give one, such as --on 8xH200.")
    count = int(match[1] or 1)
    found = this if this is not None and is_this(spec) else by_name(match[2])
    if not 1 <= count <= MOST_LANES:
        raise UsageError(f"{count} of a machine are not possible.", f"Choose from 1 to {MOST_LANES}.")
    if found.kind == "cpu" and count > 1:
        raise UsageError("Lanes across CPUs are not planned for.", "Choose one CPU, or GPUs.")
    if lanes is not None and not 1 <= lanes <= count:
        raise UsageError(f"{lanes} lanes do not fit {count} GPU(s).", f"Choose from 1 to {count}, or name more GPUs.")
    return Cluster(found, count, lanes or count)


def is_this(spec: str) -> bool:
    return spec.strip().lower() == THIS


def by_name(name: str) -> Machine:
    """The machine of this name in any spelling: "RTX 4090", "rtx-4090", "rtx4090"."""
    for machine in MACHINES.values():
        if _plain(machine.name) == _plain(name):
            return machine
    raise UsageError(f"The planner knows no machine {name!r}.", f"It knows {', '.join(MACHINES)} and {THIS}.")


def known_gpu(full_name: str) -> Machine | None:
    """The machine of a name that the driver reports, such as "NVIDIA H200". Whole words must match: a GH200 is no
    H200."""
    words = f" {_words(full_name)} "
    return next((one for one in MACHINES.values() if one.kind == "gpu" and f" {_words(one.name)} " in words), None)


def this_machine(ceiling: float | None, gpu: tuple[str, int] | None, cpu: str, free_memory: int | None) -> Machine:
    """The current machine: its GPU (name and bytes of memory) or, without one, its CPU (name as in results)."""
    if gpu is not None and (known := known_gpu(gpu[0])) is not None:
        return known
    if ceiling is None or (gpu is None and free_memory is None):
        what = "read ceiling has not been measured" if ceiling is None else "free memory is not known"
        raise ResourceError(f"This machine's {what}.", "Run 'monolane ceiling' first, or name a machine with --on.")
    if gpu is not None:
        return Machine(gpu[0], "gpu", gpu[1], None, 1.0, _PCIE_US, {"exchange": _PCIE})
    assert free_memory is not None
    return Machine(cpu, "cpu", free_memory, None, 1.0)


def _words(name: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))


def _plain(name: str) -> str:
    return _words(name).replace(" ", "")
