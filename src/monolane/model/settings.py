"""Reading a config's keys with their types and limits checked, so that no wild number leaves this room."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from monolane.errors import ModelFileError

_HINT = "The file is damaged or of a kind this program does not know; fetch it again."


@dataclass(frozen=True)
class Settings:
    """The keys of one file. A key that is null counts as absent; ``prefix`` stands before every key asked for."""

    values: Mapping[str, object]
    source: str
    prefix: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there at all, null or not."""
        return self.prefix + key in self.values

    def get(self, key: str) -> object:
        return self.values.get(self.prefix + key)

    def integer(self, key: str, limit: int, default: int | None = None) -> int:
        """A whole number from 1 to ``limit``."""
        value = self._present(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
            raise self.wrong(key, f"a whole number from 1 to {limit}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self._present(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.wrong(key, "a number above zero")
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
        found = repr(self.get(key))
        found = found if len(found) <= 80 else found[:77] + "..."
        return ModelFileError(f"{self.source}: {self.prefix}{key} should be {wanted}, but is {found}.", _HINT)

    def _present(self, key: str, default: object) -> object:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelFileError(f"{self.source}: the key {self.prefix}{key} is missing.", _HINT)
        return value
