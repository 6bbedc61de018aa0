"""Memory that processes share. It has no name, is passed on as a file descriptor, and ends with the last process."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class SharedMemory:
    """``size`` bytes, zero at first. ``file`` is their descriptor."""

    def __init__(self, file: int, size: int) -> None:
        self.file = file
        self.size = size
        self._map = mmap.mmap(file, max(1, size))
        self.array: Bytes = np.frombuffer(self._map, np.uint8)[:size]

    @classmethod
    def of(cls, size: int) -> SharedMemory:
        file = os.memfd_create("monolane-lanes")
        os.ftruncate(file, max(1, size))
        return cls(file, size)

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def close_file(self) -> None:
        """The memory stays as long as a process has mapped it."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class SharedAllocator:
    """Allocates arrays in shared memory, and finds the memory of an array again."""

    def __init__(self) -> None:
        self._by_address: dict[int, SharedMemory] = {}

    def allocate(self, size: int) -> Bytes:
        memory = SharedMemory.of(size)
        self._by_address[memory.address] = memory
        return memory.array

    def memory_of(self, array: NDArray[np.generic]) -> SharedMemory:
        return self._by_address[int(array.ctypes.data)]

    def copy_of(self, array: NDArray[np.generic]) -> SharedMemory:
        """The bytes of an array from elsewhere, in shared memory."""
        copy = self.allocate(array.nbytes)
        copy[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self.memory_of(copy)

    def close_files(self) -> None:
        for memory in self._by_address.values():
            memory.close_file()


def received(sizes: Mapping[str, int], files: Sequence[int]) -> dict[str, SharedMemory]:
    """What another process has passed on: descriptors, in the order of the names and sizes. They are closed."""
    pieces = {
        name: SharedMemory(file, size) for (name, size), file in zip(sizes.items(), files[: len(sizes)], strict=True)
    }
    for piece in pieces.values():
        piece.close_file()
    return pieces
