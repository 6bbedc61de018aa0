from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.engine import messages
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request

REQUEST = Request([1, 2, 3], 0, 100, frozenset({2}), Sampling(seed=2**64 - 1, logit_bias=((5, -1.5),)), 3)


def test_a_request_crosses_the_border_unchanged() -> None:
    for request in (REQUEST, replace(REQUEST, logprobs=None, sampling=Sampling(temperature=0.7, top_p=0.9))):
        (body,) = messages.Frames().push(messages.encode(messages.Submit(7, request, "start: /a+/")))
        assert messages.TO_ENGINE.decode(body) == messages.Submit(7, request, "start: /a+/")


def test_a_message_of_the_other_side_is_refused() -> None:
    (body,) = messages.Frames().push(messages.encode(messages.Ended(1, Finish.STOP, 0)))
    assert messages.FROM_ENGINE.decode(body) == messages.Ended(1, Finish.STOP, 0)
    with pytest.raises(ValueError, match="Invalid value"):
        messages.TO_ENGINE.decode(body)


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=8), st.lists(st.integers(0, 4000), max_size=20))
def test_messages_come_whole_wherever_the_stream_is_cut(sizes: list[int], borders: list[int]) -> None:
    sent: list[messages.FromEngine] = [messages.Note("x" * size) for size in sizes]
    stream = b"".join(map(messages.encode, sent))
    edges = sorted({0, len(stream), *(min(border, len(stream)) for border in borders)})
    frames = messages.Frames()
    bodies = [body for start, stop in pairwise(edges) for body in frames.push(stream[start:stop])]
    assert [messages.FROM_ENGINE.decode(body) for body in bodies] == sent


def test_an_absurd_length_is_refused_before_it_is_stored() -> None:
    with pytest.raises(ValueError, match="4294967295 bytes"):
        list(messages.Frames().push(b"\xff\xff\xff\xff"))
