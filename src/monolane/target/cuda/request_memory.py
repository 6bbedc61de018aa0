"""Device memory for the arrays of a request. It is kept from request to request, so that a request allocates none."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Memory(Protocol):
    """The functions of driver.Context that are used here."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def send(self, address: int, data: NDArray[np.generic]) -> None: ...


class RequestMemory:
    """One request at a time: ``begin`` when the one before has ended, then ``upload`` its arrays in the same order."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._places: list[tuple[int, int]] = []  # address and size
        self._sent: list[NDArray[np.generic]] = []  # kept, because a copy may still read it

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
        """The address of array ``number``. Memory that is too small is replaced by twice the size that is needed."""
        if number == len(self._places):
            self._places.append((self._memory.allocate(size), size))
        address, has = self._places[number]
        if size > has:
            self._places[number] = self._memory.allocate(2 * size), 2 * size  # if that fails, the old place stays
            self._memory.free(address)
        return self._places[number][0]
