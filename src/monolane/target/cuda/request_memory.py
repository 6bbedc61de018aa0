"""Where a request's arrays lie on the device: places that stay from request to request, so that none is allocated."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Memory(Protocol):
    """What is asked of a device; the driver's Context does it."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def send(self, address: int, data: NDArray[np.generic]) -> None: ...


class RequestMemory:
    """One request at a time: ``begin`` when the one before has ended, then ``upload`` its arrays in the same order."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._places: list[tuple[int, int]] = []  # address and size
        self._sent: list[NDArray[np.generic]] = []  # kept: a copy may be on its way until the request ends

    def begin(self) -> None:
        self._sent = []

    def upload(self, data: NDArray[np.generic]) -> int:
        data = np.ascontiguousarray(data)
        address = self._place(len(self._sent), data.nbytes)
        self._sent.append(data)
        if data.nbytes:
            self._memory.send(address, data)
        return address

    def _place(self, number: int, size: int) -> int:
        """The next place, made anew where it is too small: twice as large, so that it seldom is."""
        if number == len(self._places):
            self._places.append((self._memory.allocate(size), size))
        address, has = self._places[number]
        if size > has:
            self._places[number] = self._memory.allocate(2 * size), 2 * size  # if that fails, the old place stays
            self._memory.free(address)
        return self._places[number][0]
