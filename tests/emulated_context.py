"""A replacement of ``driver.Context`` without a GPU: memory is that of this process, a launch runs in a thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from poison import poison


class EmulatedMemory:
    """The calls of the driver that do not depend on what a kernel is."""

    def __init__(self) -> None:
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._thread: threading.Thread | None = None

    def enter(self) -> None: ...

    def free_memory(self) -> int:
        return 64 << 20

    def allocate(self, size: int) -> int:
        buffer = poison(size + 512)
        address = int(-(-buffer.ctypes.data // 256) * 256)
        self._memory[address] = buffer
        return address

    def host_memory(self, size: int) -> int:
        address = self.allocate(size)
        self.clear(address, size)
        return address

    def write(self, address: int, data: NDArray[np.generic]) -> None:
        ctypes.memmove(address, data.ctypes.data, data.nbytes)

    send = write

    def download(self, address: int, into: NDArray[np.generic]) -> None:
        ctypes.memmove(into.ctypes.data, address, into.nbytes)

    def clear(self, address: int, size: int, byte: int = 0) -> None:
        ctypes.memset(address, byte, size)

    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        self._memory.clear()

    def start(self, run: Callable[[], None]) -> None:
        """As a GPU runs: beside the host."""
        assert not self.running()
        self._thread = threading.Thread(target=run, name="emulated launch")
        self._thread.start()
