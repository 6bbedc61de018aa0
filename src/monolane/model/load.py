"""Loads a model from a path: config, weights, tokenizer, chat template and stop tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakKeyDictionary

from monolane.errors import ModelFileError
from monolane.model.chat import ChatTemplate, chat_template_from_folder
from monolane.model.config import ModelConfig
from monolane.model.data_file import is_there
from monolane.model.families.experts import JoinedExperts
from monolane.model.families.gpt_oss import GptOssWeights
from monolane.model.format import FormatOf, all_bf16
from monolane.model.generation_config import SuggestedSampling, sampling_of_config, sampling_of_metadata
from monolane.model.gguf_weights import file_type, open_gguf
from monolane.model.huggingface import open_folder, read_folder_config
from monolane.model.huggingface_quants import QuantisedFolder
from monolane.model.json_object import read_json_object
from monolane.model.quantise import quantised
from monolane.model.settings import shown
from monolane.model.tokenizer import Tokenizer
from monolane.model.weights import Weights, check_weights
from monolane.progress import Progress

_HEAD_START_S = 0.5  # of a kernel's compiler before the tokenizer
_OPENED: WeakKeyDictionary[Weights, Path] = WeakKeyDictionary()  # where weights were opened
# The tokens that end an answer in the chat formats of the supported families. A GGUF file often names another one.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|return|>", "<|call|>")


@dataclass(frozen=True)
class Tokenization:
    """How text becomes a model's tokens, and when its answers end."""

    tokenizer: Tokenizer
    chat: ChatTemplate | None = None
    stop_tokens: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Model:
    """A model whose config, weights and tokenizer fit each other. No weights are in memory yet."""

    name: str
    path: Path
    config: ModelConfig
    weights: Weights
    tokenization: Callable[[], Tokenization]  # may wait until it is there
    dtype: str = "bf16"  # the usual name of what the weights are stored as: bf16, q4_k_m, q8_0, …
    sampling: SuggestedSampling = field(default_factory=SuggestedSampling)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenization().tokenizer

    @property
    def chat(self) -> ChatTemplate | None:
        return self.tokenization().chat

    @property
    def stop_tokens(self) -> frozenset[int]:
        return self.tokenization().stop_tokens


def load_model(path: Path, progress: Progress | None = None) -> Model:
    """The model in a Hugging Face folder or a GGUF file. ``progress`` gets a note on keys of the config that are
    ignored."""
    model = start_loading(path, progress)
    model.tokenization()
    return model


def start_loading(path: Path, progress: Progress | None = None) -> Model:
    """The same, but its tokenizer is made meanwhile: it may take as long as a kernel takes to start compiling. What is
    wrong with it is raised where it is used."""
    model = _load_gguf(path, progress) if _is_gguf(path) else _load_folder(path, progress)
    _OPENED[model.weights] = path.resolve()
    return model


def opened_from(weights: Weights) -> Path | None:
    """The file or folder that weights were opened from, where another process can open them; None for others."""
    return _OPENED.get(weights)


def open_weights(path: Path) -> tuple[ModelConfig, Weights]:
    """The config and the weights alone."""
    return open_gguf(path)[:2] if _is_gguf(path) else open_folder(path)


def _meanwhile(make: Callable[[], Tokenization]) -> Callable[[], Tokenization]:
    """The tokenizer is begun a moment later, unless it is asked for before: threads of Python take turns, and the
    compiler of a kernel, which a first start waits for longest, should be running by then."""
    asked = threading.Event()

    def made_later() -> Tokenization:
        asked.wait(_HEAD_START_S)
        return make()

    worker = ThreadPoolExecutor(1, "tokenizer")
    made = worker.submit(made_later)
    worker.shutdown(wait=False)

    def result() -> Tokenization:
        asked.set()
        return made.result()

    return result


def load_config(path: Path, progress: Progress | None = None) -> ModelConfig:
    """The config alone; a folder needs to contain ``config.json`` only."""
    return load_config_and_formats(path, None, progress)[0]


