"""Fixtures that tests of several packages share. pytest also adds this file's folder to the import path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from monolane.model.fetch import resolve

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """How processes share the tests: file by file; all of tests/real is for one, because a real model takes all cores,
    and two at a time are slower than one after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return "tests/real" if file.startswith("tests/real/") else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model, fetched once into the user's cache."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def coder_model_path() -> Path:
    """The larger of the two real models."""
    return resolve("qwen2.5-coder-1.5b")
