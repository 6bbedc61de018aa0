"""The emulated GPU instructions: right results, errors for misuse, and detection of missing synchronisation."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from monolane.target.cpu.compiler import find_compiler

FOLDER = Path(__file__).parents[2] / "src/monolane/target"
PTX, EMULATION = FOLDER / "cuda/csrc/ptx.cuh", FOLDER / "emulation/csrc/emulate.hpp"
SOURCE = Path(__file__).with_name("emulation_selftest.cpp")
KERNELS = [
    *("stream", "exchange", "mma", "integer_mma", "shuffles", "subset", "flag", "grid", "counters", "fences", "lanes"),
    "numbers",
]
RUN_SECONDS = 60  # far above what any takes: the limit of a hang

MISUSE = {
    "misaligned": "bulk_copy to: 0x.* is not 16-byte aligned",
    "misaligned_source": "bulk_copy from: 0x.* is not 16-byte aligned",
    "odd_size": "24 bytes are not a multiple of 16",
    "outside": "32 bytes at 0x.* are not within the 128 bytes of shared memory",
    "in_flight": "block 0 has ended with 1 copies in flight",
    "uninitialised": "uses an mbarrier before mbarrier_init",
    "too_many_arrivals": "arrives at a barrier whose 1 arrivals of this phase are in",
    "mixed_collectives": "thread 7: calls any where others wait at shuffle_up",
    "lane_left": "thread 3: leaves the kernel while its warp waits at sync_warp",
    "deadlock_in_sync": r"deadlock(.|\n)*block 0: .*20 threads wait for sync",
    "deadlock_in_poll": r"deadlock(.|\n)*block \d: 32 threads wait for mbarrier_try_wait",
}
RACES = ["stream_not_full", "stream_not_empty", "subset_unordered", "not_fenced", "lanes_unordered"]


def compile_with(folder: Path, source: Path, *flags: str) -> Path:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler here")
    program = folder / source.stem
    command = [*compiler.command, "-std=c++17", "-pthread", "-Wall", "-Wextra", f"-I{EMULATION.parent}", *flags]
    done = subprocess.run([*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return program


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS, env=environment, check=False
    )


@pytest.fixture(scope="module")
def selftest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_with(tmp_path_factory.mktemp("plain"), SOURCE, "-O2", "-Werror")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The self test under ThreadSanitizer, where compiler and system have it: some systems load no program built so."""
    folder = tmp_path_factory.mktemp("tsan")
    trial = folder / "trial.cpp"
    trial.write_text("#include <sanitizer/tsan_interface.h>\nint main() { return !__tsan_get_current_fiber(); }")
    try:
        works = run(compile_with(folder, trial, "-fsanitize=thread")).returncode == 0
    except RuntimeError:
        works = False
    if not works:
        pytest.skip("ThreadSanitizer (-fsanitize=thread) does not work here")
    return compile_with(folder, SOURCE, "-O1", "-g", "-fsanitize=thread")


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_compute_what_they_should(selftest: Path, kernel: str) -> None:
    for delay_permille, seed in ((0, 1), (20, 2), (200, 3)):
        done = run(selftest, kernel, str(delay_permille), str(seed))
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("misuse", MISUSE)
def test_misuse_ends_with_a_message(selftest: Path, misuse: str) -> None:
    done = run(selftest, misuse)
    assert done.returncode != 0
    assert re.search(MISUSE[misuse], done.stderr), done.stderr


@pytest.mark.parametrize("kernel", KERNELS)
def test_synchronised_kernels_have_no_races(sanitized: Path, kernel: str) -> None:
    done = run(sanitized, kernel, "20")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kernel", RACES)
def test_missing_synchronisation_is_a_race(sanitized: Path, kernel: str) -> None:
    done = run(sanitized, kernel)
    assert done.returncode == 66, done.stderr
    assert "ThreadSanitizer: data race" in done.stderr


def signatures(header: Path) -> set[str]:
    """What the kernel can call and write: functions by their signature, and the macros."""
    text = header.read_text()
    return {
        *re.findall(r"^MONOLANE_DEVICE ([^{;]*\))", text, re.MULTILINE),
        *re.findall(r"^#define (MONOLANE_(?!TSAN|UNTRACKED)\w+(?:\(\w+\))?)", text, re.MULTILINE),
    }


def test_both_headers_offer_the_same() -> None:
    assert signatures(PTX) == signatures(EMULATION)
