"""The read bandwidth that ``monolane ceiling`` has measured on this machine, for the server."""

from __future__ import annotations

import subprocess
from functools import cached_property

from monolane.engine.core import PYTHON

TIMEOUT_S = 10.0  # the lookup takes about a second, and started when the model began to load
_QUESTION = "import sys; from monolane.bench.ceiling.store import stored; print(stored(sys.argv[1]))"


class StoredCeiling:
    """Looks the measurement up in a process of its own: it looks for a GPU, which loads the driver, and the server's
    process never does."""

    def __init__(self, device: str) -> None:
        """``device``: cpu, cuda, or auto (the GPU where there is one)."""
        self._process = subprocess.Popen(
            [*PYTHON, "-c", _QUESTION, device],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,  # Ctrl-C in the terminal is for the server alone
        )

    def __call__(self) -> float | None:
        """Bytes per second; None where it was not measured."""
        return self._found

    @cached_property
    def _found(self) -> float | None:
        try:
            said, _ = self._process.communicate(timeout=TIMEOUT_S)
            return float(said)
        except ValueError:  # "None", or nothing
            return None
        except subprocess.TimeoutExpired:
            self._process.kill()
            return None
