"""Finds the model that a user names: an entry of the catalogue, a folder, a GGUF file, or the config of a hub id."""

from __future__ import annotations

import difflib
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monolane.cache import cache_folder
from monolane.errors import FetchError, ModelFileError, UsageError
from monolane.model.catalogue import CATALOGUE as MODELS
from monolane.model.catalogue import BundledModel, HubModel, NamedModel
from monolane.model.data_file import DataFile
from monolane.model.families.names import gguf_name
from monolane.model.fetch import HUB_ID
from monolane.model.format import BF16
from monolane.model.gguf_file import read_gguf
from monolane.model.gguf_weights import open_gguf
from monolane.model.hub import Hub
from monolane.model.json_object import read_json_object
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor
from monolane.planner import low_bit
from monolane.planner.catalogue import CATALOGUE, Entry
from monolane.planner.config_reader import language_part, read_delay, read_shape
from monolane.planner.parts import Part
from monolane.planner.precision import PUBLISHED, Precision, published
from monolane.planner.shape import Shape, shape_of
from monolane.progress import Silent

CONFIG = "config.json"
# What the name of a tensor of a GGUF file contains -> its part; the first that fits.
_GGUF_FEED_FORWARD = {
    "_exps.": Part.ROUTED,
    "_shexp.": Part.SHARED,
    ".ffn_gate_inp.": Part.ROUTER,
    ".ffn_": Part.DENSE,
}
CONFIG_LIMIT = 16 << 20  # bytes: far more than any config has


@dataclass(frozen=True)
class Described:
    """A model as the planner sees it."""

    name: str
    shape: Shape
    as_published: Callable[[], Precision]  # raises for an unknown quantisation; not called if a dtype was chosen
    delay: int = 0
    assumed: Mapping[str, str] = field(default_factory=dict)

    def precision(self, dtype: str) -> Precision:
        return self.as_published() if dtype == PUBLISHED else low_bit.chosen(dtype, self.shape)


def describe(spec: str, hub: Hub | None = None) -> Described:
    """The model of this name, path or hub id. No weights are fetched or read."""
    if (entry := CATALOGUE.get(spec.lower())) is not None:
        return from_entry(entry)
    model = MODELS.get(spec)
    path = _local(spec) or _named(model)
    if path is not None:
        return _gguf(path) if path.suffix.lower() == ".gguf" and path.is_file() else _folder(path)
    if isinstance(model, HubModel):
        return _hub_config(model.hub_repo, hub or Hub())
    if HUB_ID.fullmatch(spec) and not spec.endswith(".gguf"):
        return _hub_config(spec, hub or Hub())
    close = difflib.get_close_matches(spec.lower(), CATALOGUE, n=1, cutoff=0.5)
    raise UsageError(
        f"There is no model {spec!r}: no such name, file or folder.",
        (f"Did you mean {close[0]}? " if close else "")
        + "'monolane plan --list' shows the names; a folder with config.json, a .gguf file or a hub id do too.",
    )


def _named(model: NamedModel | HubModel | BundledModel | None) -> Path | None:
    """The file or folder of a model that 'monolane models' lists, where it is here."""
    if model is None or isinstance(model, HubModel):
        return None
    path = model.folder if isinstance(model, BundledModel) else cache_folder("models") / model.file_name
    return path if path.exists() else None


def from_entry(entry: Entry) -> Described:
    return _described(entry.title, Settings(entry.config, entry.name), entry.assumed)


def _described(name: str, settings: Settings, assumed: Mapping[str, str] | None = None) -> Described:
    settings = language_part(settings)
    return Described(name, read_shape(settings), lambda: published(settings), read_delay(settings), assumed or {})


def _local(spec: str) -> Path | None:
    try:
        path = Path(spec).expanduser()
        return path if spec.strip() and path.exists() else None
    except (OSError, RuntimeError):  # the path is too long, permission is denied, or there is no such home folder
        return None


def _folder(path: Path) -> Described:
    file = path / CONFIG if path.is_dir() else path
    if file.name != CONFIG or not file.exists():
        raise ModelFileError(
            f"There is no {CONFIG} in {path}." if path.is_dir() else f"{path} is no model.",
            f"Give a folder with a {CONFIG}, or a .gguf file.",
        )
    return _described(file.resolve().parent.name, Settings(read_json_object(file), str(file)))


def _hub_config(repo: str, hub: Hub) -> Described:
    """Read the config of a model that was fetched earlier, or fetch the config alone from the hub."""
    fetched = cache_folder("models") / "hub" / repo.replace("/", "--")
    if fetched.is_dir():
        return _folder(fetched)
    try:
        repository = hub.open(repo)
        file = next((file for file in repository.files if file.name == CONFIG), None)
        if file is None or file.size_bytes > CONFIG_LIMIT:
            raise FetchError(f"it has no {CONFIG}" if file is None else f"its {CONFIG} is too large")
        with tempfile.TemporaryDirectory() as folder:
            hub.download(repository, file, Path(folder) / CONFIG, Silent())
            settings = Settings(read_json_object(Path(folder) / CONFIG), f"{repo}: {CONFIG}")
    except FetchError as error:
        raise FetchError(
            f"The config of {repo} could not be fetched from the Hugging Face hub: {error.message}",
            error.hint or "Check the id and the network; or give a folder, a .gguf file or a name of 'plan --list'.",
        ) from error
    return _described(repo, settings)


def _gguf(path: Path) -> Described:
    config = open_gguf(path)[0]
    with DataFile(path) as file:
        tensors = read_gguf(file).tensors
    return Described(path.stem, shape_of(config), lambda: stored_precision(tensors))


def stored_precision(tensors: Mapping[str, StoredTensor]) -> Precision:
    """Bits per weight of a GGUF file as it is streamed, in our formats, averaged over each part."""
    sizes: dict[Part, int] = {}
    elements: dict[Part, int] = {}
    for name, tensor in tensors.items():
        part = gguf_part(name, tensor)
        sizes[part] = sizes.get(part, 0) + _streamed_bytes(tensor)
        elements[part] = elements.get(part, 0) + math.prod(tensor.shape)
    bits = {part: 8 * size / elements[part] for part, size in sizes.items()}
    bits.setdefault(Part.HEAD, bits[Part.EMBEDDING])  # a tied head reads the embedding
    return Precision("as stored", bits)


def _streamed_bytes(tensor: StoredTensor) -> int:
    if len(tensor.shape) == 1:
        return tensor.size
    format = tensor.format.format if tensor.is_held() else BF16
    *rows, cols = tensor.shape  # experts are stacked
    return math.prod(rows) * format.row_bytes(cols)


def gguf_part(name: str, tensor: StoredTensor) -> Part:
    """The part that a tensor of a GGUF file belongs to."""
    if len(tensor.shape) == 1 or name.endswith(".bias"):
        return Part.SMALL
    if name in (gguf_name("embed"), gguf_name("head")):
        return Part.EMBEDDING if name == gguf_name("embed") else Part.HEAD
    for word, part in _GGUF_FEED_FORWARD.items():
        if word in name:
            return part
    return Part.ATTENTION
