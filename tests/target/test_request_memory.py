"""Arrays of requests reuse their device memory, and a longer one gets a larger allocation."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from emulated_context import EmulatedMemory
from monolane.target.cuda.request_memory import RequestMemory


class CountedMemory(EmulatedMemory):
    def __init__(self) -> None:
        super().__init__()
        self.allocations = 0
        self.full = False

    def allocate(self, size: int) -> int:
        if self.full:
            raise MemoryError
        self.allocations += 1
        return super().allocate(size)

    def free(self, address: int) -> None:
        del self._memory[address]

    @property
    def held(self) -> int:
        return len(self._memory)


def read(address: int, count: int) -> list[int]:
    return list((ctypes.c_int32 * count).from_address(address))


def uploaded(memory: RequestMemory, *arrays: list[int]) -> list[list[int]]:
    memory.begin()
    addresses = [memory.upload(np.array(array, np.int32)) for array in arrays]
    return [read(address, len(array)) for address, array in zip(addresses, arrays, strict=True)]


def test_requests_of_one_size_allocate_once() -> None:
    device = CountedMemory()
    memory = RequestMemory(device)
    for first in range(5):
        assert uploaded(memory, [first, 1, 2], [first + 7]) == [[first, 1, 2], [first + 7]]
    assert device.allocations == 2


def test_a_longer_request_gets_a_larger_place_and_the_old_one_is_given_back() -> None:
    device = CountedMemory()
    memory = RequestMemory(device)
    for length in (1, 10, 100, 3, 101, 199):
        arrays = [list(range(length)), [length]]
        assert uploaded(memory, *arrays) == arrays
    assert device.held == 2
    assert device.allocations == 2 + 2  # 10 and 100 did not fit; 101 and 199 fit what was made for 100


def test_where_memory_is_short_a_request_fails_and_the_next_works() -> None:
    device = CountedMemory()
    memory = RequestMemory(device)
    uploaded(memory, [1, 2, 3])
    device.full = True
    with pytest.raises(MemoryError):
        uploaded(memory, list(range(100)))
    assert uploaded(memory, [4, 5, 6]) == [[4, 5, 6]]
    assert device.held == 1


def test_an_empty_array_has_a_place_too() -> None:
    device = CountedMemory()
    memory = RequestMemory(device)
    assert uploaded(memory, [], [1]) == [[], [1]]
    assert uploaded(memory, [5, 6], [1]) == [[5, 6], [1]]
