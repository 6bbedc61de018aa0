"""NumPy multiplies with threads of its own. Where we bring ours, the two sets wait for each other: one must rest."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

# What OpenBLAS calls it in NumPy's own wheels, and elsewhere.
NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


@dataclass(frozen=True)
class Threads:
    """How many threads multiply, in this process."""

    get: Callable[[], int]
    set: Callable[[int], None]


def threads() -> Threads | None:
    """None where NumPy uses another library than OpenBLAS."""
    # The extension is loaded already; asked again, it gives what it was linked with.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for name in NAMES:
        if hasattr(library, name.format("set")):
            return Threads(getattr(library, name.format("get")), getattr(library, name.format("set")))
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Every multiplication stays in the thread that asks for it. Another library than OpenBLAS is left as it is."""
    found = threads()
    before = found.get() if found else 0
    try:
        if found:
            found.set(1)
        yield
    finally:
        if found:
            found.set(before)
