"""From generated CUDA source to a cubin, with NVRTC and without a GPU; cached by everything that went into it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from monolane.errors import TargetError
from monolane.model.cache import atomic_write, cache_folder

HEADERS = (Path(__file__).parent / "csrc", Path(__file__).parents[1] / "csrc")
OPTIONS = ("-std=c++20", "-lineinfo", "-default-device", "-diag-suppress=177")


def compile_cubin(source: str, architecture: str) -> bytes:
    """Machine code for ``sm_90a`` and the like: no PTX, which an older driver may not take."""
    from cuda.bindings import nvrtc

    version = _call(nvrtc.nvrtcVersion())
    options = (f"-arch={architecture}", *OPTIONS, *(f"-I{folder}" for folder in HEADERS))
    path = cache_folder("kernels") / f"cuda-{_key(source, repr(version), options)}.cubin"
    if path.exists():
        return path.read_bytes()
    program = _call(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    encoded = [option.encode() for option in options]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _call(nvrtc.nvrtcGetProgramLogSize(program))
        _call(nvrtc.nvrtcGetProgramLog(program, log))
        raise TargetError(f"The kernel did not compile:\n{log.decode(errors='replace')[:4000]}", "Use device='cpu'.")
    cubin: bytes = b" " * _call(nvrtc.nvrtcGetCUBINSize(program))
    _call(nvrtc.nvrtcGetCUBIN(program, cubin))
    with atomic_write(path) as file:
        file.write(cubin)
    return cubin


def _key(source: str, version: str, options: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (source, version, *OPTIONS, options[0]):
        digest.update(part.encode() + b"\0")
    for header in (header for folder in HEADERS for header in sorted(folder.iterdir())):
        digest.update(header.name.encode() + b"\0" + header.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _call(result: tuple[Any, ...]) -> Any:
    code, *values = result
    if int(code) != 0:
        raise TargetError(f"NVRTC: {code}.", "Check the CUDA packages: pip install --upgrade 'monolane[cuda]'.")
    return values[0] if len(values) == 1 else tuple(values)
