"""The model that suits this machine, for the server."""

from __future__ import annotations

import json
import subprocess

from monolane.engine.core import PYTHON
from monolane.errors import TargetError

_QUESTION = """
import json, sys
from monolane.engine.default_model import default_model
choice = default_model(*json.loads(sys.argv[1]))
print(json.dumps([choice.name, choice.line]))
"""


def default_elsewhere(device: str, workers: int | None) -> tuple[str, str]:
    """Its name, and a line that says so. Chosen in a process of its own: it looks for a GPU, which loads the driver,
    and the server's process never does."""
    command = [*PYTHON, "-c", _QUESTION, json.dumps([device, workers])]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        name, line = json.loads(answer.stdout)
    except ValueError as error:
        reason = (answer.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise TargetError(f"No model could be chosen for this machine: {reason}.", "Name one.") from error
    return name, line
