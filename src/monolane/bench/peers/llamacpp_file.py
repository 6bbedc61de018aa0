"""The GGUF file that llama.cpp gets: the model's own, a copy of it in bf16, or one of a shape's made-up weights."""

from __future__ import annotations

from pathlib import Path

from monolane.bench.measure import gguf_checkpoint
from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.bench.peers.widen import bf16_twin
from monolane.errors import UsageError


def gguf_file(wanted: Wanted, widened: bool, folder: Path) -> Path:
    """The path of the file; that of a shape is written into ``folder``."""
    if wanted.path is not None:
        if wanted.path.suffix != ".gguf":
            raise PeerMissingError("it needs a GGUF file")
        return bf16_twin(wanted.path) if widened else wanted.path
    if widened:
        raise PeerMissingError("a shape is measured with one file, in the formats of its weights")
    path = folder / "shape.gguf"
    try:
        gguf_checkpoint.write(wanted.config, wanted.weights, path)
    except UsageError as error:
        raise PeerMissingError(error.message) from error
    return path
