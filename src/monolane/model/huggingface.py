"""Opens a Hugging Face folder: config.json, and safetensors in one file or in shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import ModelConfig
from monolane.model.data_file import DataFile, is_there
from monolane.model.families import family_of_huggingface
from monolane.model.families.experts import JoinedExperts
from monolane.model.families.keys import note_on_unread_keys
from monolane.model.huggingface_quants import QuantisedFolder, Scheme
from monolane.model.json_object import read_json_object
from monolane.model.safetensors_file import read_safetensors
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights
from monolane.model.weights import Weights
from monolane.progress import Progress

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_COMPARED = 1 << 20  # elements of each of two matrices that are compared at a time


def read_folder_config(folder: Path, progress: Progress | None = None) -> ModelConfig:
    """The config of a folder, which needs to contain ``config.json`` only."""
    return _config(_settings(folder), progress)


def open_folder(folder: Path, progress: Progress | None = None) -> tuple[ModelConfig, Weights]:
    """The config and the weights of a folder."""
    settings = _settings(folder)
    config, family = _config(settings, progress), family_of_huggingface(settings)
    if is_there(folder / _SINGLE):
        tensors = read_safetensors(DataFile(folder / _SINGLE))
    elif is_there(folder / _INDEX):
        tensors = _read_shards(folder)
    else:
        raise _no_weights(folder)
    embed, head = family.file_name("embed"), family.file_name("head")
    if not settings.has("tie_word_embeddings") and head not in tensors:
        config = replace(config, tied=True)  # a missing head is the only sign that it is tied
    if config.tied and embed not in tensors and head in tensors:
        tensors[embed] = tensors[head]  # the one matrix was saved under the name of the head
    scheme = Scheme.of(settings)
    weights: Weights
    if scheme is not None and family.weights:
        raise UnsupportedModelError(f"{folder}: quantised weights of a {config.family}.", "Use the unquantised model.")
    if scheme is not None:
        weights = QuantisedFolder(tensors, family.file_name, scheme)
    else:
        weights = family.weights(tensors, config) if family.weights else StoredWeights(tensors, family.file_name)
    if config.experts and not family.joins_experts:
        weights = JoinedExperts(weights, config.experts)
    if config.tied and head in tensors:
        # The files decide, not the config: a head that differs from the embedding is not tied.
        config = replace(config, tied=_same_matrix(weights, "embed", "head"))
    return config, weights


def _settings(folder: Path) -> Settings:
    if not is_there(folder / _CONFIG):
        raise ModelFileError(
            f"There is no {_CONFIG} in {folder}.", "Give the folder of a Hugging Face model, or a GGUF file."
        )
    return Settings(read_json_object(folder / _CONFIG), str(folder / _CONFIG))


def _config(settings: Settings, progress: Progress | None) -> ModelConfig:
    family = family_of_huggingface(settings)
    config = family.huggingface_config(settings)
    if progress and (note := note_on_unread_keys(settings, family.harmless)):
        progress.note(note)
    return config


def _same_matrix(weights: Weights, one: str, other: str) -> bool:
    """Whether two matrices are equal as bf16. They are read in parts, up to the first difference."""
    shape = weights.shape(one)
    if shape != weights.shape(other) or len(shape) != 2:
        return False
    step = max(1, _COMPARED // max(1, shape[1]))
    return all(
        np.array_equal(weights.rows(one, start, stop), weights.rows(other, start, stop))
        for start in range(0, shape[0], step)
        for stop in [min(start + step, shape[0])]
    )


def _read_shards(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards that the index lists, each from the shard that the index names for it."""
    index = folder / _INDEX
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelFileError(f"{index} has no weight_map from tensors to files.", "It is damaged; fetch it again.")
    stored = {}
    for shard in sorted(set(weight_map.values())):
        # Only a plain file name is accepted: an index must not point outside its folder.
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelFileError(f"{index} names the file {shard!r}.", "It must be a .safetensors file in the folder.")
        stored[shard] = read_safetensors(DataFile(folder / shard))
    tensors = {}
    for name, shard in weight_map.items():
        if name not in stored[shard]:
            raise ModelFileError(
                f"{folder / shard} has no tensor {name!r}, which {_INDEX} says is there.",
                "The files do not belong together; fetch them again.",
            )
        tensors[name] = stored[shard][name]
    return tensors


def _no_weights(folder: Path) -> ModelFileError | UnsupportedModelError:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return UnsupportedModelError(
            f"{folder} has its weights in PyTorch's pickle files, which can run code and are never read.",
            "Use a folder with safetensors files.",
        )
    return ModelFileError(f"There is neither {_SINGLE} nor {_INDEX} in {folder}.", "Fetch the weights too.")
