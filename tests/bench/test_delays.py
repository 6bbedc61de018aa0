"""``python -m monolane.bench delays``: what it makes of the waits that a target has measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from monolane.bench.measure import delays
from monolane.bench.measure.shapes import SHAPES
from monolane.bench.report import page, schema, show
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.program.build import build_program
from monolane.progress import Silent
from monolane.target.base import Finish, Request, Token

LANES, WORKERS = 8, 3


class Lanes:
    """A token takes 100 µs. In every exchanging stage of a pass, worker w of lane 5 waits w µs times (delay + 1).
    On other lanes all workers wait 9 µs longer."""

    context, caches, bytes_per_token, memory_bytes, stall_s, name = 1000, 1, 1, 1, 1.0, "cuda (made up)"

    def __init__(self, config: ModelConfig) -> None:
        assert config.lanes is not None
        self.program = build_program(config, lanes=config.lanes.count)
        self._us = config.lanes.delay + 1

    def run(self, request: Request) -> Any:
        tokens = [Token(1, 100_000 * number) for number in range(request.max_tokens)]
        return Run([tokens])

    def lane_waits(self, request: Request, first: int, passes: int) -> NDArray[np.int64]:
        assert first + passes < request.max_tokens
        waits = np.zeros((passes, LANES, WORKERS, len(self.program.stages)), np.int64)
        for number, stage in enumerate(self.program.stages):
            if stage.name in ("o", "down", "combine"):
                waits[..., number] = np.arange(WORKERS) * 1000 * self._us
                waits[:, np.arange(LANES) != 5, :, number] += 9000
        return waits

    def copy(self, source: int, destination: int, tokens: int) -> None: ...

    def logits(self, tokens: Any) -> Any: ...

    def close(self) -> None: ...


class Run(list[list[Token]]):
    start_ns, finish = 0, Finish.LENGTH


@pytest.fixture(autouse=True)
def _lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "open_target", lambda config, *_, **__: Lanes(config))
    gpu = SimpleNamespace(name="H200", processors=132, memory=1)
    monkeypatch.setattr("monolane.target.cuda.opening.required_gpu", lambda: gpu)


def options(folder: Path, **changes: Any) -> delays.Options:
    usual = {"shape": "laneformer-2b", "delays": (0, 2), "placement": "apart", "tokens": 8, "rounds": 2}
    return delays.Options(**usual | {"out": folder} | changes)


def test_waits_are_added_up_over_stages_of_the_lane_that_waits_least(tmp_path: Path) -> None:
    result = delays.run(options(tmp_path), Silent(), lambda _: None)
    layers = SHAPES["laneformer-2b"].layers
    for point, us in zip(result["points"], (1, 3), strict=True):  # the mean worker waits 1 µs times this
        assert point["us_per_token"] == pytest.approx(100)
        assert point["exposed_in_layers_us"] == pytest.approx(2 * layers * us)
        assert point["exposed_us"] == pytest.approx((2 * layers + 1) * us)
        others = (2 * layers + 1) * (us + 9)
        assert point["of_lanes_us"] == pytest.approx(
            [point["exposed_us"] if lane == 5 else others for lane in range(8)]
        )
        assert point["mean_us"] == pytest.approx((7 * others + point["exposed_us"]) / 8)
    (file,) = tmp_path.glob("*.json")
    assert file.name == "delays-laneformer-2b-apart.json"
    assert not schema.problems({"command": "c"} | result)
    for text in (show.text([result]), page.page([{"command": "c"} | result], [])):
        assert "31.0" in text
        assert "93.0%" in text


def test_bad_options_are_refused(tmp_path: Path) -> None:
    assert delays.parse("0,1,2,4") == (0, 1, 2, 4)
    for text in ("", "1,x", "-1"):
        with pytest.raises(UsageError, match="--delays"):
            delays.parse(text)
    with pytest.raises(UsageError, match="no lanes of its own"):
        options(tmp_path, shape="llama-3.2-1b")
    with pytest.raises(UsageError, match="--tokens is 5000"):
        options(tmp_path, tokens=5000)
    with pytest.raises(UsageError, match="--rounds is 0"):
        options(tmp_path, rounds=0)
