"""Whole models from a path: reader, tokenizer, chat template and stop tokens together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_models import change_config, gguf_with_tokenizer, save_folder, save_huggingface

from monolane.errors import ModelFileError
from monolane.model.load import load_config, load_model


def test_folder(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny")
    change_config(folder, eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    model = load_model(folder)
    assert model.name == "tiny"
    assert model.path == folder
    assert model.stop_tokens == {5, 7}
    assert model.tokenizer.token_id("w9") == 9
    assert model.chat is not None
    assert model.chat.render([{"role": "user", "content": "hello"}]) == "<user>hello"
    assert model.weights.rows("embed", 0, 101).shape == (101, 48)
    assert load_config(folder) == model.config


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [5, 7]}, 3, {5, 7}),
        ({"eos_token_id": 5}, [3, 4], {5}),
        ({"eos_token_id": None}, [3, 4], {3, 4}),
        ({"temperature": 0.5}, 3, {3}),
        (None, 3, {3}),
        (None, None, {2}),
        ({}, ..., {2}),
    ],
)
def test_end_tokens_by_precedence(tmp_path: Path, generation: Any, config: Any, ends: set[int]) -> None:
    """generation_config.json, config.json, the tokenizer's eos_token: the first that names any."""
    folder = save_folder(tmp_path)
    change_config(folder, eos_token_id=config)
    path = folder / "generation_config.json"
    path.unlink(missing_ok=True)
    if generation is not None:
        path.write_text(json.dumps(generation))
    assert load_model(folder).stop_tokens == ends
    named = transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id
    if named is not None:
        assert ends == set(named if isinstance(named, list) else [named])


def test_folder_without_chat_template(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    assert load_model(folder).chat is None


def test_gguf(tmp_path: Path) -> None:
    path = gguf_with_tokenizer(["<|im_end|>", "<|other|>", "<|endoftext|>"]).write(tmp_path / "tiny-q.gguf")
    model = load_model(path)
    assert model.name == "tiny-q"
    assert model.stop_tokens == {51, 52, 54}
    assert model.tokenizer.encode("ab", special=False) == [2]
    assert model.chat is not None
    assert model.chat.render([{"role": "user", "content": "hello"}]) == "<user>hello"
    assert load_config(path) == model.config


def test_config_of_a_folder_needs_nothing_else(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != "config.json":
            path.unlink()
    assert load_config(tmp_path).hidden == 48


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing at"):
        load_model(tmp_path / "missing")
    with pytest.raises(ModelFileError, match="nothing at"):
        load_model(tmp_path / ("x" * 5000))
    (tmp_path / "model.txt").write_text("")
    with pytest.raises(ModelFileError, match="neither"):
        load_model(tmp_path / "model.txt")
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        load_model(tmp_path)


def test_missing_or_foreign_tokenizer(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "folder", words=102)
    with pytest.raises(ModelFileError, match=r"102 tokens.*only 101"):
        load_model(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_model(folder)
    path = gguf_with_tokenizer([f"<{index}>" for index in range(16)]).write(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"68 tokens.*only 67"):
        load_model(path)


@pytest.mark.parametrize("end", [101, -1, "2", True, [3, 400]])
def test_end_token_outside_the_vocabulary(tmp_path: Path, end: Any) -> None:
    folder = save_folder(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    with pytest.raises(ModelFileError, match=r"generation_config\.json.*end token"):
        load_model(folder)
