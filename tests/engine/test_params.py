from __future__ import annotations

from typing import Any

import pytest

from monolane import SamplingParams, UsageError


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"max_tokens": 1, "temperature": 100, "top_k": 0, "top_p": 1, "min_p": 1, "seed": 2**64 - 1},
        {"repetition_penalty": 10, "presence_penalty": -2, "frequency_penalty": 2, "logprobs": 20},
        {"stop": "x" * 256, "stop_token_ids": [0, 5], "logit_bias": {0: -100, 1: 100.0}, "logprobs": 0},
        {"stop": ["a"] * 16, "logit_bias": dict.fromkeys(range(1024), 0.5)},
    ],
)
def test_values_up_to_the_limits_are_taken(values: dict[str, Any]) -> None:
    SamplingParams(**values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("temperature", 101),
        ("top_k", -1),
        ("top_k", 2.0),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("min_p", -0.5),
        ("min_p", 1.5),
        ("seed", -1),
        ("seed", 2**64),
        ("repetition_penalty", 0),
        ("repetition_penalty", 10.5),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -3),
        ("stop", ""),
        ("stop", ["ok", ""]),
        ("stop", ["a"] * 17),
        ("stop", "x" * 257),
        ("stop", [1]),
        ("stop", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {1: float("nan")}),
        ("logit_bias", {1: 101}),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"1": 0.0}),
        ("logit_bias", [1]),
        ("logit_bias", dict.fromkeys(range(1025), 0.5)),
        ("logprobs", 21),
        ("logprobs", -1),
    ],
)
def test_values_beyond_the_limits_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert caught.value.hint


def test_one_stop_string_is_a_list_of_one() -> None:
    assert SamplingParams(stop="end").stop_strings == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")


def test_what_the_target_is_told() -> None:
    params = SamplingParams(temperature=1, top_k=10**12, logit_bias={7: 1, 3: -2})
    sampling = params.sampling(seed=5, vocab=100)
    assert (sampling.temperature, sampling.seed) == (1.0, 5)
    assert sampling.top_k == 0  # more than there are: all of them
    assert sampling.logit_bias == ((3, -2.0), (7, 1.0))
    assert SamplingParams(top_k=99).sampling(0, 100).top_k == 99


@pytest.mark.parametrize("values", [{"temperature": 5e-324}, {"temperature": 100}, {"repetition_penalty": 0.01}])
def test_the_extremes_stay_within_the_numbers_of_a_kernel(values: dict[str, float]) -> None:
    sampling = SamplingParams(**values).sampling(0, 100)  # type: ignore[arg-type]
    assert not sampling.greedy or "temperature" not in values
    assert max(sampling.rate, sampling.repeat_up, sampling.repeat_down) < 2**31


@pytest.mark.parametrize("params", [SamplingParams(logit_bias={100: 1.0}), SamplingParams(stop_token_ids=[100])])
def test_ids_outside_the_vocabulary_are_refused(params: SamplingParams) -> None:
    params.check_ids(101)
    with pytest.raises(UsageError, match="100"):
        params.check_ids(100)
