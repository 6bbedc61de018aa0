"""One file from which a run goes on: weights and optimizer as safetensors, and its state as JSON in the file's header.

It is one file so that it can be replaced at once: weights, optimizer and state always belong to the same step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from monolane.cache import atomic_write
from monolane.errors import ModelFileError

_STATE = "state"


def save(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace the file, or leave it as it was."""
    data = safetensors.torch.save(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, {_STATE: json.dumps(state)}
    )
    with atomic_write(path) as file:
        file.write(data)


def read_state(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        try:
            state = json.loads((file.metadata() or {})[_STATE])
        except (KeyError, ValueError) as error:
            raise _damaged(path, error) from error
    if not isinstance(state, dict):
        raise _damaged(path, "its state is no JSON object")
    return state


def load(path: Path, shapes: Mapping[str, Iterable[int]]) -> dict[str, Tensor]:
    """Some of the tensors, which must have these shapes."""
    loaded = {}
    with _opened(path) as file:
        there = set(file.keys())
        for name, shape in shapes.items():
            if name not in there or list(file.get_slice(name).get_shape()) != list(shape):
                raise _damaged(path, f"it has no {name} of shape {list(shape)}")
            loaded[name] = file.get_tensor(name)
    return loaded


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise ModelFileError(f"There is no {path}.", "Train a model first: python -m monolane.train run.")
    try:
        return safetensors.safe_open(path, "pt")
    except safetensors.SafetensorError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, why: object) -> ModelFileError:
    return ModelFileError(f"{path} is no checkpoint of this model: {why}.", "Delete it to train from the beginning.")
