"""A fake CUDA driver library: environment variables determine what it reports about its GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from monolane.target.cpu.compiler import find_compiler

SOURCE = r"""
#include <cstdlib>
#include <cstring>
static int said(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}
extern "C" {
int cuInit(unsigned) { return said("FAKE_INIT", 0); }
int cuDeviceGetCount(int* count) { return *count = said("FAKE_COUNT", 1), 0; }
int cuDeviceGet(int* device, int) { return *device = 0, 0; }
int cuDeviceGetName(char* name, int length, int) { return std::strncpy(name, "NVIDIA Fake 9000", length), 0; }
int cuDriverGetVersion(int* version) { return *version = said("FAKE_VERSION", 13000), 0; }
int cuDeviceGetAttribute(int* value, int which, int) {
  const int capability = said("FAKE_CAPABILITY", 90);
  return *value = which == 75 ? capability / 10 : which == 76 ? capability % 10 : 0, 0;
}
}
"""


def build(folder: Path) -> Path:
    """The folder that has the library."""
    compiler = find_compiler()
    assert compiler is not None
    (folder / "fake.cpp").write_text(SOURCE)
    command = [*compiler.command, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "fake.cpp")]
    subprocess.run(command, check=True)
    return folder


def environment(library: Path, hidden_packages: Path | None = None, **said: str) -> dict[str, str]:
    """Of a process that finds the fake, and no CUDA packages where a folder for that is given."""
    paths = [path for path in sys.path if path]
    if hidden_packages is not None:
        (hidden_packages / "cuda").mkdir(exist_ok=True)
        (hidden_packages / "cuda" / "__init__.py").write_text("raise ImportError('hidden')\n")
        paths.insert(0, str(hidden_packages))
    return os.environ | {"LD_LIBRARY_PATH": str(library), "PYTHONPATH": os.pathsep.join(paths)} | said


def run(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command, or a program where the first word is code for Python."""
    code = words if words[0] == "-c" else ["-c", "from monolane.cli import main; main()", *words]
    done = subprocess.run(
        [sys.executable, *code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    return done
