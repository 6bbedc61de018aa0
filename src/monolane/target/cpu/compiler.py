"""Compiles a generated source with the C++ compiler of this machine, and keeps the library in the cache by a hash."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from monolane.cache import cache_folder, disk_errors, is_sealed, make_folder, seal
from monolane.errors import TargetError, pip_install
from monolane.target.cpu.machine import VectorLevel

HEADERS = (Path(__file__).parent / "csrc", Path(__file__).parents[1] / "csrc")  # of this target, and of all targets
FLAGS = (
    "-std=c++17",  # the standard headers of C++20 take half a second longer to read
    "-O2",
    "-fpeel-loops",  # unrolls short loops over registers completely, as -O3 does; it compiles in two thirds of the time
    "-fno-tree-vectorize",  # what is worth it is written with vectors
    "-fPIC",
    "-shared",
    "-pthread",
    "-ffp-contract=fast",  # a multiplication and an addition become one FMA
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",  # vectors wider than a register are passed in memory, which matters only between libraries
)
COMPILE_SECONDS = 300


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that calls it, and the output of its ``--version``."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler | None:
    """``$CXX``, else c++, g++ or clang++, else the compiler of the ``ziglang`` package; None where there is none."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        compiler = _try(tuple(shlex.split(chosen)))
        if compiler is None:
            raise TargetError(
                f"The compiler named by CXX, {chosen!r}, does not run.", "Unset CXX, or set it to a C++ compiler."
            )
        return compiler
    candidates = [(name,) for name in ("c++", "g++", "clang++") if shutil.which(name)]
    if importlib.util.find_spec("ziglang"):
        candidates.append((sys.executable, "-m", "ziglang", "c++"))  # type: ignore[arg-type]
    return next((found for found in map(_try, candidates) if found), None)


def _try(command: tuple[str, ...]) -> Compiler | None:
    try:
        shown = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Compiler(command, shown.stdout) if shown.returncode == 0 else None


def build(
    source: str,
    compiler: Compiler,
    level: VectorLevel,
    headers: tuple[Path, ...] = HEADERS,
    extra_flags: tuple[str, ...] = (),
) -> Path:
    """The path of the compiled library. It is compiled only if it is not in the cache, or is damaged there."""
    flags = (*_flags(compiler, level), *extra_flags)
    library = _library(source, compiler, flags, headers)
    if is_sealed(library):
        return library
    folder = make_folder(library.parent)
    with disk_errors(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
        main, built = Path(work) / "kernel.cpp", Path(work) / library.name
        main.write_text(source)
        _compile([*compiler.command, *flags, *(f"-I{folder}" for folder in headers), str(main), "-o", str(built)])
        seal(built, library)
        built.replace(library)  # atomic; where two processes compile the same, the second file replaces an equal one
    return library


def is_built(source: str, compiler: Compiler, level: VectorLevel) -> bool:
    """Whether ``build`` need not compile it."""
    return is_sealed(_library(source, compiler, _flags(compiler, level), HEADERS))


def _flags(compiler: Compiler, level: VectorLevel) -> tuple[str, ...]:
    """zig refuses ``-march`` with an architecture of ARM; without it, it compiles for the processor of this machine."""
    is_zig = any("zig" in Path(part).name for part in compiler.command)
    return *FLAGS, *(flag for flag in level.flags if not (is_zig and flag.startswith("-march=")))


def _library(source: str, compiler: Compiler, flags: tuple[str, ...], headers: tuple[Path, ...]) -> Path:
    suffix = "dylib" if platform.system() == "Darwin" else "so"
    return cache_folder("kernels") / f"cpu-{_key(source, compiler, flags, headers)}.{suffix}"


def _key(source: str, compiler: Compiler, flags: tuple[str, ...], headers: tuple[Path, ...]) -> str:
    digest = hashlib.sha256()
    for part in (source, compiler.version, *compiler.command, *flags):
        digest.update(part.encode() + b"\0")
    for header in (header for folder in headers for header in sorted(folder.iterdir())):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _compile(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"The compiler did not finish within {COMPILE_SECONDS} s: {shlex.join(command)}") from error
    if done.returncode:
        raise TargetError(
            f"The kernel did not compile:\n{shlex.join(command)}\n{done.stderr[-3000:]}",
            "Set CXX to another C++17 compiler (g++ 11 or clang++ 14 and later are known to work), "
            f"or install the one in a wheel: {pip_install('ziglang')}",
        )
