"""The Python packages that the CUDA target needs: the bindings of the driver, and NVRTC."""

from __future__ import annotations

from monolane.errors import pip_install

MAJOR = 13  # version of CUDA: of the packages, and the least that the driver must support to run their code
DRIVER = 580  # the first NVIDIA driver that supports it
REQUIRED = (f"cuda-bindings=={MAJOR}.*", f"nvidia-cuda-nvrtc=={MAJOR}.0.*")  # the extra "cuda" of pyproject.toml


def installed() -> bool:
    """Whether both are installed and new enough. Needs no GPU."""
    try:
        from cuda.bindings import nvrtc

        _, major, _ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):  # no bindings, or no library behind them
        return False
    return int(major) >= MAJOR


def how_to_install() -> str:
    """The command that installs them into the environment of this Python."""
    return pip_install(*REQUIRED)
