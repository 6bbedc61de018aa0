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
from monolane.target.emulation import HEADERS
from thorough import seldom

FLAGS = ("-O1", "-g1", "-fsanitize=thread")
RACE = 66  # the exit code we ask for
RUN_SECONDS = 300  # far above what a run takes: the limit of a hang

# What is lost in a copy of the sources where ``monolane_lost`` is the number of its line: a pattern, and what is there
# instead. One library serves all of them.
LOST = {
    "threads of a warp": (r"ptx::sync_warp\(\);", r"if (monolane_lost != 0) \g<0>"),
    "consumers of a block": (r"ptx::named_barrier<1, kConsumers>\(\);", r"if (monolane_lost != 1) \g<0>"),
    "blocks": (r"ptx::load_acquire\((\w+)\)", r"(monolane_lost == 2 ? ptx::load_relaxed(\1) : \g<0>)"),
    "copies": (r"\(void\)__atomic_load_n\(barrier, __ATOMIC_ACQUIRE\);", r"if (monolane_lost != 3) \g<0>"),
}
DECLARED = f'#pragma once\nextern "C" __attribute__((used)) int {race_run.LOST} = -1;'


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


def built(model: str, headers: tuple[Path, ...] = HEADERS) -> Path:
    return build_emulated(race_run.plan_of(model), headers=headers, flags=FLAGS)


@pytest.fixture(scope="module")
def weakened(sanitizer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel from sources in which synchronisation can be lost."""
    folder = tmp_path_factory.mktemp("weakened")
    copies = tuple(shutil.copytree(source, folder / str(number)) for number, source in enumerate(HEADERS))
    texts = {header: header.read_text() for copy in copies for header in copy.iterdir()}
    for pattern, replacement in LOST.values():
        changed = {header: re.sub(pattern, replacement, text) for header, text in texts.items()}
        assert changed != texts, f"the sources have no {pattern} any more: say here what they have instead"
        texts = changed
    for header, text in texts.items():
        header.write_text(text.replace("#pragma once", DECLARED) if header.name == "emulate.hpp" else text)
    return built("one lane", copies)


# Two lanes do all that one does.
@pytest.mark.parametrize("model", [seldom("one lane"), "two lanes", "two lanes whose owners attend", seldom("experts")])
def test_the_kernel_has_no_races(sanitizer: str, weakened: Path, model: str) -> None:
    """Nothing is lost: for one lane, in the library where it could be."""
    library = weakened if model == "one lane" else built(model)
    done = python(sanitizer, race_run.__file__, model, str(library))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("among", LOST)
def test_lost_synchronisation_is_a_race(sanitizer: str, weakened: Path, among: str) -> None:
    done = python(sanitizer, race_run.__file__, "one lane", str(weakened), str(list(LOST).index(among)))
    assert done.returncode == RACE, done.stderr
    assert "ThreadSanitizer: data race" in done.stderr
