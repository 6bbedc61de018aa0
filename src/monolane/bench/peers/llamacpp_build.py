"""Builds llama.cpp with its CUDA back end, and the small program that runs it, from a folder with its source.

    MONOLANE_LLAMA_CPP=vendor/llama.cpp python -m monolane.bench.peers.llamacpp_build

The source distribution of llama-cpp-python has such a folder. cmake, ninja and nvcc must be there; nothing is fetched.
What is built goes to the cache, and a build that was interrupted goes on. The GPU's architecture alone is compiled, but
that still takes minutes of many cores.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from monolane.bench.peers.peer import PeerMissingError
from monolane.cache import cache_root, make_folder
from monolane.errors import MonolaneError

SOURCE = "MONOLANE_LLAMA_CPP"
PROGRAM = Path(__file__).with_name("csrc") / "llama_peer.cpp"
# The library alone, for one GPU. NO_VMM: the library of the driver need not be there to link against.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_CUDA=ON",
    "-DGGML_CUDA_FA_QUANTS=f16-f16",
    "-DGGML_CUDA_NCCL=OFF",
    "-DGGML_CUDA_NO_VMM=ON",
    "-DGGML_CCACHE=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP")),
)


def source() -> Path:
    """The folder that the environment names; raises where there is none."""
    named = os.environ.get(SOURCE, "").strip()
    if not named:
        raise PeerMissingError(f"on a GPU it is built from its source: set {SOURCE} to a folder with it")
    folder = Path(named).absolute()
    if not (folder / "ggml" / "src" / "ggml-cuda").is_dir():
        raise PeerMissingError(f"{SOURCE}: {folder} does not have llama.cpp's source with its CUDA back end")
    return folder


def built(folder: Path, capability: tuple[int, int]) -> Path:
    """The program, built for GPUs of this compute capability where it is not in the cache yet."""
    for tool in ("cmake", "ninja", "nvcc", "g++"):
        if shutil.which(tool) is None:
            raise PeerMissingError(f"{tool} is needed to build it, and is not there")
    architecture = "{}{}".format(*capability)
    build = make_folder(cache_root() / "peers") / f"llama.cpp-{_digest(folder)}-sm{architecture}"
    program = build / "llama_peer"
    if program.exists():
        return program
    _run(["cmake", "-S", folder, "-B", build, "-G", "Ninja", *OPTIONS, *_cublas(),
          f"-DCMAKE_CUDA_ARCHITECTURES={architecture}-real"])  # fmt: skip
    _run(["cmake", "--build", build, "--target", "llama", "--parallel", str(os.cpu_count() or 1)])
    libraries = build / "bin"
    temporary = program.with_suffix(".new")
    _run(["g++", "-std=c++17", "-O3", "-ffast-math", PROGRAM, "-o", temporary,
          "-I", folder / "include", "-I", folder / "ggml" / "include", "-L", libraries,
          "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"])  # fmt: skip
    temporary.replace(program)
    return program


def _cublas() -> list[str]:
    """Options for the cuBLAS that a Python package has brought, because a toolkit may come without it. Its headers are
    looked at last: beside them lie others of another version than nvcc."""
    package = find_spec("nvidia")
    for place in package.submodule_search_locations or () if package else ():
        for library in sorted(Path(place).glob("*/lib/libcublas.so.*")):
            light = library.with_name(library.name.replace("cublas", "cublasLt"))
            headers = library.parents[1] / "include"
            if light.exists() and (headers / "cublas_v2.h").exists():
                return [
                    f"-DCUDA_cublas_LIBRARY={library}",
                    f"-DCUDA_cublasLt_LIBRARY={light}",
                    f"-DCMAKE_CUDA_FLAGS=-Xcompiler -idirafter,{headers}",
                    f"-DCMAKE_CXX_FLAGS=-idirafter {headers}",
                ]
    return []


def _digest(folder: Path) -> str:
    """A hash that differs for other sources, and for another program or other options."""
    digest = hashlib.sha256(repr(OPTIONS).encode() + PROGRAM.read_bytes())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:12]


def _run(words: list[str | Path]) -> None:
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        wrong = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
        raise PeerMissingError(f"{words[0]} failed: {wrong}")


def main() -> int:
    from monolane.target.cuda.opening import required_gpu

    try:
        print(built(source(), required_gpu().capability))
    except (PeerMissingError, MonolaneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
