"""Which model is taken where none is named."""

from __future__ import annotations

import pytest

from monolane.cli.default_elsewhere import default_elsewhere
from monolane.engine import default_model as defaults
from monolane.engine.default_model import default_model
from monolane.errors import TargetError
from monolane.target.cpu.machine import VectorLevel

GB = 10**9


@pytest.mark.parametrize(
    ("level", "cores", "memory", "name"),
    [
        ("avx512vnni", 2, None, "qwen2.5-coder-0.5b"),
        ("avx512", 2, 8 * GB, "qwen2.5-coder-0.5b"),
        ("avx512", 1, 8 * GB, "smollm2-135m"),
        ("avx512", 8, 16 * GB, "qwen2.5-coder-1.5b"),
        ("avx512", 8, GB, "qwen2.5-coder-0.5b"),
        ("avx2", 2, 8 * GB, "smollm2-135m"),
        ("avx2", 4, 8 * GB, "qwen2.5-coder-0.5b"),
        ("dotprod", 4, 8 * GB, "qwen2.5-coder-0.5b"),
        ("neon", 64, 64 * GB, "smollm2-135m"),
        ("sse2", 64, 64 * GB, "smollm2-135m"),
    ],
)
def test_the_best_coder_that_the_machine_runs_fast(
    monkeypatch: pytest.MonkeyPatch, level: str, cores: int, memory: int | None, name: str
) -> None:
    monkeypatch.setattr(defaults.machine, "vector_level", lambda: VectorLevel(level, ()))
    monkeypatch.setattr(defaults.machine, "processors", lambda: tuple(range(cores)))
    monkeypatch.setattr(defaults.machine, "available_memory", lambda: memory)
    monkeypatch.setattr(defaults, "find_gpu", lambda: None)
    choice = default_model("auto", None)
    assert choice.name == name
    assert name in choice.line
    assert "\n" not in choice.line
    assert default_model("auto", 1).name == "smollm2-135m"
    assert default_model("interpreter", None).name == "smollm2-135m"
    monkeypatch.setattr(defaults, "find_gpu", object)
    assert default_model("auto", None).name == default_model("cuda", None).name == "qwen2.5-coder-1.5b"
    assert default_model("cpu", None).name == name


def test_the_server_chooses_the_same_without_loading_a_driver_itself() -> None:
    choice = default_model("cpu", 1)
    assert default_elsewhere("cpu", 1) == (choice.name, choice.line)
    with pytest.raises(TargetError, match="No model could be chosen"):
        default_elsewhere("cpu", "two")  # type: ignore[arg-type]
