"""What every run leaves out, because another test has what it is about in another shape. MONOLANE_TEST=all runs it."""

from __future__ import annotations

import os
from typing import Any

import pytest

THOROUGH = os.environ.get("MONOLANE_TEST") == "all"
thorough = pytest.mark.skipif(not THOROUGH, reason="runs with MONOLANE_TEST=all")


def seldom(*case: Any) -> Any:
    """A case of a test that is for thorough runs alone."""
    return pytest.param(*case, marks=thorough)
