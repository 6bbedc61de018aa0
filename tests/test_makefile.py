"""What `make` would do on machines with and without an NVIDIA GPU, by a dry run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = shutil.which("make")
WITH, WITHOUT = '--editable ".[cuda]"', '--editable "."'

pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make")


class Checkout:
    """The files that make looks at, and a machine on whose path there is nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "path"
        self.path.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)

    def tool(self) -> None:
        """The driver's own tool, nvidia-smi."""
        tool = self.path / "nvidia-smi"
        tool.write_text("#!/bin/sh\nexit 9\n")  # as when the driver has been updated and not been started again
        tool.chmod(0o755)

    def made(self, *stamps: str) -> None:
        """An environment from before, as a make has left it."""
        (self.folder / ".venv").mkdir(exist_ok=True)
        newer = (self.folder / "pyproject.toml").stat().st_mtime + 10
        for number, stamp in enumerate(stamps):
            (self.folder / ".venv" / stamp).touch()
            os.utime(self.folder / ".venv" / stamp, (newer + number, newer + number))

    def would(self, *words: str, signs: str = "") -> str:
        assert MAKE is not None
        command = [MAKE, "--dry-run", f"SIGNS={signs}", *words]
        done = subprocess.run(
            command, cwd=self.folder, env={"PATH": str(self.path)}, capture_output=True, text=True, check=True
        )
        return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.parametrize("goal", ["install", "serve"])
def test_the_cuda_packages_come_along_where_there_is_a_gpu(checkout: Checkout, goal: str) -> None:
    assert WITHOUT in checkout.would(goal)
    assert WITH in checkout.would(goal, signs=str(checkout.folder))  # a file of the driver's is there
    checkout.tool()
    assert WITH in checkout.would(goal)
    assert WITHOUT in checkout.would("GPU=", goal)


def test_an_environment_from_before_the_gpu_is_completed(checkout: Checkout) -> None:
    checkout.made(".installed", ".test")
    assert "pip install" not in checkout.would("test")
    checkout.tool()
    with_gpu = checkout.would("test")
    assert WITH in with_gpu
    assert '--editable ".[test]"' in with_gpu
    checkout.made(".installed", ".installed-cuda", ".test")
    assert "pip install" not in checkout.would("test")


def test_another_pyproject_is_installed(checkout: Checkout) -> None:
    checkout.tool()
    checkout.made(".installed-cuda", ".test")
    assert "pip install" not in checkout.would("serve")
    newest = (checkout.folder / ".venv" / ".test").stat().st_mtime + 10
    os.utime(checkout.folder / "pyproject.toml", (newest, newest))
    assert WITH in checkout.would("serve")


def test_one_process_has_the_gpu(checkout: Checkout) -> None:
    assert "--numprocesses 2" in checkout.would("test")
    checkout.tool()
    assert "--numprocesses 0" in checkout.would("test")
