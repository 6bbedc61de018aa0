"""The CUDA kernel's own sources on fibers of this CPU: csrc/emulate.hpp has the functions of cuda/csrc/ptx.cuh.

Apart from the kernel's headers: what is changed here leaves compiled kernels in the cache valid.
"""

from pathlib import Path

from monolane.target.cuda import jit

HEADERS = (*jit.HEADERS, Path(__file__).parent / "csrc")
