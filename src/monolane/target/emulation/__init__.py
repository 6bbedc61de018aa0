"""Runs the CUDA kernel's own sources on fibers of this CPU: csrc/emulate.hpp has the functions of cuda/csrc/ptx.cuh.

These headers are apart from the kernel's: a change here leaves the compiled kernels in the cache valid.
"""

from pathlib import Path

from monolane.target.cuda import jit

HEADERS = (*jit.HEADERS, Path(__file__).parent / "csrc")
