"""The number of OpenBLAS threads is 1 within ``one_thread``, and restored afterwards."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from monolane.bench.measure import blas


def library(name: str, counts: list[int]) -> SimpleNamespace:
    """As much of OpenBLAS as is asked here; ``counts`` are all numbers of threads that it has had."""
    return SimpleNamespace(**{name.format("get"): lambda: counts[-1], name.format("set"): counts.append})


@pytest.mark.parametrize("name", blas.NAMES)
def test_one_thread_until_the_end(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    counts = [16]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library(name, counts))
    with blas.one_thread():
        assert counts == [16, 1]
    assert counts == [16, 1, 16]


def test_an_error_brings_the_threads_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = [16]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library(blas.NAMES[0], counts))

    def fail() -> None:
        with blas.one_thread():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert counts == [16, 1, 16]


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    with blas.one_thread():
        assert blas.threads() is None


def test_the_library_of_this_numpy_is_found() -> None:
    described = np.show_config(mode="dicts")
    if "openblas" not in described["Build Dependencies"]["blas"]["name"]:
        pytest.skip("this NumPy multiplies with another library")
    found = blas.threads()
    assert found is not None
    before = found.get()
    with blas.one_thread():
        assert found.get() == 1
    assert found.get() == before
