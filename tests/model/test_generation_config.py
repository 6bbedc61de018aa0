"""How a model's files say that it should be sampled."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tiny_models import save_folder

from monolane.engine.params import SamplingParams
from monolane.errors import ModelFileError
from monolane.model.generation_config import SuggestedSampling, sampling_of_config, sampling_of_metadata
from monolane.model.load import load_model

FILE = Path("generation_config.json")


@pytest.mark.parametrize(
    ("config", "suggested"),
    [
        ({}, SuggestedSampling(0.7, 0, 0.9, 0.0, 1.05)),
        ({"eos_token_id": 2}, SuggestedSampling()),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SuggestedSampling(0.6, 0, 0.9, 0.0, 1.0)),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1, "min_p": None},
         SuggestedSampling(0.7, 20, 0.8, 0.0, 1.1)),
        ({"do_sample": False}, SuggestedSampling(0.0, 0, 1.0, 0.0, 1.0)),
        ({"top_k": -1, "top_p": 0}, SuggestedSampling(0.0, 0, 1.0, 0.0, 1.0)),
    ],
)  # fmt: skip
def test_what_a_config_says(config: dict[str, object], suggested: SuggestedSampling) -> None:
    assert sampling_of_config(config, FILE) == suggested


def test_what_a_gguf_file_says() -> None:
    metadata = {
        "general.sampling.temp": 0.699999988,
        "general.sampling.top_k": 40,
        "general.sampling.penalty_repeat": 1.2,
    }
    assert sampling_of_metadata(metadata, FILE) == SuggestedSampling(0.7, 40, 1.0, 0.0, 1.2)


@pytest.mark.parametrize("value", [-1, 101, math.nan, math.inf, "hot", True, [1], 10**400])
def test_a_damaged_file_is_refused(value: object) -> None:
    with pytest.raises(ModelFileError, match="temperature"):
        sampling_of_config({"temperature": value}, FILE)


def test_requests_without_parameters_follow_it(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_k": 7}))
    assert SamplingParams.suggested(load_model(folder)) == SamplingParams(temperature=0.3, top_k=7)
