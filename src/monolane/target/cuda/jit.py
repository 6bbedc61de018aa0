"""Compiles a generated CUDA source to a cubin with NVRTC, which needs no GPU, and keeps it in the cache by a hash."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolane.cache import atomic_write, cache_folder, is_sealed, seal
from monolane.errors import TargetError
from monolane.target.cuda.packages import how_to_install

HEADERS = (Path(__file__).parent / "csrc", Path(__file__).parents[1] / "csrc")
OPTIONS = (
    "-std=c++20",
    "-lineinfo",
    "-default-device",
    "-diag-suppress=177",
    "--ptxas-options=-v",
    "--split-compile=0",  # noinline functions (prefill, sampling) are compiled in parallel, on all cores
)


@dataclass(frozen=True)
class Resources:
    """What one thread of the kernel uses: the most registers of any function, and bytes added up over all functions."""

    registers: int
    stack_bytes: int  # of local memory, for stack frames
    spill_store_bytes: int  # bytes that instructions store from registers to local memory, and load back
    spill_load_bytes: int


@dataclass(frozen=True)
class Compiled:
    """A cubin, and the log of the assembler (ptxas)."""

    cubin: bytes
    log: str

    @property
    def resources(self) -> Resources:
        return Resources(
            registers=max(self._numbers("registers")),
            stack_bytes=sum(self._numbers("bytes stack frame")),
            spill_store_bytes=sum(self._numbers("bytes spill stores")),
            spill_load_bytes=sum(self._numbers("bytes spill loads")),
        )

    def _numbers(self, what: str) -> list[int]:
        found = [int(number) for number in re.findall(rf"(\d+) {what}", self.log)]
        if not found:
            raise TargetError(f"The assembler did not say how many {what} the kernel takes.", "Report this as a bug.")
        return found


def compile_kernel(source: str, architecture: str) -> Compiled:
    """The machine code of a kernel for ``sm_90a`` and the like, without PTX, which an older driver may not accept."""
    from cuda.bindings import nvrtc

    options = (f"-arch={architecture}", *OPTIONS)
    key = _key(source, repr(_call(nvrtc.nvrtcVersion())), options)
    cubin_path, log_path = (cache_folder("kernels") / f"cuda-{key}.{suffix}" for suffix in ("cubin", "log"))
    if is_sealed(log_path) and is_sealed(cubin_path):
        return Compiled(cubin_path.read_bytes(), log_path.read_text())
    compiled = _compile(source, options)
    for path, data in ((log_path, compiled.log.encode()), (cubin_path, compiled.cubin)):
        with atomic_write(path) as file:
            file.write(data)
        seal(path, path)
    return compiled


def _compile(source: str, options: tuple[str, ...]) -> Compiled:
    from cuda.bindings import nvrtc

    program = _call(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    encoded = [option.encode() for option in (*options, *(f"-I{folder}" for folder in HEADERS))]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    buffer = bytes(_call(nvrtc.nvrtcGetProgramLogSize(program)))
    _call(nvrtc.nvrtcGetProgramLog(program, buffer))
    log = buffer.rstrip(b"\0").decode(errors="replace")
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise TargetError(f"The kernel did not compile:\n{log[:4000]}", "Use device='cpu'.")
    cubin = bytes(_call(nvrtc.nvrtcGetCUBINSize(program)))
    _call(nvrtc.nvrtcGetCUBIN(program, cubin))
    _call(nvrtc.nvrtcDestroyProgram(program))
    return Compiled(cubin, log)


def _key(source: str, version: str, options: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (source, version, *options):
        digest.update(part.encode() + b"\0")
    for header in (header for folder in HEADERS for header in sorted(folder.iterdir())):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _call(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code) != 0:
        raise TargetError(f"NVRTC: {code}.", f"Install the CUDA packages again: {how_to_install()}")
    return values[0] if len(values) == 1 else tuple(values)
