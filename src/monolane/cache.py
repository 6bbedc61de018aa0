"""The cache folder, for everything that can be fetched or made again, and atomic writes into it."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from monolane.errors import ResourceError
from monolane.progress import Progress, Silent

BLOCK_BYTES = 1 << 20

_ANOTHER_PLACE = "set MONOLANE_CACHE to a folder with room that you can write to"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}


def cache_root() -> Path:
    """``MONOLANE_CACHE``, or ``~/.cache/monolane``. It may not exist yet."""
    chosen = os.environ.get("MONOLANE_CACHE", "").strip() or "~/.cache/monolane"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        raise ResourceError(
            f"The cache folder {chosen} cannot be found: {error}", f"Please {_ANOTHER_PLACE}."
        ) from error


def cache_folder(purpose: Literal["models", "kernels", "tapes"]) -> Path:
    """The subfolder of the cache for one kind of file. It may not exist yet."""
    return cache_root() / purpose


def make_folder(path: Path) -> Path:
    """Create a folder and its parents; raises an error with a hint if that is not possible."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def disk_errors(path: Path, otherwise: str = _ANOTHER_PLACE) -> Iterator[None]:
    """Turn the OSError of a full or read-only disk into an error that says what to do. ``otherwise``: what else a user
    can do than make room there."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(
                f"The disk is full: {error.filename or path} could not be written ({error.strerror}).",
                f"Free some space, or {otherwise}; then run the same command again.",
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise ResourceError(
                f"{error.filename or path} cannot be written: {error.strerror}.",
                f"Change its permissions, or {otherwise}.",
            ) from error
        raise


def require_disk_space(path: Path, bytes_needed: int, what: str, otherwise: str = _ANOTHER_PLACE) -> None:
    """Raise if ``what`` does not fit on the disk of ``path``, before the first byte is written. ``otherwise``: as
    of ``disk_errors``."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < bytes_needed:
        raise ResourceError(
            f"Not enough disk space for {what}: it needs {human_size(bytes_needed)}, "
            f"and {path} has {human_size(free)} free.",
            f"Free {human_size(bytes_needed - free)} more, or {otherwise}.",
        )


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. It appears at ``path`` only if the ``with`` block succeeds; otherwise nothing is left."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("xb") as file:
                yield file
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Sync a finished file to the disk, then rename it to ``path``, which is on the same file system."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def seal(path: Path, final: Path) -> None:
    """Note the hash of a file that will be renamed to ``final``, so that ``is_sealed`` knows it again."""
    with atomic_write(_seal_of(final)) as file:
        file.write(sha256_of(path).encode())


def is_sealed(path: Path) -> bool:
    """Whether a file is there, and has the hash that was noted. A library that was truncated, by a full disk or a
    machine that lost its power, would crash the process that loads it."""
    try:
        return _seal_of(path).read_bytes() == sha256_of(path).encode()
    except OSError:
        return False


def _seal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """Hexadecimal SHA-256 of a file; ``progress`` advances by the bytes read."""
    progress = progress or Silent()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            progress.advance(len(block))
    return digest.hexdigest()


def human_size(count: int) -> str:
    """A number of bytes in decimal units: 98.4 MB."""
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
