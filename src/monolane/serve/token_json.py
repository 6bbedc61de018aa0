"""Tokens and their probabilities as JSON. At 5,000 tok/s with five alternatives each these are 30,000 entries a second,
so what does not change about a token is written once and kept, and an answer's piece is put together as one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from monolane.engine.result import TokenLogprob

MOST_KEPT = 1 << 14  # tokens whose spelling is kept


class TokenJson:
    """Spells the tokens of one model, whose bytes ``token_bytes`` knows."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        @lru_cache(MOST_KEPT)
        def text(token: int) -> str:
            return token_bytes(token).decode("utf-8", "replace")

        @lru_cache(MOST_KEPT)
        def entry(token: int) -> str:
            # A token may be a part of a character: then its text is a stand-in, and its bytes tell the truth.
            spelled = {"token": text(token), "bytes": list(token_bytes(token))}
            return msgspec.json.encode(spelled).decode()[:-1] + ',"logprob":'

        self.text = text
        self._entry = entry  # of a token, up to its logprob

    def logprobs(self, entries: Iterable[TokenLogprob]) -> msgspec.Raw:
        """As OpenAI's chat API has them. Logprobs are finite, so that Python writes them as JSON does."""
        entry = self._entry
        content = [
            f'{entry(found.token_id)}{found.logprob!r},"top_logprobs":['
            + ",".join([f"{entry(token)}{logprob!r}}}" for token, logprob in found.top])
            + "]}"
            for found in entries
        ]
        return msgspec.Raw('{"content":[' + ",".join(content) + '],"refusal":null}')
