"""A Hugging Face folder: config.json and safetensors, in one file or in shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import ModelConfig
from monolane.model.data_file import DataFile, identity, is_there
from monolane.model.families import family_of_huggingface
from monolane.model.families.names import huggingface_name
from monolane.model.json_object import read_json_object
from monolane.model.safetensors_file import read_safetensors
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights

_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def read_folder_config(folder: Path) -> ModelConfig:
    """The config of a folder. Nothing but ``config.json`` needs to be there."""
    return _config(_settings(folder))


def open_folder(folder: Path) -> tuple[ModelConfig, StoredWeights]:
    """The config and the weights of a folder."""
    settings = _settings(folder)
    config = _config(settings)
    if is_there(folder / _SINGLE):
        file = DataFile(folder / _SINGLE)
        files, tensors = [file], read_safetensors(file)
    elif is_there(folder / _INDEX):
        files, tensors = _read_shards(folder)
    else:
        raise _no_weights(folder)
    if not settings.has("tie_word_embeddings") and huggingface_name("head") not in tensors:
        config = replace(config, tied=True)  # said nowhere else
    with DataFile(folder / _CONFIG) as config_file:
        key = identity([config_file, *files])
    return config, StoredWeights(tensors, huggingface_name, key)


def _settings(folder: Path) -> Settings:
    if not is_there(folder / _CONFIG):
        raise ModelFileError(
            f"There is no {_CONFIG} in {folder}.", "Give the folder of a Hugging Face model, or a GGUF file."
        )
    return Settings(read_json_object(folder / _CONFIG), str(folder / _CONFIG))


def _config(settings: Settings) -> ModelConfig:
    return family_of_huggingface(settings).huggingface_config(settings)


def _read_shards(folder: Path) -> tuple[list[DataFile], dict[str, StoredTensor]]:
    """The shards an index lists, and each tensor from the shard the index says it is in."""
    index = folder / _INDEX
    places = read_json_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise ModelFileError(f"{index} has no weight_map from tensors to files.", "It is damaged; fetch it again.")
    files, stored = [], {}
    for shard in sorted(set(places.values())):
        # A plain name: an index must not be able to point outside its folder.
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelFileError(f"{index} names the file {shard!r}.", "It must be a .safetensors file in the folder.")
        file = DataFile(folder / shard)
        files.append(file)
        stored[shard] = read_safetensors(file)
    tensors = {}
    for name, shard in places.items():
        if name not in stored[shard]:
            raise ModelFileError(
                f"{folder / shard} has no tensor {name!r}, which {_INDEX} says is there.",
                "The files do not belong together; fetch them again.",
            )
        tensors[name] = stored[shard][name]
    return files, tensors


def _no_weights(folder: Path) -> ModelFileError | UnsupportedModelError:
    if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
        return UnsupportedModelError(
            f"{folder} has its weights in PyTorch's pickle files, which can run code and are never read.",
            "Use a folder with safetensors files.",
        )
    return ModelFileError(f"There is neither {_SINGLE} nor {_INDEX} in {folder}.", "Fetch the weights too.")
