"""Logprobs as JSON. At 5,000 tok/s with five alternatives each there are 30,000 entries a second, so the JSON of each
token is encoded once and kept, and a chunk is put together as one string."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from monolane.engine.result import TokenLogprob

MAX_KEPT = 1 << 14  # tokens whose JSON is kept


class TokenJson:
    """The JSON of one model's tokens. ``token_bytes`` gives the bytes of a token."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        @lru_cache(MAX_KEPT)
        def text(token: int) -> str:
            return token_bytes(token).decode("utf-8", "replace")

        @lru_cache(MAX_KEPT)
        def entry(token: int) -> str:
            # A token may be a part of a character: then its text has a replacement character, and its bytes are exact.
            spelled = {"token": text(token), "bytes": list(token_bytes(token))}
            return msgspec.json.encode(spelled).decode()[:-1] + ',"logprob":'

        self.text = text
        self._entry = entry  # the JSON of a token, up to its logprob

    def logprobs(self, entries: Iterable[TokenLogprob]) -> msgspec.Raw:
        """Logprobs in the format of OpenAI's chat API. They are finite, so that Python writes them as JSON does."""
        entry = self._entry
        content = [
            f'{entry(found.token_id)}{found.logprob!r},"top_logprobs":['
            + ",".join([f"{entry(token)}{logprob!r}}}" for token, logprob in found.top])
            + "]}"
            for found in entries
        ]
        return msgspec.Raw('{"content":[' + ",".join(content) + '],"refusal":null}')
