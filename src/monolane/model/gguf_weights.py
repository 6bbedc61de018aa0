"""Opens a GGUF file: its config, its weights, and its metadata, which contain the tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.config import ModelConfig
from monolane.model.data_file import DataFile
from monolane.model.families import family_of_gguf
from monolane.model.families.keys import note_on_unread_keys
from monolane.model.families.limits import HEAD_DIM_LIMIT, VOCAB_LIMIT
from monolane.model.families.names import gguf_name
from monolane.model.gguf_file import GgufHeader, read_gguf
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights
from monolane.progress import Progress

_ROPE_FACTORS = "rope_freqs.weight"


def open_gguf(path: Path, progress: Progress | None = None) -> tuple[ModelConfig, StoredWeights, dict[str, object]]:
    """The config, the weights and the metadata of a GGUF file."""
    file = DataFile(path)
    header = read_gguf(file)
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModelError(
            f"{path} is one part of a model that was split.", "Merge the parts with llama-gguf-split --merge."
        )
    architecture = Settings(header.metadata, str(path)).text("general.architecture")
    family = family_of_gguf(architecture, str(path))
    settings = Settings(header.metadata, str(path), prefix=f"{architecture}.")
    config = family.gguf_config(settings, _vocab(header, path), header.tensors, _rope_factors(header, path))
    if progress and (note := note_on_unread_keys(settings)):
        progress.note(note)
    head = config.head_dim if family.gguf_interleaved else None
    tensors = {name: _flat(name, tensor) for name, tensor in header.tensors.items()}
    return config, StoredWeights(tensors, family.gguf_name, head), header.metadata


def file_type(metadata: dict[str, object]) -> str:
    """What people call the mixture of formats of a file: q4_k_m, q8_0, …; bf16 where it does not say."""
    from gguf import LlamaFileType

    kind = metadata.get("general.file_type")
    known = {int(member): member.name for member in LlamaFileType}
    name = known.get(kind, "") if isinstance(kind, int) else ""
    name = name.removeprefix("MOSTLY_").lower()
    return "bf16" if name in ("", "guessed", "all_f32", "f16") else name


def _flat(name: str, tensor: StoredTensor) -> StoredTensor:
    """The matrices of experts below each other, and their biases one after the other; the router of a shared expert as
    a matrix of one row."""
    if "_exps." in name and len(tensor.shape) == 3:
        return replace(tensor, shape=(tensor.shape[0] * tensor.shape[1], tensor.shape[2]))
    if name.endswith("_exps.bias") and len(tensor.shape) == 2:
        return replace(tensor, shape=(tensor.shape[0] * tensor.shape[1],))
    if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 1:
        return replace(tensor, shape=(1, tensor.shape[0]))
    return tensor


def _vocab(header: GgufHeader, path: Path) -> int:
    """The size of the vocabulary: the number of rows of the embedding, which every file has."""
    embedding = header.tensors.get(gguf_name("embed"))
    if embedding is None or embedding.shape[0] > VOCAB_LIMIT:
        raise ModelFileError(
            f"{path} has no {gguf_name('embed')} of at most {VOCAB_LIMIT} rows.",
            "It is damaged, or no text model; fetch it again or use another.",
        )
    return embedding.shape[0]


def _rope_factors(header: GgufHeader, path: Path) -> list[float] | None:
    factors = header.tensors.get(_ROPE_FACTORS)
    if factors is None:
        return None
    if len(factors.shape) != 1 or factors.shape[0] > HEAD_DIM_LIMIT or factors.format.widen is None:
        raise ModelFileError(f"{path}: {_ROPE_FACTORS} is no short vector.", "The file is damaged; fetch it again.")
    return [float(factor) for factor in factors.read_vector()]
