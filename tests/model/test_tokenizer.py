"""Encoding, decoding and streaming with tokenizer.json files, against the library that made them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaTokenizer

from monolane.errors import ModelFileError, UnsupportedModelError, UsageError
from monolane.model.tokenizer import Tokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog 1234567",
    "naïve café déjà vu",
    "日本語と中文 text",
    "😀 👩‍👩‍👧 😀😀",
] * 5
BOS, EOS = "<|begin|>", "<|end|>"
CONFIG = {"bos_token": BOS, "eos_token": {"content": EOS, "special": True}, "pad_token": None, "model_max_length": 99}

# Letters the vocabularies have seen, emoji, ideographs, combining marks, and everything else.
texts = st.text(
    st.one_of(st.sampled_from("the quick 123é日本語😀👩\u200d\u0301▁ \n"), st.characters(exclude_categories=["Cs"]))
)
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def train_byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool_é>", normalized=False)])
    return backend


def train_sentencepiece() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=special, limit_alphabet=40, show_progress=False)
    backend.train_from_iterator(["▁the▁quick▁brown▁fox▁jumps▁over▁the▁lazy▁dog"] * 5, trainer)
    # Only the first three are special; the trainer knows no other way to have byte tokens.
    model = models.BPE(
        vocab=backend.get_vocab(), merges=_merges(backend), unk_token="<unk>", byte_fallback=True, fuse_unk=True
    )
    plain = tokenizers.Tokenizer(model)
    plain.normalizer, plain.decoder = backend.normalizer, backend.decoder
    plain.add_special_tokens(special[:3])
    return plain


def _merges(backend: tokenizers.Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]


@pytest.fixture(scope="module", params=[train_byte_level, train_sentencepiece], ids=["byte-level", "sentencepiece"])
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """The library's tokenizer, and ours read from the file it wrote."""
    oracle = request.param()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    oracle.save(str(path))
    return oracle, Tokenizer.from_file(path, CONFIG)


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """Write a (changed) byte-level tokenizer and read it back with a config."""

    def save(change: Any = None, **config: object) -> Tokenizer:
        backend = train_byte_level()
        if change:
            change(backend)
        backend.save(str(tmp_path / "tokenizer.json"))
        return Tokenizer.from_file(tmp_path / "tokenizer.json", {**CONFIG, **config})

    return save


@quick
@given(text=texts)
def test_encodes_like_the_library_and_gives_the_text_back(pair: Any, text: str) -> None:
    oracle, ours = pair
    ids = ours.encode(text)
    assert ids == oracle.encode(text).ids
    assert ours.decode(ids) == oracle.decode(ids)
    if "▁" not in text:  # SentencePiece takes it for a space
        assert ours.decode(ids) == text


@quick
@given(text=texts, cuts=st.lists(st.integers(0, 60), max_size=20))
def test_stream_adds_up_to_the_text_and_never_shows_half_a_character(pair: Any, text: str, cuts: list[int]) -> None:
    _, ours = pair
    ids = ours.encode(text.replace("\ufffd", ""))
    edges = [0, *sorted(cuts), max([len(ids), *cuts])]
    stream = ours.stream()
    pieces = [stream.push(ids[start:stop]) for start, stop in pairwise(edges)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert stream.flush() == ""
    assert "".join(pieces) == ours.decode(ids)


@quick
@given(data=st.data())
def test_stream_of_any_ids_adds_up_to_decode(pair: Any, data: Any) -> None:
    _, ours = pair
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size + 2), max_size=30))
    stream = ours.stream()
    assert "".join(stream.push([i]) for i in ids) + stream.flush() == ours.decode(ids)


@quick
@given(data=st.data())
def test_byte_level_decoding_of_any_ids_is_the_librarys(data: Any, byte_level: Any) -> None:
    oracle, ours = byte_level
    ids = data.draw(st.lists(st.integers(0, oracle.get_vocab_size() - 2), max_size=30))  # all but the added <tool_é>
    assert ours.decode(ids) == oracle.decode(ids)
    assert ours.decode(ids, skip_special=False) == oracle.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    oracle = train_byte_level()
    oracle.save(str(path))
    return oracle, Tokenizer.from_file(path, CONFIG)


