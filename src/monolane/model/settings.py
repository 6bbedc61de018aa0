"""Reading a config's keys with their types and limits checked, so that no wild number leaves this room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from monolane.errors import ModelFileError

_HINT = "The file is damaged or of a kind this program does not know; fetch it again."
_SHOWN = 80  # characters of a value in a message

# Numbers reach the kernels in fp32, where a smaller one would be zero and a larger one infinite.
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Settings:
    """The keys of one file. A key that is null counts as absent; ``prefix`` stands before every key asked for.

    ``asked`` gathers every key that somebody wanted to know: what it lacks, nobody reads (see families/keys.py).
    """

    values: Mapping[str, object]
    source: str
    prefix: str = ""
    asked: set[str] = field(default_factory=set, compare=False)

    def has(self, key: str) -> bool:
        """Whether the key is there at all, null or not."""
        self.asked.add(self.prefix + key)
        return self.prefix + key in self.values

    def get(self, key: str) -> object:
        self.asked.add(self.prefix + key)
        return self.values.get(self.prefix + key)

    def integer(self, key: str, limit: int, default: int | None = None) -> int:
        """A whole number from 1 to ``limit``."""
        value = self._present(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise self.wrong(key, f"a whole number from 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number above zero that fp32 can hold."""
        value = self._present(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not _SMALLEST <= value <= _LARGEST:
            raise self.wrong(key, f"a number above zero, from {_SMALLEST:.1e} to {_LARGEST:.1e}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def wrong(self, key: str, wanted: str) -> ModelFileError:
        """The error to raise for a key whose value is not what was wanted."""
        found = shown(self.get(key))
        return ModelFileError(f"{self.source}: {self.prefix}{key} should be {wanted}, but is {found}.", _HINT)

    def _present(self, key: str, default: object) -> object:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelFileError(f"{self.source}: the key {self.prefix}{key} is missing.", _HINT)
        return value


def shown(value: object) -> str:
    """A value from a file as a message shows it: files may hold numbers of 4,000 digits and texts of any length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
