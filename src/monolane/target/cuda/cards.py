"""The GPUs that the kernel is compiled for, with their SMs and the shared memory of a thread block."""

from __future__ import annotations

from dataclasses import dataclass

from monolane.errors import UsageError

# Compute capability, and the architecture it is compiled for. The kernel needs bulk copies, mbarriers that count their
# bytes, and setmaxnreg, which GPUs before Hopper do not have.
ARCHITECTURES = {
    (9, 0): "sm_90a",  # H100, H200
    (10, 0): "sm_100a",  # B200
    (10, 3): "sm_103a",  # B300
    (12, 0): "sm_120a",  # RTX 50xx, RTX PRO Blackwell
}
TRIED = (9, 0)  # for the others the kernel is compiled and emulated, but it has not run on them
SUPPORTED = "H100, H200, B200, B300, RTX 50xx"


@dataclass(frozen=True)
class Card:
    """The properties of a GPU that a kernel is generated and compiled for."""

    name: str
    workers: int  # streaming multiprocessors
    shared_limit: int  # bytes of shared memory that a thread block may have
    architecture: str


LARGE, SMALL = 227 << 10, 99 << 10  # bytes of shared memory

CARDS = {
    "h100": Card("NVIDIA H100", 132, LARGE, "sm_90a"),
    "h200": Card("NVIDIA H200", 132, LARGE, "sm_90a"),
    "b200": Card("NVIDIA B200", 148, LARGE, "sm_100a"),
    "b300": Card("NVIDIA B300", 148, LARGE, "sm_103a"),
    "rtx-5080": Card("NVIDIA GeForce RTX 5080", 84, SMALL, "sm_120a"),
    "rtx-5090": Card("NVIDIA GeForce RTX 5090", 170, SMALL, "sm_120a"),
    "rtx-pro-6000": Card("NVIDIA RTX PRO 6000 Blackwell", 188, SMALL, "sm_120a"),
}


def card_named(name: str) -> Card:
    """One of the cards, or an error that lists them."""
    if name.lower() not in CARDS:
        raise UsageError(f"There is no card {name!r}.", f"Choose one of: {', '.join(CARDS)}.")
    return CARDS[name.lower()]
