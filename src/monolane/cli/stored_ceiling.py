"""The read ceiling that was measured on this machine, for a server, whose process never touches a GPU's driver."""

from __future__ import annotations

import subprocess
from functools import cached_property

from monolane.engine.core import PYTHON

PATIENCE_S = 10.0  # the answer takes a second, and is asked for when a model has been loaded meanwhile
_QUESTION = "import sys; from monolane.bench.ceiling.store import stored; print(stored(sys.argv[1]))"


class StoredCeiling:
    """Looks for it in a process of its own, since looking for a GPU is what starts its driver."""

    def __init__(self, device: str) -> None:
        """``device``: cpu, cuda, or auto (the GPU where there is one)."""
        self._process = subprocess.Popen(
            [*PYTHON, "-c", _QUESTION, device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # Ctrl-C is not meant for it
        )

    def __call__(self) -> float | None:
        """Bytes per second; None where nobody has measured it."""
        return self._found

    @cached_property
    def _found(self) -> float | None:
        try:
            said, _ = self._process.communicate(timeout=PATIENCE_S)
            return float(said)
        except ValueError:  # "None", or nothing
            return None
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None
