"""The CUDA kernel's own sources under ThreadSanitizer: no race as they are, a race where synchronisation is lost."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import race_run
from emulated import build_emulated

from monolane.target.cpu.compiler import find_compiler
from monolane.target.cuda.opening import cuda_plan
from monolane.target.emulation import HEADERS

FLAGS = ("-O1", "-g1", "-fsanitize=thread")
RACE = 66  # the exit code we ask for
RUN_SECONDS = 300  # far above what a run takes: the limit of a hang

# What is taken away from a copy of the sources.
LOST = {
    "lanes of a warp": (r"ptx::sync_warp\(\);", ""),
    "consumers of a block": (r"ptx::named_barrier<1, kConsumers>\(\);", ""),
    "blocks": (r"ptx::load_acquire\(", "ptx::load_relaxed("),
    "copies": (r"\(void\)__atomic_load_n\(barrier, __ATOMIC_ACQUIRE\);", ""),
}


@pytest.fixture(scope="module")
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ThreadSanitizer's own library, where compiler and system have it: some systems load no program built so."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("tsan")
    source, trial = folder / "trial.cpp", folder / "trial.so"
    source.write_text("int trial() { return 0; }")
    command = [*compiler.command, "-shared", "-fPIC", "-fsanitize=thread", str(source), "-o", str(trial)]
    built = subprocess.run(command, capture_output=True, check=False)
    command = [*compiler.command, "-print-file-name=libtsan.so"]
    library = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    loaded = python(library, "-c", f"import ctypes; ctypes.CDLL({str(trial)!r})")
    if built.returncode or loaded.returncode:
        pytest.skip("ThreadSanitizer (-fsanitize=thread) does not work here")
    return library


def python(sanitizer: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """This Python with ThreadSanitizer in it. It sees what the kernel's library does, and nothing of Python's own."""
    environment = os.environ | {
        "LD_PRELOAD": sanitizer,
        "TSAN_OPTIONS": f"halt_on_error=1 exitcode={RACE}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # what tests may import, it may, too
    }
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=RUN_SECONDS, env=environment, check=False
    )


def run(sanitizer: str, headers: tuple[Path, ...] = HEADERS) -> subprocess.CompletedProcess[str]:
    library = build_emulated(cuda_plan(race_run.MODEL, race_run.WORKERS), headers=headers, flags=FLAGS)
    return python(sanitizer, race_run.__file__, str(library))


def test_the_kernel_has_no_races(sanitizer: str) -> None:
    done = run(sanitizer)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("among", LOST)
def test_lost_synchronisation_is_a_race(sanitizer: str, tmp_path: Path, among: str) -> None:
    copies = tuple(shutil.copytree(folder, tmp_path / str(number)) for number, folder in enumerate(HEADERS))
    pattern, replacement = LOST[among]
    texts = {header: header.read_text() for copy in copies for header in copy.iterdir()}
    changed = {header: re.sub(pattern, replacement, text) for header, text in texts.items()}
    assert changed != texts, f"the sources have no {pattern} any more: say here what they have instead"
    for header, text in changed.items():
        header.write_text(text)
    done = run(sanitizer, copies)
    assert done.returncode == RACE, done.stderr
    assert "ThreadSanitizer: data race" in done.stderr
