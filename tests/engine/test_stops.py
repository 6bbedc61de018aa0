from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.engine.stops import StopFilter

texts = st.text(alphabet="abc", max_size=30)  # few letters: stop strings overlap, repeat and nearly match
stop_lists = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), max_size=4)


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The oracle: reads letter by letter, and looks at the whole of what it has read each time."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))], True
    return text, False


@settings(deadline=None)
@given(texts, stop_lists, st.lists(st.integers(0, 30)))
def test_any_way_of_cutting_the_text_gives_the_same_result(text: str, stops: list[str], borders: list[int]) -> None:
    edges = sorted({0, len(text), *(min(border, len(text)) for border in borders)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    expected, matched = cut_at_first_stop(text, stops)

    stop_filter = StopFilter(stops)
    shown = ""
    for piece in pieces:
        shown += stop_filter.push(piece)
        assert expected.startswith(shown)  # what has been shown is never taken back
    assert shown + stop_filter.flush() == expected
    assert stop_filter.matched == matched


@settings(deadline=None)
@given(texts, stop_lists)
def test_text_is_held_back_only_while_a_stop_string_is_possible(text: str, stops: list[str]) -> None:
    stop_filter = StopFilter(stops)
    held = text.removeprefix(stop_filter.push(text))
    if held and not stop_filter.matched:
        assert any(stop.startswith(held) for stop in stops)


def test_nothing_comes_after_a_match() -> None:
    stop_filter = StopFilter(["END"])
    assert stop_filter.push("one END two") == "one "
    assert stop_filter.push("three") + stop_filter.flush() == ""
