"""Which replica a request goes to: the one that has its conversation in a KV cache, unless that one is too busy."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

# A request leaves its replica where the least loaded one has so many requests less: to wait for one other answer is
# mostly shorter than to compute a conversation again.
SPILL = 2
PROMPT_CHARS = 256  # of a plain prompt, which has no messages: those that follow come and go while it is edited
PROMPT_TOKENS = 64


def conversation_of(body: bytes) -> bytes | None:
    """What stays the same in all requests of a conversation: everything up to the user's first message. None where the
    body has no prompt."""
    try:
        asked = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None  # the replica will say what is wrong with it
    if not isinstance(asked, dict):
        return None
    beginning = _beginning(asked)
    if beginning is None:
        return None
    return msgspec.json.encode([asked.get("system"), asked.get("instructions"), beginning])


def _beginning(asked: Mapping[str, Any]) -> Any:
    turns, prompt = asked.get("messages", asked.get("input")), asked.get("prompt")
    if isinstance(turns, str):
        return [{"role": "user", "content": turns}]  # what it will be in the next request
    if isinstance(turns, list):
        users = (number for number, turn in enumerate(turns) if isinstance(turn, dict) and turn.get("role") == "user")
        return turns[: next(users, 0) + 1]
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]  # of several, which one replica answers
    if isinstance(prompt, str):
        return prompt[:PROMPT_CHARS]
    return prompt[:PROMPT_TOKENS] if isinstance(prompt, list) else None


def ranked(conversation: bytes | None, loads: Mapping[str, int], tried: Collection[str] = ()) -> list[str]:
    """Replicas by preference. ``loads``: how many requests each has.

    Every conversation has an order of its own of all replicas (rendezvous hashing). So when a replica goes, only its
    conversations move, and to all others evenly; when one comes, it takes an even share from each.
    """
    if not loads:
        return []
    place = {name: _score(conversation, name) for name in loads}
    by_load = sorted(loads, key=lambda name: (name in tried, loads[name], place[name]))
    if conversation is None:
        return by_load
    own = min(loads, key=lambda name: (name in tried, place[name]))
    if loads[own] >= loads[by_load[0]] + SPILL:
        return by_load
    return [own, *(name for name in by_load if name != own)]


def _score(conversation: bytes | None, replica: str) -> bytes:
    return hashlib.blake2b((conversation or b"") + b"\0" + replica.encode(), digest_size=8).digest()
