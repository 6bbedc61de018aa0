"""Sets the number of OpenBLAS threads: NumPy's own threads and a thread pool of ours would wait for each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

# The names of OpenBLAS' functions in NumPy's own wheels, and in other builds.
NAMES = ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads")


@dataclass(frozen=True)
class Threads:
    """Gets and sets the number of OpenBLAS threads of this process."""

    get: Callable[[], int]
    set: Callable[[int], None]


def threads() -> Threads | None:
    """None where NumPy uses another library than OpenBLAS."""
    # The extension is already loaded, and through its handle the symbols of the libraries it was linked with are found.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for name in NAMES:
        if hasattr(library, name.format("set")):
            return Threads(getattr(library, name.format("get")), getattr(library, name.format("set")))
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Each matrix product is computed in the thread that calls it. A library other than OpenBLAS is left unchanged."""
    found = threads()
    before = found.get() if found else 0
    try:
        if found:
            found.set(1)
        yield
    finally:
        if found:
            found.set(before)