def load_config_and_formats(
    path: Path, quantise: str | None = None, progress: Progress | None = None
) -> tuple[ModelConfig, FormatOf]:
    """The config, and the formats of the matrices; bf16 where a folder contains ``config.json`` only."""
    if _is_gguf(path):
        config, weights, _ = open_gguf(path, progress)
        return config, quantised(weights, quantise).format
    if any(path.glob("*.safetensors")):
        config, stored = open_folder(path, progress)
        return config, quantised(stored, quantise).format
    return read_folder_config(path, progress), all_bf16


def _is_gguf(path: Path) -> bool:
    if not is_there(path):
        problem = f"There is nothing at {path}."
    elif path.is_dir():
        return False
    elif path.suffix.lower() == ".gguf":
        return True
    else:
        problem = f"{path} is neither a folder nor a .gguf file."
    hint = "Give the folder of a Hugging Face model (config.json, tokenizer.json, safetensors) or a GGUF file."
    raise ModelFileError(problem, hint)


def _load_folder(folder: Path, progress: Progress | None) -> Model:
    config, weights = open_folder(folder, progress)
    check_weights(config, weights)

    def make() -> Tokenization:
        tokenizer_config = _read_if_there(folder / "tokenizer_config.json")
        tokenizer = Tokenizer.from_file(folder / "tokenizer.json", tokenizer_config)
        _check_vocabulary(tokenizer, config, folder)
        chat = chat_template_from_folder(folder, tokenizer_config)
        return Tokenization(tokenizer, chat, frozenset(_folder_ends(folder, config, tokenizer)))

    stored = weights.stored if isinstance(weights, JoinedExperts) else weights
    dtype = stored.dtype if isinstance(stored, QuantisedFolder | GptOssWeights) else "bf16"
    sampling = sampling_of_config(_read_if_there(folder / "generation_config.json"), folder / "generation_config.json")
    return Model(folder.resolve().name, folder, config, weights, _meanwhile(make), dtype, sampling)


def _folder_ends(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> set[int]:
    """The stop tokens of ``generation_config.json``, or else of ``config.json``, or else of the tokenizer.

    Only the first that has any is used, as in transformers: the ``config.json`` of a fine-tuned model often still has
    the end token of its base model.
    """
    for name in ("generation_config.json", "config.json"):
        found = _read_if_there(folder / name).get("eos_token_id")
        if stops := _checked_ids(found if isinstance(found, list) else [found], config, folder / name):
            return stops
    end = tokenizer.token_id(tokenizer.special_tokens.get("eos_token", ""))
    return set() if end is None else {end}


def _load_gguf(path: Path, progress: Progress | None) -> Model:
    config, weights, metadata = open_gguf(path, progress)
    check_weights(config, weights)

    def make() -> Tokenization:
        tokenizer = Tokenizer.from_gguf(metadata)
        _check_vocabulary(tokenizer, config, path)
        named = [metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
        known = [tokenizer.token_id(text) for text in _ENDS]
        controls = [token for token in known if token is not None and tokenizer.is_special(token)]
        stops = _checked_ids([*named, *controls], config, path)
        source = metadata.get("tokenizer.chat_template")
        chat = ChatTemplate(source, tokenizer.special_tokens) if isinstance(source, str) else None
        return Tokenization(tokenizer, chat, frozenset(stops))

    sampling = sampling_of_metadata(metadata, path)
    return Model(path.stem, path, config, weights, _meanwhile(make), file_type(metadata), sampling)


def _read_if_there(path: Path) -> dict[str, object]:
    return read_json_object(path) if is_there(path) else {}


def _check_vocabulary(tokenizer: Tokenizer, config: ModelConfig, path: Path) -> None:
    if tokenizer.vocab_size > config.vocab:
        raise ModelFileError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {config.vocab}.",
            "They do not belong together; fetch both from the same source.",
        )


def _checked_ids(values: Iterable[object], config: ModelConfig, path: Path) -> set[int]:
    """The values as token ids, without None; raises for a value that is not a token of the model."""
    ids: set[int] = set()
    for value in values:
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < config.vocab:
            raise ModelFileError(
                f"{path}: the end token {shown(value)} is no token of the model.",
                "The file is damaged; fetch it again.",
            )
        ids.add(value)
    return ids
