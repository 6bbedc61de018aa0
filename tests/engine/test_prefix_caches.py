from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_target import FakeTarget
from monolane.engine.prefix_caches import Placement, PrefixCaches, shared_prefix
from monolane.engine.session import Session
from monolane.program.sample import Sampling
from monolane.target.base import Request


def tokens(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def talk(caches: PrefixCaches, text: str) -> Placement:
    """A whole turn."""
    placement = caches.place(tokens(text))
    caches.keep(placement.cache, tokens(text))
    return placement


def filled(*texts: str, count: int = 3) -> PrefixCaches:
    """Caches after these conversations, had one after the other."""
    caches = PrefixCaches(count)
    for text in texts:
        talk(caches, text)
    return caches


@settings(deadline=None)
@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2), min_size=1))
def test_shared_prefix_leaves_one_token_to_compute(held: list[int], wanted: list[int]) -> None:
    length = shared_prefix(np.array(held, np.int64), np.array(wanted, np.int64))
    assert held[:length] == wanted[:length]
    assert length < len(wanted)
    assert length == len(wanted) - 1 or held[length : length + 1] != wanted[length : length + 1]


def test_a_conversation_goes_on_in_its_own_cache() -> None:
    caches = filled("apple pie", "banana split", "cherry cake")
    assert caches.place(tokens("banana split, please")) == Placement(1, len("banana split"))
    assert caches.place(tokens("apple pie!")) == Placement(0, len("apple pie"))


def test_the_least_recently_used_conversation_goes_first() -> None:
    caches = filled("apple", "banana", "cherry")
    talk(caches, "apple pie")  # used again
    assert talk(caches, "date") == Placement(1, 0)
    assert talk(caches, "elderberry") == Placement(2, 0)
    assert talk(caches, "fig") == Placement(0, 0)


def test_an_edited_turn_goes_on_in_place() -> None:
    caches = filled("a long talk, and its last words", "other")
    assert caches.place(tokens("a long talk, and other words")) == Placement(0, len("a long talk, and "))


def test_a_conversation_that_only_begins_alike_gets_a_copy_and_leaves_the_first_whole() -> None:
    caches = filled("system: tell the truth", "other")
    assert caches.place(tokens("system: lie")) == Placement(2, len("system: "), source=0)
    assert caches.place(tokens("system: tell the truth, now")) == Placement(0, len("system: tell the truth"))


def test_one_cache_keeps_what_is_shared() -> None:
    caches = filled("system: tell the truth", count=1)
    assert caches.place(tokens("system: lie")) == Placement(0, len("system: "))
    assert caches.place(tokens("else")) == Placement(0, 0)


def test_what_is_forgotten_is_not_used() -> None:
    caches = filled("apple pie", "banana")
    caches.forget(0)
    assert caches.place(tokens("apple pie!")).cached == 0


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(st.text("ab", min_size=1, max_size=12), max_size=12))
def test_the_target_is_never_told_wrong_about_its_caches(caches: int, prompts: list[str]) -> None:
    """The fake target keeps its caches itself, and refuses a request that claims what is not there."""
    target = FakeTarget(tokens("ab"), caches=caches)
    session = Session(target)
    for prompt in prompts:
        with session.generate(Request(tokens(prompt), 0, 3, frozenset(), Sampling())) as generation:
            assert [token.id for batch in generation for token in batch] == tokens("aba")
