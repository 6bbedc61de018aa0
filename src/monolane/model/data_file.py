"""A file that is read at any offset. It is not mapped, so a model's file never counts as memory of this process."""

from __future__ import annotations

import os
import stat
import weakref
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError


class DataFile:
    """An open file that several threads may read at once. It is closed with its last reference."""

    def __init__(self, path: Path) -> None:
        try:
            # O_NONBLOCK: if the path is a pipe, opening it would otherwise block until another process writes to it.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ModelFileError(
                f"{path} cannot be opened: {reason}.", "Check the path and its permissions, or fetch the model again."
            ) from error
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a file.", "Check the path, or fetch the model again.")
        self.path = path
        self.size = status.st_size
        # The modification time alone is not enough, because tools set it (package managers give every file the same).
        # The file system itself sets the ctime, and a file that replaces another one has another inode number.
        self.version = (self.size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def __enter__(self) -> DataFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes from ``offset``."""
        self._check(offset, count)
        target = bytearray(count)
        self._fill(offset, memoryview(target))
        return bytes(target)

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill a contiguous array with the bytes from ``offset``."""
        self._check(offset, target.nbytes)
        self._fill(offset, target.reshape(-1).data)

    def _check(self, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise _truncated(self.path)

    def _fill(self, offset: int, target: memoryview) -> None:
        while target:
            try:
                count = os.preadv(self._descriptor, [target], offset)
            except OSError as error:
                raise ModelFileError(f"{self.path} cannot be read: {error.strerror}.", "Check the disk.") from error
            if count == 0:
                raise _truncated(self.path)
            target = target[count:]
            offset += count


def is_there(path: Path) -> bool:
    """Whether the path exists and is accessible; never raises."""
    return os.access(path, os.F_OK)


def _truncated(path: Path) -> ModelFileError:
    return ModelFileError(f"{path} ends too early.", "It was not fetched completely; fetch it again.")
