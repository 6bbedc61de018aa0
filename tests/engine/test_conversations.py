from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_target import FakeTarget
from monolane.engine.conversations import Conversations, Place, shared_prefix
from monolane.engine.session import Session
from monolane.program.sample import Sampling
from monolane.target.base import Request


def tokens(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def talk(conversations: Conversations, text: str) -> Place:
    """A whole turn."""
    place = conversations.place(tokens(text))
    conversations.keep(place.slot, tokens(text))
    return place


def filled(*texts: str, slots: int = 3) -> Conversations:
    """Conversations that were had one after the other."""
    conversations = Conversations(slots)
    for text in texts:
        talk(conversations, text)
    return conversations


@settings(deadline=None)
@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2), min_size=1))
def test_shared_prefix_leaves_one_token_to_compute(held: list[int], wanted: list[int]) -> None:
    length = shared_prefix(np.array(held, np.int64), np.array(wanted, np.int64))
    assert held[:length] == wanted[:length]
    assert length < len(wanted)
    assert length == len(wanted) - 1 or held[length : length + 1] != wanted[length : length + 1]


def test_a_conversation_goes_on_in_its_own_slot() -> None:
    conversations = filled("apple pie", "banana split", "cherry cake")
    assert conversations.place(tokens("banana split, please")) == Place(1, len("banana split"))
    assert conversations.place(tokens("apple pie!")) == Place(0, len("apple pie"))


def test_the_least_recently_used_conversation_goes_first() -> None:
    conversations = filled("apple", "banana", "cherry")
    talk(conversations, "apple pie")  # used again
    assert talk(conversations, "date") == Place(1, 0)
    assert talk(conversations, "elderberry") == Place(2, 0)
    assert talk(conversations, "fig") == Place(0, 0)


def test_an_edited_turn_goes_on_in_place() -> None:
    conversations = filled("a long talk, and its last words", "other")
    assert conversations.place(tokens("a long talk, and other words")) == Place(0, len("a long talk, and "))


def test_a_conversation_that_only_begins_alike_gets_a_copy_and_leaves_the_first_whole() -> None:
    conversations = filled("system: tell the truth", "other")
    assert conversations.place(tokens("system: lie")) == Place(2, len("system: "), source=0)
    assert conversations.place(tokens("system: tell the truth, now")) == Place(0, len("system: tell the truth"))


def test_one_slot_keeps_what_is_shared() -> None:
    conversations = filled("system: tell the truth", slots=1)
    assert conversations.place(tokens("system: lie")) == Place(0, len("system: "))
    assert conversations.place(tokens("else")) == Place(0, 0)


def test_what_is_forgotten_is_not_used() -> None:
    conversations = filled("apple pie", "banana")
    conversations.forget(0)
    assert conversations.place(tokens("apple pie!")).cached == 0


@settings(deadline=None)
@given(st.integers(1, 4), st.lists(st.text("ab", min_size=1, max_size=12), max_size=12))
def test_the_target_is_never_told_wrong_about_its_caches(slots: int, prompts: list[str]) -> None:
    """The fake target keeps its caches itself, and refuses a request that claims what is not there."""
    target = FakeTarget(tokens("ab"), slots=slots)
    session = Session(target)
    for prompt in prompts:
        with session.turn(Request(tokens(prompt), 0, 3, frozenset(), Sampling())) as turn:
            assert [token.id for batch in turn for token in batch] == tokens("aba")
