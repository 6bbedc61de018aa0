"""The CPU kernel on ARM: cross-compiled, run in QEMU, and compared with the kernel of this machine."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from test_low_bit import MIXTURES, open_model

from monolane.program.sample import Sampling
from monolane.target import structs
from monolane.target.base import Request
from monolane.target.cpu import machine
from monolane.target.cpu.compiler import FLAGS, HEADERS, Compiler
from monolane.target.cpu.compiler import _flags as flags_for
from monolane.target.cpu.generate import generate
from monolane.target.cpu.runtime import CacheShape, CpuTarget
from thorough import thorough

COMPILER, QEMU = "aarch64-linux-gnu-g++", next(filter(shutil.which, ("qemu-aarch64-static", "qemu-aarch64")), None)
SECONDS = 300  # far above what a run takes: the limit of a hang
ANSWER = 6  # tokens that are decoded, each in a pass of one row
DRIVER = Path(__file__).with_name("arm_run.cpp")

Run = tuple[NDArray[np.float32], list[int]]  # the logits after each token, and a greedy answer


@pytest.mark.parametrize(
    ("system", "features", "level"),
    [("Linux", "fp asimd crc32", "neon"), ("Linux", "fp asimd asimddp", "dotprod"), ("Darwin", "", "dotprod")],
)
def test_dot_products_are_used_where_the_processor_has_them(
    system: str, features: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64" if system == "Darwin" else "aarch64")
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(Path, "read_text", lambda path: f"processor\t: 0\nFeatures\t: {features}\nCPU part\t: 0xd0c\n")
    assert machine.vector_level.__wrapped__().name == level


def test_zig_gets_no_architecture_that_it_refuses() -> None:
    level = machine.VectorLevel("dotprod", machine._DOTPROD)
    assert flags_for(Compiler(("python", "-m", "ziglang", "c++"), ""), level) == FLAGS
    assert flags_for(Compiler(("g++",), ""), level) == (*FLAGS, *machine._DOTPROD)


def run_on_arm(target: CpuTarget, tokens: Sequence[int], flags: Sequence[str], folder: Path) -> Run:
    """What a kernel for ARM makes of the weights of ``target``."""
    (tape,) = target._tapes
    plan = tape.plan
    source = folder / "kernel.cpp"
    source.write_text(generate(plan.program) + DRIVER.read_text())
    options = [flag for flag in FLAGS if flag != "-shared"]
    includes = [f"-I{headers}" for headers in HEADERS]
    command = [COMPILER, *options, *flags, "-static", "-Wall", "-Werror", *includes, str(source), "-o"]
    subprocess.run([*command, str(folder / "kernel")], timeout=SECONDS, check=True)
    files = {
        "segments": bytes(structs.segment_table(plan)),
        "tokens": np.array(tokens, np.int32).tobytes(),
        "constants": tape.constants.values.tobytes(),
        "sampling": bytes(structs.sampling_struct(Sampling(), 0)),
        "table": tape.table.tobytes() if tape.table is not None else b"",
    } | {f"tape{worker}": part.tobytes() for worker, part in enumerate(tape.workers)}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    cache = CacheShape.of(plan.program, target.context, 1)
    sizes = [target.context, plan.workers, ANSWER, cache.key_bytes, cache.value_bytes]
    subprocess.run([str(QEMU), str(folder / "kernel"), str(folder), *map(str, sizes)], timeout=SECONDS, check=True)
    logits = np.fromfile(folder / "logits", np.float32).reshape(len(tokens), -1)
    return logits, np.fromfile(folder / "answer", np.int32).tolist()


@thorough
@pytest.mark.skipif(shutil.which(COMPILER) is None or QEMU is None, reason=f"needs {COMPILER} and qemu-aarch64")
@pytest.mark.parametrize("name", [name for name in MIXTURES if name != "llama-96-biases"])  # all formats
def test_dot_products_give_the_same_bits(name: str, tmp_path: Path) -> None:
    target, tokens = open_model(name, "cpu")
    assert isinstance(target, CpuTarget)
    tokens = tokens[:-1]  # 39 are not whole fours: rows are multiplied four at a time, and one at a time
    found = []
    for level, flags in (("neon", ()), ("dotprod", machine._DOTPROD)):
        (tmp_path / level).mkdir()
        found.append(run_on_arm(target, tokens, flags, tmp_path / level))
    (logits, answer), (dotted, dotted_answer) = found
    np.testing.assert_array_equal(dotted, logits)
    assert dotted_answer == answer
    expected = target.logits(tokens)
    assert np.abs(logits - expected).max() < 2e-3 * np.abs(expected).max()
    request = Request(tokens, 0, ANSWER, frozenset(), Sampling())
    assert answer == [token.id for batch in target.run(request) for token in batch]
    target.close()
