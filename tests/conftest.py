"""What tests of several rooms share. Its place also puts this folder on the import path."""

from __future__ import annotations

from pathlib import Path

import pytest

from monolane.model.fetch import resolve


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model, fetched once into the user's cache."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def coder_model_path() -> Path:
    """The larger of the two real models."""
    return resolve("qwen2.5-coder-1.5b")
