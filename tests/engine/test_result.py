from __future__ import annotations

import json
import math

import pytest

from monolane.engine.result import Completion, Timings, TokenLogprob
from monolane.target.base import Token


def measure(times_ns: list[int]) -> Timings:
    return Timings.measure(
        prompt_tokens=5, cached_tokens=2, queue_s=0.5, start_ns=1_000, times_ns=times_ns, bytes_per_token=9
    )


def test_speed_leaves_the_first_token_out() -> None:
    timings = measure([2_001_000, 2_501_000, 3_001_000])  # first after 2 ms, then one every 500 µs
    assert timings.first_token_s == pytest.approx(0.002)
    assert timings.decode_us_per_token == pytest.approx(500)
    assert timings.tokens_per_second == pytest.approx(2000)
    assert (timings.prompt_tokens, timings.cached_tokens, timings.generated_tokens) == (5, 2, 3)


def test_no_speed_without_two_tokens() -> None:
    one, none = measure([2_001_000]), measure([])
    assert one.decode_us_per_token is one.tokens_per_second is None
    assert one.first_token_s == pytest.approx(0.002)
    assert none.first_token_s is none.decode_us_per_token is None


def test_a_completion_becomes_json_even_with_impossible_tokens() -> None:
    logprobs = (TokenLogprob.of(Token(3, 0, -math.inf, ((4, -0.1), (5, -math.inf)))),)
    completion = Completion("hi", (3,), "stop", 5, logprobs, 7, measure([2_000]))
    plain = json.loads(json.dumps(completion.to_dict(), allow_nan=False))
    assert plain["text"] == "hi"
    assert plain["logprobs"][0]["token_id"] == 3
    assert plain["logprobs"][0]["logprob"] < -1000
    assert plain["timings"]["generated_tokens"] == 1
