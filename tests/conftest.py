"""Fixtures that tests of several packages share. pytest also adds this file's folder to the import path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from monolane.model.fetch import resolve
from precompiled import precompile_headers

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling


# What takes longest begins first, the longest before all others: what is left for the end is short, and the
# processes that share the tests end together. Most of it compiles kernels.
LONGEST = (
    "tests/real",
    "tests/target/test_cuda_emulated.py",
    "tests/target/test_cuda_lanes.py",
    "tests/target/test_cuda_lanes_apart.py",
    "tests/target/test_against_transformers.py",
    "tests/target/test_lanes.py",
    "tests/target/test_cuda_races.py",
    "tests/target/test_cuda_targets.py",
    "tests/serve/test_playground_page.py",
)


def pytest_configure(config: pytest.Config) -> None:
    # Processes that share the tests get it from the environment of the first. Without a cache headers are parsed anew.
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        precompile_headers(config.cache.mkdir("headers"))


def unit_of(nodeid: str) -> str:
    """What one process takes at a time: a file; and all of tests/real, because a real model takes all cores, and two
    at a time are slower than one after the other."""
    file = nodeid.split("::")[0]
    return "tests/real" if file.startswith("tests/real/") else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {unit: number for number, unit in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(unit_of(item.nodeid), len(rank)))  # all others stay in their order


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """How processes share the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return ByUnit(config, log)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model, fetched once into the user's cache."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def coder_model_path() -> Path:
    """The larger of the two real models."""
    return resolve("qwen2.5-coder-1.5b")
