"""Reads the keys of a config and checks their types and limits, so that no unchecked number is used elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from monolane.errors import ModelFileError

_HINT = "The file is damaged or of a kind this program does not know; fetch it again."
_SHOWN = 80  # characters of a value in a message

# Numbers are fp32 in the kernels, where a smaller one would be zero and a larger one infinite.
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Settings:
    """The keys and values of one file. A key whose value is null counts as absent."""

    values: Mapping[str, object]
    source: str  # names the file in messages
    prefix: str = ""  # put before every key that is read
    asked: set[str] = field(default_factory=set, compare=False)  # all keys that were read; see families/keys.py

    def has(self, key: str) -> bool:
        """Whether the key is present, even if its value is null."""
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
        """A number above zero that fp32 can represent."""
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
        """The error for a key whose value should be ``wanted`` and is not."""
        found = shown(self.get(key))
        return ModelFileError(f"{self.source}: {self.prefix}{key} should be {wanted}, but is {found}.", _HINT)

    def _present(self, key: str, default: object) -> object:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelFileError(f"{self.source}: the key {self.prefix}{key} is missing.", _HINT)
        return value


def shown(value: object) -> str:
    """A value from a file, shortened for a message: files may have numbers of 4,000 digits and texts of any length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
