"""The Python packages that the CUDA target needs: the driver's interface and the run-time compiler."""

from __future__ import annotations

import shlex
import sys

MAJOR = 13  # of CUDA: what the packages are and what a driver must know, because code of one major runs on no older one
DRIVER = 580  # the first NVIDIA driver that knows it
REQUIRED = (f"cuda-bindings=={MAJOR}.*", f"nvidia-cuda-nvrtc=={MAJOR}.0.*")  # the extra "cuda" of pyproject.toml


def installed() -> bool:
    """Whether both are here, and new enough. Needs no GPU."""
    try:
        from cuda.bindings import nvrtc

        _, major, _ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):  # no bindings, or no library behind them
        return False
    return int(major) >= MAJOR


def how_to_install() -> str:
    """A command for this very environment, whether it is a checkout's or not."""
    return shlex.join([sys.executable, "-m", "pip", "install", *REQUIRED])
