"""Lists, downloads and verifies files of the Hugging Face hub. An interrupted download is resumed."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from monolane.cache import disk_errors, require_disk_space, sha256_of
from monolane.errors import FetchError, MonolaneError, UnsupportedModelError
from monolane.model.catalogue import NamedModel
from monolane.progress import Progress, bar

REACH_SECONDS = 4.0  # timeout of the first request, which shows whether the hub can be reached
STALL_SECONDS = 15.0  # timeout of a download that no longer delivers bytes

# Weights are fetched as safetensors only, because pickle files can contain code. No .py file is ever fetched.
WANTED = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer_config\.json|chat_template\.jinja"
    r"|model\.safetensors\.index\.json|model[\w.-]*\.safetensors"
)


@dataclass(frozen=True)
class HubFile:
    """One file of a repository."""

    name: str
    size_bytes: int
    sha256: str | None  # None for small files, which the hub does not keep in LFS


@dataclass(frozen=True)
class Repository:
    """A repository's files as of one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


class Hub:
    """The hub at ``endpoint``; None is the default of huggingface_hub."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def open(self, repo: str) -> Repository:
        """List the files of a repository. Fails after a few seconds if the hub cannot be reached."""
        from huggingface_hub import HfApi

        with _hub_errors(repo):
            info = HfApi(endpoint=self._endpoint).model_info(repo, files_metadata=True, timeout=REACH_SECONDS)
        files = tuple(
            HubFile(entry.rfilename, entry.size, entry.lfs.sha256 if entry.lfs else None)
            for entry in info.siblings or ()
            if entry.size is not None
        )
        return Repository(repo, info.sha or "main", files)

    def download(self, repository: Repository, file: HubFile, path: Path, progress: Progress) -> None:
        """Download a file to ``path``, or the rest of it; retries as long as each try delivers bytes."""
        progress.advance(min(_size(path), file.size_bytes))
        while (before := _size(path)) < file.size_bytes:
            failure = FetchError(f"{file.name} ends after {before:,} of {file.size_bytes:,} bytes")
            try:
                self._receive(repository, file, path, progress)
            except FetchError as error:
                failure = error
            if _size(path) <= before:
                raise failure
        if _size(path) > file.size_bytes:
            path.unlink()
            raise FetchError(f"{file.name} is longer than the hub said: {file.size_bytes:,} bytes")
        if file.size_bytes == 0:
            path.touch()

    def _receive(self, repository: Repository, file: HubFile, path: Path, progress: Progress) -> None:
        from huggingface_hub import get_session, get_token, hf_hub_url, hf_raise_for_status

        url = hf_hub_url(repository.repo, file.name, revision=repository.commit, endpoint=self._endpoint)
        start = _size(path)
        headers = {"Range": f"bytes={start}-", "Accept-Encoding": "identity"}
        if token := get_token():
            headers["Authorization"] = f"Bearer {token}"  # the HTTP client drops it on a redirect to another host
        with (
            _hub_errors(repository.repo),
            get_session().stream("GET", url, headers=headers, timeout=STALL_SECONDS, follow_redirects=True) as response,
        ):
            hf_raise_for_status(response)
            resumed = response.status_code == 206
            if not resumed:
                progress.advance(-start)
            room = file.size_bytes - (start if resumed else 0)
            with path.open("ab" if resumed else "wb") as output:
                for block in response.iter_bytes():
                    output.write(block)
                    progress.advance(len(block))
                    room -= len(block)
                    if room < 0:  # longer than announced: do not fill the disk; the caller raises the error
                        return


class HubSource:
    """The source of named models that fetches their files from the hub."""

    name = "Hugging Face hub"
    folder = "hub"

    def __init__(self, hub: Hub | None = None) -> None:
        self._hub = hub or Hub()

    def fetch(self, model: NamedModel, into: Path, progress: Progress) -> Path:
        repository = self._hub.open(model.hub_repo)
        file = next((file for file in repository.files if file.name == model.hub_file), None)
        if file is None:
            raise FetchError(f"{model.hub_repo} does not have {model.hub_file} any more")
        if file.sha256 != model.sha256:
            raise FetchError(f"{model.hub_repo} now has another file: SHA-256 {file.sha256}, expected {model.sha256}")
        path = into / model.file_name
        require_disk_space(into, model.size_bytes - _size(path), model.name)
        with disk_errors(path), bar(progress, model.size_bytes, f"Downloading {model.name}"):
            self._hub.download(repository, file, path, progress)
        return path


def wanted_files(repository: Repository) -> list[HubFile]:
    """The files of a repository that a model needs; raises if the repository is not such a model."""
    files = [file for file in repository.files if WANTED.fullmatch(file.name)]
    names = {file.name for file in files}
    missing = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("model.safetensors")
    if missing:
        raise UnsupportedModelError(
            f"{repository.repo} on the hub has no {', no '.join(missing)}.",
            "A model needs config.json, tokenizer.json and its weights as safetensors. "
            "If the repository holds GGUF files, download one of them and give its path.",
        )
    return files


def download_folder(hub: Hub, repository: Repository, into: Path, progress: Progress) -> None:
    """Download the files that a model needs into a folder, and check each against the size and hash of the hub."""
    files = wanted_files(repository)
    total = sum(file.size_bytes for file in files)
    require_disk_space(into, total - sum(_size(into / file.name) for file in files), repository.repo)
    with disk_errors(into), bar(progress, total, f"Downloading {repository.repo}"):
        for file in files:
            hub.download(repository, file, into / file.name, progress)
    with bar(progress, total, f"Verifying {repository.repo}"):
        for file in files:
            actual = sha256_of(into / file.name, progress)
            if file.sha256 not in (None, actual):
                (into / file.name).unlink()
                raise FetchError(
                    f"{file.name} of {repository.repo} arrived damaged: SHA-256 {actual}, expected {file.sha256}.",
                    "It was removed; run the same command again.",
                )


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub into a FetchError with one line of explanation."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        yield
    except MonolaneError:
        raise
    except OfflineModeIsEnabled as error:
        raise FetchError("switched off by HF_HUB_OFFLINE") from error
    except GatedRepoError as error:
        raise FetchError(f"{repo} is restricted: accept its terms on its page, then set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise FetchError(f"there is no model {repo}, or it is private and HF_TOKEN does not open it") from error
    except HfHubHTTPError as error:
        raise FetchError(f"the hub answered with an error: {_first_line(error)}") from error
    except Exception as error:
        # Connection errors. Their class depends on the HTTP client, which huggingface_hub has changed more than once.
        if isinstance(error, OSError) and error.errno not in (None, errno.ECONNRESET, errno.ECONNREFUSED):
            raise
        raise FetchError(f"the connection failed ({type(error).__name__}: {_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
