"""The JSON text of logprobs is the same as that of a JSON encoder, whatever the bytes of the tokens."""

from __future__ import annotations

import json

import msgspec

from monolane.engine.result import TokenLogprob
from monolane.serve.token_json import TokenJson

WORDS = ["a", '"', "\\", "\n", "ö", "🙂", "<|end|>"]
TOKENS = [*(word.encode() for word in WORDS), b"\xf0\x9f", b""]  # then half of a character, and nothing
SPELLED = TokenJson(TOKENS.__getitem__)


def test_every_token_is_spelled_with_its_bytes() -> None:
    entries = [TokenLogprob(i, -0.1 * i, ((i, -0.1 * i), (0, -9999.0))) for i in range(len(TOKENS))]
    for _ in range(2):  # the second time from what was kept
        written = json.loads(msgspec.json.encode({"logprobs": SPELLED.logprobs(entries)}))["logprobs"]
        assert written["refusal"] is None
        for entry, token, found in zip(entries, TOKENS, written["content"], strict=True):
            assert bytes(found["bytes"]) == token
            assert found["token"] == token.decode("utf-8", "replace") == SPELLED.text(entry.token_id)
            assert found["logprob"] == entry.logprob
            assert [(bytes(top["bytes"]), top["logprob"]) for top in found["top_logprobs"]] == [
                (token, entry.logprob),
                (b"a", -9999.0),
            ]


def test_no_tokens() -> None:
    assert json.loads(msgspec.json.encode(SPELLED.logprobs([]))) == {"content": [], "refusal": None}
