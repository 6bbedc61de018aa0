"""Compiled kernels in the cache: used again, and compiled again where the file is damaged."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from monolane.target.cpu import compiler as compilers
from monolane.target.cpu.machine import vector_level

SOURCE = 'extern "C" int answer() { return 42; }\n'
GPU_SOURCE = 'extern "C" __global__ void answer(int* p) { *p = 42; }\n'

DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "no library": lambda path: path.write_text("404 not found"),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "gone": Path.unlink,
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    return tmp_path / "kernels"


def test_a_library_is_compiled_once_and_again_where_it_is_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = compilers.find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")

    def build() -> Path:
        return compilers.build(SOURCE, compiler, vector_level(), headers=())

    path = build()
    assert path.parent == cache
    assert ctypes.CDLL(str(path)).answer() == 42
    sound, compiled = path.read_bytes(), []

    def compile_again(command: list[str]) -> None:
        compiled.append(command)
        Path(command[-1]).write_bytes(sound)

    monkeypatch.setattr(compilers, "_compile", compile_again)
    assert build() == path
    assert not compiled
    for count, damage in enumerate(DAMAGE.values(), 1):
        damage(path)
        assert build() == path
        assert len(compiled) == count
        assert path.read_bytes() == sound


def test_a_cubin_too(cache: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages")
    from monolane.target.cuda.jit import compile_kernel

    first = compile_kernel(GPU_SOURCE, "sm_90a")
    for suffix in ("cubin", "log"):
        [path] = cache.glob(f"cuda-*.{suffix}")
        for kind in ("truncated", "zeros"):
            DAMAGE[kind](path)
            again = compile_kernel(GPU_SOURCE, "sm_90a")
            assert again.cubin[:4] == b"\x7fELF"
            assert again.resources == first.resources
            assert path.read_bytes() == (again.cubin if suffix == "cubin" else again.log.encode())
