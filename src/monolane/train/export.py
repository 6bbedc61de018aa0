"""A trained model as a folder in the published form, which the engine opens like any other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from monolane.cache import atomic_write, make_folder
from monolane.errors import UnsupportedModelError, UsageError
from monolane.model.tokenizer import Tokenizer
from monolane.train import checkpoint
from monolane.train.laneformer import Laneformer
from monolane.train.recipe import Recipe
from monolane.train.training import load_weights
from monolane.train.vocabulary import END_OF_TEXT


def export(file: Path, data: Path, out: Path) -> None:
    """Write config, weights in bf16 and tokenizer. ``file`` is a checkpoint, ``data`` the folder it was trained on."""
    recipe = Recipe(**checkpoint.read_state(file)["recipe"])
    if recipe.ladder:
        raise UnsupportedModelError(
            f"{recipe.model} has Ladder Residual, which is trained for comparison alone.",
            "No config can say so, and no engine would read it. Export a plain model or a Laneformer with a delay.",
        )
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": recipe.shape.context,
    }
    tokenizer = Tokenizer.from_file(data / "tokenizer.json", tokenizer_config)
    end = tokenizer.token_id(END_OF_TEXT)
    if end is None or tokenizer.vocab_size > recipe.shape.vocab:
        raise UsageError(f"{data} is not what {recipe.model} was trained on.", "Give the folder of that run's --data.")
    make_folder(out)
    shutil.copyfile(data / "tokenizer.json", out / "tokenizer.json")
    _write_json(out / "tokenizer_config.json", tokenizer_config)
    _write_json(out / "generation_config.json", {"eos_token_id": end})
    _write_json(out / "config.json", recipe.config | {"eos_token_id": end, "torch_dtype": "bfloat16"})
    model = Laneformer(recipe.shape)
    load_weights(file, model)
    # Tied matrices are one parameter, which has the name of the embedding.
    weights = {name: parameter.detach().to(torch.bfloat16) for name, parameter in model.named_parameters()}
    with atomic_write(out / "model.safetensors") as target:
        target.write(safetensors.torch.save(weights, {"format": "pt"}))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=2).encode())
