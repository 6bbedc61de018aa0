"""The readers of the GPU's ceiling read every byte: on threads of this CPU, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_uint64

import numpy as np
import pytest

from monolane.bench import ceiling_gpu
from monolane.bench.ceiling_gpu import CHUNK_BYTES, WAYS, Launch, Way
from monolane.target.cpu.compiler import build, find_compiler
from monolane.target.cpu.machine import vector_level
from monolane.target.cuda import jit
from monolane.target.cuda.opening import find_gpu

_ENTRY = """
extern "C" void read_emulated(const monolane::Launch* launch) {
  monolane_launch = *launch;
  monolane::emulate::launch(monolane_kernel, 0, launch->blocks, kThreads, %d);
}
"""


@pytest.mark.parametrize("way", [Way(64, unroll=2), Way(96, slots=3)], ids=lambda way: way.name)
def test_every_byte_is_read_in_every_pass(way: Way) -> None:
    blocks, passes, size = 2, 3, 2 * 5 * CHUNK_BYTES  # an odd number of chunks: the ring wraps within a pass
    memory = np.random.default_rng(0).integers(0, 1 << 32, size // 4 + 4, np.uint32)
    memory = memory[(-memory.ctypes.data // 4) % 4 :][: size // 4]  # 16-byte aligned
    times, total = (c_int64 * (2 * blocks))(), c_uint64(0)
    compiler = find_compiler()
    assert compiler is not None
    source = ceiling_gpu.source(way, "emulate.hpp") + _ENTRY % (way.shared_bytes + 128)
    library = ctypes.CDLL(str(build(source, compiler, vector_level(), jit.HEADERS, ("-Wno-unknown-pragmas", "-O0"))))
    library.read_emulated(
        ctypes.byref(Launch(memory.ctypes.data, size, ctypes.addressof(times), ctypes.addressof(total), blocks, passes))
    )
    assert total.value == passes * int(memory.sum(dtype=np.uint64))
    assert all(0 < times[2 * block] <= times[2 * block + 1] for block in range(blocks))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_every_reader_compiles_for_the_gpu_without_spills(way: Way) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    resources = jit.compile_kernel(ceiling_gpu.source(way), "sm_90a").resources
    assert resources.spill_store_bytes == 0
    assert resources.registers * way.threads <= 65536  # of one multiprocessor


def test_shares_are_whole_steps_of_every_reader() -> None:
    for way in WAYS:
        assert ceiling_gpu.SHARE_BYTES % (way.threads * way.unroll * 16 if way.unroll else CHUNK_BYTES) == 0


@pytest.mark.gpu
@pytest.mark.skipif(find_gpu() is None, reason="needs an NVIDIA GPU of compute capability 9.0")
def test_the_ceiling_of_a_gpu() -> None:
    device = find_gpu()
    assert device is not None
    ceiling = ceiling_gpu.GpuReadCeiling(device)
    assert ceiling.measure().keys() == {way.name for way in WAYS}  # it raises where a byte was not read
    ceiling.close()