def test_stream_looks_at_each_token_once(byte_level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = byte_level[1]
    looked_at = []
    token_bytes = Tokenizer.token_bytes
    monkeypatch.setattr(Tokenizer, "token_bytes", lambda self, i: looked_at.append(i) or token_bytes(self, i))
    ids = ours.encode("the lazy dog " * 50)
    stream = ours.stream()
    for i in ids:
        stream.push([i])
    assert looked_at == ids


def test_unfinished_character_appears_at_flush(byte_level: Any) -> None:
    ours = byte_level[1]
    ids = ours.encode("ok 🜁")  # never seen in training: one token per byte
    stream = ours.stream()
    assert stream.push(ids[:-1]) == "ok "
    assert stream.flush() == "\ufffd"


def test_special_tokens(byte_level: Any) -> None:
    ours = byte_level[1]
    end = ours.token_id(EOS)
    assert ours.special_tokens == {"bos_token": BOS, "eos_token": EOS}
    assert ours.is_special(end)
    assert not ours.is_special(ours.token_id("t"))
    assert ours.token_id("no such token") is None
    for special in (True, False):  # recognised in a text either way
        assert end in ours.encode(f"fox{EOS}fox", special=special)
    ids = ours.encode(f"fox{EOS}fox")
    assert ours.decode(ids) == "foxfox"
    assert ours.decode(ids, skip_special=False) == f"fox{EOS}fox"
    assert ours.token_text(end) == EOS


def test_added_words_are_text_and_stand_for_themselves(byte_level: Any) -> None:
    ours = byte_level[1]
    ids = ours.encode("<tool_é>")
    assert len(ids) == 1
    assert ours.vocab_size == ids[0] + 1
    assert ours.decode(ids) == ours.token_text(ids[0]) == "<tool_é>"


def test_ids_outside_the_vocabulary_have_no_text(byte_level: Any) -> None:
    ours = byte_level[1]
    assert ours.token_text(ours.vocab_size + 7) == ours.token_text(-1) == ""
    assert ours.decode([ours.vocab_size + 7, ours.token_id("t")]) == "t"


def test_post_processor_decides_about_bos(saved: Any) -> None:
    def add_post_processor(backend: tokenizers.Tokenizer) -> None:
        backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])

    plain = saved().encode("fox")
    assert saved(add_post_processor).encode("fox") == [0, *plain]
    assert saved(add_post_processor).encode("fox", special=False) == plain
    assert saved(add_post_processor).encode("") == [0]
    # The config's word stands above it; what the config does not mention stays.
    assert saved(add_post_processor, add_bos_token=False).encode("fox") == plain
    assert saved(add_post_processor, add_eos_token=True).encode("fox") == [0, *plain, 1]
    assert saved(add_bos_token=True, add_eos_token=True).encode("fox") == [0, *plain, 1]
    assert saved(add_bos_token=True, bos_token=None).encode("fox") == plain
    assert saved(add_post_processor, add_bos_token=True, eos_token=BOS).encode("fox") == [0, *plain]


def test_truncation_and_padding_left_in_a_file_do_not_apply(saved: Any) -> None:
    def leave_traces(backend: tokenizers.Tokenizer) -> None:
        backend.enable_truncation(2)
        backend.enable_padding(length=50)

    assert saved(leave_traces).encode("the quick brown fox") == saved().encode("the quick brown fox")


def test_bos_that_is_no_token_is_an_error(saved: Any) -> None:
    with pytest.raises(ModelFileError, match="<nowhere>"):
        saved(add_bos_token=True, bos_token="<nowhere>")


def test_reads_what_transformers_writes(tmp_path: Path) -> None:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "h": 4, "i": 5, "hi": 6, "▁hi": 7, "<0xC3>": 8, "<0xA9>": 9}
    theirs = LlamaTokenizer(vocab=vocabulary, merges=[("h", "i"), ("▁", "hi")], add_bos_token=True)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.from_file(tmp_path / "tokenizer.json", {"bos_token": "<s>", "add_bos_token": True})
    for text in ("hi hi", "hihi é", "", "x"):
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_lone_surrogate_is_a_usage_error(byte_level: Any) -> None:
    with pytest.raises(UsageError, match=r"U\+D83D.* character 3") as error:
        byte_level[1].encode("cut\ud83d")
    assert error.value.hint


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"model": {"type": "BPE"}}', "\x00\xff"])
def test_missing_or_broken_file(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelFileError, match="tokenizer") as error:
        Tokenizer.from_file(path, {})
    assert error.value.hint


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None])
def test_unknown_way_of_decoding_is_named(saved: Any, decoder: Any) -> None:
    def change(backend: tokenizers.Tokenizer) -> None:
        backend.decoder = decoder

    with pytest.raises(UnsupportedModelError, match=r"WordPiece|no decoder"):
        saved(change)
