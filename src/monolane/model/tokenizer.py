"""Encodes text to token ids and decodes them, all at once or one token at a time.

The ``tokenizers`` library encodes, both for the tokenizer.json of a Hugging Face folder and for the vocabulary in a
GGUF file. Decoding is implemented here: every id stands for fixed bytes, so each token is decoded without the tokens
before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from monolane.errors import ModelFileError, UsageError
from monolane.model.detokenize import TokenStream
from monolane.model.harmony import HarmonyStream, speaks_harmony
from monolane.model.spelling import Spelling

_REFETCH = "Fetch the model again, or take tokenizer.json from the model's own repository."


class Tokenizer:
    """One model's vocabulary. Safe to share between threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        vocab_size: int | None = None,
    ) -> None:
        """``special_tokens`` maps roles ("bos_token", "eos_token", …) to token strings. ``add_bos`` and ``add_eos``
        say whether ``encode`` adds these tokens to a text; None leaves that to the backend's own post-processor.
        ``vocab_size``: where it is known, the backend need not list its vocabulary, which takes some 0.2 s."""
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._spelling = Spelling.of_decoder(backend.decoder)
        self._added: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
        self.special_tokens = dict(special_tokens)
        if vocab_size is None:
            vocab_size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocab_size = vocab_size
        if add_bos is not None or add_eos is not None:
            self._surround(add_bos, add_eos)

    @classmethod
    def from_file(cls, path: Path, tokenizer_config: Mapping[str, object]) -> Tokenizer:
        """Read a tokenizer.json; ``tokenizer_config`` is the content of the tokenizer_config.json beside it."""
        if not path.is_file():
            raise ModelFileError(
                f"{path} is missing: the model has no tokenizer.",
                "Fetch tokenizer.json from the model's own repository; a tokenizer.model alone is not enough.",
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelFileError(f"{path} is not a readable tokenizer: {error}", _REFETCH) from error
        return cls(
            backend, special_tokens_of(tokenizer_config), _flag(tokenizer_config, "bos"), _flag(tokenizer_config, "eos")
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Rebuild the tokenizer described by a GGUF file's ``tokenizer.ggml.*`` metadata."""
        from monolane.model.gguf_tokenizer import build_from_gguf

        return cls(*build_from_gguf(metadata))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``special`` adds the tokens with which the model expects a text to begin and end, such as BOS. It must be off
        for a prompt rendered by a chat template, which has its own. In both cases the string of a special token in the
        text ("<|im_end|>") becomes that token: a caller that builds prompts from untrusted text must remove such
        strings.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The text is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X}) at character "
                f"{error.start}.",
                "Send well-formed text; half of a surrogate pair usually comes from cutting an emoji in two.",
            ) from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary have no text."""
        stream = TokenStream(self, skip_special=skip_special)
        return stream.push(ids) + stream.flush()

    def stream(self, prompt: Sequence[int] = ()) -> TokenStream:
        """A detokenizer for the answer to a prompt. Its texts together are the text that ``decode`` of prompt and
        answer has after that of the prompt alone."""
        stream = HarmonyStream(self) if self.speaks_harmony else TokenStream(self, skip_special=True)
        stream.follow(prompt)
        return stream

    @cached_property
    def speaks_harmony(self) -> bool:
        """Whether answers are messages on channels, of which the first is what the model thinks."""
        return speaks_harmony(self)

    def token_id(self, text: str) -> int | None:
        """The id of the token with exactly this string in the vocabulary; None where there is none."""
        try:
            found: int | None = self._backend.token_to_id(text)
        except UnicodeEncodeError:  # a config may name a lone surrogate, which is not a token
            return None
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether this is a control token (BOS, end of turn, …), which is not part of the visible text."""
        added = self._added.get(token_id)
        return added is not None and bool(added.special)

    def token_text(self, token_id: int) -> str:
        """The text of one token alone; for a special token, its name."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text: part of a character, a word, or nothing."""
        if (added := self._added.get(token_id)) is not None:
            return str(added.content).encode("utf-8")
        if not 0 <= token_id < self.vocab_size:
            return b""
        token: str | None = self._backend.id_to_token(token_id)
        return b"" if token is None else self._spelling.bytes_of(token)

    @property
    def leading_spaces_dropped(self) -> int:
        """The number of spaces that the encoder adds at the start of a text, and that decoding removes."""
        return self._spelling.leading_spaces

    def _surround(self, add_bos: bool | None, add_eos: bool | None) -> None:
        """Make ``encode`` add exactly these tokens; for a flag that is None, keep what the backend does."""
        added_by_backend = self._backend.encode("").ids
        parts, special_tokens = [], []
        for name, wanted in (("bos", add_bos), ("eos", add_eos)):
            token = self.special_tokens.get(f"{name}_token")
            token_id = None if token is None else self.token_id(token)
            if wanted and token is not None and token_id is None:
                raise ModelFileError(
                    f"The tokenizer has no token {token!r}, which is to be its {name}_token.", _REFETCH
                )
            if token_id is None:
                continue
            was_added = token_id in added_by_backend
            if was_added:
                added_by_backend.remove(token_id)  # once: BOS and EOS may be the same token
            if was_added if wanted is None else wanted:
                parts.append(name)
                special_tokens.append({"id": name, "ids": [token_id], "tokens": [token]})
        parts.insert(1 if "bos" in parts else 0, "$A")
        self._backend.post_processor = TemplateProcessing(single=parts, pair=None, special_tokens=special_tokens)


def special_tokens_of(tokenizer_config: Mapping[str, object]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names, as strings ("bos_token": "<s>") or objects."""
    found: dict[str, str] = {}
    for key, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if key.endswith("_token") and isinstance(text, str):
            found[key] = text
    return found


def _flag(tokenizer_config: Mapping[str, object], name: str) -> bool | None:
    value = tokenizer_config.get(f"add_{name}_token")
    return value if isinstance(value, bool) else None
