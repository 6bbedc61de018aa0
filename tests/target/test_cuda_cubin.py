"""The kernel compiled without a GPU: for real models it neither spills registers nor uses local memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from monolane.bench.measure.mixtures import FP8, Q4_K_M, MadeUpMixture
from monolane.bench.measure.shapes import SHAPES
from monolane.errors import TargetError
from monolane.target.cuda import inspect
from monolane.target.cuda.inspect import H200, compiled_for, plan_for
from monolane.target.cuda.jit import Compiled, compile_kernel
from thorough import seldom, thorough

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the CUDA packages")

# Half a minute each: the first to spill, and with MONOLANE_TEST=all those others whose speed is published.
SELDOM = ("llama-3.1-8b", "qwen2.5-coder-1.5b", "llama-3.2-1b", "qwen3-1.7b", "laneformer-2b", "laneformer-135m")
LOW_BIT = tuple(
    (name, mixture) for name in ("llama-3.1-8b", "llama-3.2-1b", "qwen2.5-coder-1.5b") for mixture in (FP8, Q4_K_M)
)

# An array that is indexed by what is known only at run time: in no registers.
INDEXED = """
extern "C" __global__ void kernel(int* p, int i) {
  int copy[32];
  for (int j = 0; j < 32; j++) copy[j] = p[j];
  for (int j = 0; j < 32; j++) p[j] = copy[(i + j * j) & 31];
}
"""
# Sixty-four numbers at once, where two blocks of 1024 threads leave 32 registers to each thread.
CROWDED = """
extern "C" __global__ void __launch_bounds__(1024, 2) kernel(volatile int* p) {
  int copy[64];
#pragma unroll
  for (int j = 0; j < 64; j++) copy[j] = p[j];
#pragma unroll
  for (int j = 0; j < 64; j++) p[j] = copy[63 - j];
}
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["smollm2-135m", *map(seldom, SELDOM)])
def test_real_models_neither_spill_nor_use_local_memory(name: str) -> None:
    """Not outside of loops either: fifty bytes there came with 43 µs of a token's 906."""
    require_registers(compiled_for(plan_for(SHAPES[name], H200), H200))


@thorough
def test_attention_with_sinks_does_not_either() -> None:
    require_registers(compiled_for(plan_for(replace(SHAPES["gpt-oss-20b"], experts=None), H200), H200))


@pytest.mark.parametrize(("name", "mixture"), [seldom(*case) for case in LOW_BIT])
def test_low_bit_models_do_not_either(name: str, mixture: str) -> None:
    formats = MadeUpMixture(SHAPES[name], mixture).format
    require_registers(compiled_for(plan_for(SHAPES[name], H200, formats=formats), H200))


def require_registers(compiled: Compiled) -> None:
    used = compiled.resources
    assert (used.stack_bytes, used.spill_store_bytes, used.spill_load_bytes) == (0, 0, 0), compiled.log


def test_the_report_shows_what_the_compiler_made() -> None:
    report = inspect.report(plan_for(SHAPES["smollm2-135m"], H200), 1024, H200)
    for words in (
        "132 workers",
        "registers a thread",
        "bytes of stack",
        "dynamic",
        "slots of",
        "gate_up",
        "predicted:",
    ):
        assert words in report


@pytest.mark.usefixtures("empty_cache")
def test_local_memory_and_spills_are_seen() -> None:
    indexed, crowded = (compile_kernel(source, "sm_90a").resources for source in (INDEXED, CROWDED))
    assert (indexed.stack_bytes, indexed.spill_store_bytes, indexed.spill_load_bytes) == (128, 0, 0)
    assert crowded.registers == 32
    assert min(crowded.stack_bytes, crowded.spill_store_bytes, crowded.spill_load_bytes) > 0


def test_a_kernel_compiled_before_comes_from_the_cache(empty_cache: Path) -> None:
    first = compile_kernel(INDEXED, "sm_90a")
    kept = {path: path.stat().st_mtime_ns for path in (empty_cache / "kernels").iterdir()}
    assert compile_kernel(INDEXED, "sm_90a") == first
    assert {path: path.stat().st_mtime_ns for path in (empty_cache / "kernels").iterdir()} == kept


def test_source_that_does_not_compile_is_an_error_with_the_compilers_words(empty_cache: Path) -> None:
    with pytest.raises(TargetError, match='identifier "undeclared" is undefined'):
        compile_kernel('extern "C" __global__ void kernel() { undeclared(); }', "sm_90a")
    assert not list(empty_cache.rglob("*.cubin"))
