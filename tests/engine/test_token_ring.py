from __future__ import annotations

import os
import threading

import pytest

from monolane.engine.token_ring import CAPACITY, TokenRing, open_ring
from monolane.target.base import Token


def both_ends() -> tuple[TokenRing, TokenRing]:
    """The same memory, mapped twice, as in two processes."""
    reader = open_ring()
    return TokenRing(os.dup(reader.file)), reader


def never() -> None:
    pytest.fail("the ring is not full")


def test_tokens_come_out_as_they_went_in() -> None:
    writer, reader = both_ends()
    top = tuple((token, -0.5 * token) for token in range(20))
    tokens = [Token(5, 2**60), Token(-1, 7, -0.25, ()), Token(2**31 - 1, 9, float("-inf"), top)]
    writer.write(tokens, never)
    assert reader.read(writer.written) == tokens
    assert reader.read(writer.written) == []
    writer.close()
    reader.close()


def test_a_full_ring_makes_the_writer_wait_and_loses_nothing() -> None:
    writer, reader = both_ends()
    tokens = [Token(i, i) for i in range(2 * CAPACITY + 5)]
    full = threading.Event()
    writer.write(tokens[:CAPACITY], never)
    thread = threading.Thread(target=writer.write, args=(tokens[CAPACITY:], full.set))
    thread.start()
    assert full.wait(10)
    assert writer.written == CAPACITY
    read: list[Token] = []
    while len(read) < len(tokens):
        read += reader.read(writer.written)
    thread.join(10)
    assert read == tokens


def test_the_heart_beats_for_the_other_side() -> None:
    writer, reader = both_ends()
    before = reader.beats
    writer.beat()
    assert reader.beats == before + 1
