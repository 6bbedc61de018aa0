"""Which replica a conversation goes to, and what replicas take of their machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from monolane import UsageError
from monolane.cluster.deployment import cause, share
from monolane.cluster.routing import SPILL, conversation_of, ranked
from monolane.cluster.run import bounds

HI = {"role": "user", "content": "Hi"}
BE_BRIEF = {"role": "system", "content": "Be brief."}
MORE = [{"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"}]


def key(**asked: Any) -> bytes | None:
    return conversation_of(json.dumps(asked).encode())


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ({"messages": [HI]}, {"messages": [HI, *MORE], "temperature": 0.5}),
        ({"messages": [BE_BRIEF, HI]}, {"messages": [BE_BRIEF, HI, *MORE]}),
        ({"system": "Be brief.", "messages": [HI]}, {"system": "Be brief.", "messages": [HI, *MORE]}),
        ({"input": "Hi"}, {"input": [HI, *MORE]}),
        ({"input": [HI], "instructions": "Be brief."}, {"input": [HI, *MORE], "instructions": "Be brief."}),
        ({"prompt": "x" * 300}, {"prompt": "x" * 300 + "more"}),
        ({"prompt": list(range(70))}, {"prompt": list(range(80))}),
        ({"prompt": ["one", "two"]}, {"prompt": "one"}),
    ],
)
def test_a_conversation_keeps_its_key_while_it_grows(first: dict[str, Any], later: dict[str, Any]) -> None:
    assert key(**first) is not None
    assert key(**first) == key(**later)


def test_other_conversations_have_other_keys() -> None:
    keys = [
        key(messages=[HI]),
        key(messages=[BE_BRIEF, HI]),
        key(messages=[BE_BRIEF, {"role": "user", "content": "Ho"}]),
        key(system="Be brief.", messages=[HI]),
        key(input="Ho"),
        key(prompt="Hi"),
        key(prompt=[1, 2]),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"[]", b"{}", b'{"prompt": null}', b'{"prompt": {"a": 1}}', b'{"messages": 3}']
)
def test_without_a_prompt_there_is_no_conversation(body: bytes) -> None:
    assert conversation_of(body) is None


CONVERSATIONS = [str(number).encode() for number in range(600)]


def chosen(*replicas: str) -> dict[bytes, str]:
    return {conversation: ranked(conversation, dict.fromkeys(replicas, 0))[0] for conversation in CONVERSATIONS}


def test_replicas_get_even_shares_and_only_the_conversations_of_one_that_goes_move() -> None:
    before, after = chosen("a", "b", "c"), chosen("a", "c")
    for replica in "abc":
        assert 150 < list(before.values()).count(replica) < 250
    assert {before[moved] for moved in CONVERSATIONS if before[moved] != after[moved]} == {"b"}
    moved = [after[conversation] for conversation in CONVERSATIONS if before[conversation] == "b"]
    assert 0.3 < moved.count("a") / len(moved) < 0.7


def test_a_busy_replica_is_left_for_the_least_loaded() -> None:
    own, second, third = ranked(b"x", {"a": 0, "b": 0, "c": 0})
    assert ranked(b"x", {own: SPILL - 1, second: 0, third: 0})[0] == own
    assert ranked(b"x", {own: SPILL + 1, second: 1, third: 0})[0] == third
    assert ranked(b"x", {own: SPILL + 3, second: 4, third: 5})[0] == own
    assert ranked(None, {own: 1, second: 2, third: 0}) == [third, own, second]


def test_a_replica_that_was_tried_comes_last() -> None:
    own, second, third = ranked(b"x", {"a": 0, "b": 0, "c": 0})
    assert ranked(b"x", {own: 0, second: 0, third: 0}, tried=[own]) == [second, third, own]
    assert ranked(b"x", {own: 0}, tried=[own]) == [own]
    assert ranked(b"x", {}) == []


@pytest.mark.parametrize(("text", "expected"), [("1", (1, 1)), ("4", (4, 4)), ("1-4", (1, 4)), (" 2-2 ", (2, 2))])
def test_bounds_of_replicas(text: str, expected: tuple[int, int]) -> None:
    assert bounds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0-3", "4-1", "-2", "many", "1-", "1..4"])
def test_wrong_bounds_are_told(text: str) -> None:
    with pytest.raises(UsageError, match="--replicas is"):
        bounds(text)


def test_each_replica_gets_an_equal_share_of_processors() -> None:
    assert share([8], 1) == 8
    assert share([8, 8], 2) == 8
    assert share([8, 8], 3) == 4
    assert share([16, 4], 3) == 5
    assert share([2], 2) == 1
    with pytest.raises(UsageError, match="2 processors, which is too few for 3"):
        share([2], 3)


def test_why_replicas_did_not_start_is_told_without_a_traceback() -> None:
    told = "It failed 3 times.\nTraceback (most recent call last):\n  File x\n"
    assert (
        cause(told + "monolane.errors.UsageError: There is no model.\nName one.\n") == "There is no model.\nName one."
    )
    assert cause(told + "OSError: broken") == "OSError: broken"


TAKE = """
import os
from monolane.cluster.processors import take_processors
take_processors(1)
print(sorted(os.sched_getaffinity(0)), flush=True)
input()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_replicas_of_one_machine_take_different_processors(tmp_path: Any) -> None:
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        pytest.skip("needs two processors")
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    def replica() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", TAKE], stdin=pipe, stdout=pipe, text=True, env=environment)

    def taken(process: subprocess.Popen[str]) -> list[int]:
        assert process.stdout is not None
        return json.loads(process.stdout.readline())  # type: ignore[no-any-return]

    first, second = replica(), replica()
    try:
        one, two = taken(first), taken(second)
        assert (len(one), len(two)) == (1, 1)
        assert one != two
        first.kill()
        first.communicate()
        with replica() as third:
            assert taken(third) == one
            third.kill()
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_without_ray_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from monolane.cluster.deployment import connect

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        connect()
    assert "pip install 'ray[serve]" in caught.value.hint
