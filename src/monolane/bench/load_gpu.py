"""From a model's folder to the first token on a GPU, in fresh processes: the first time, and with a warm cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

from monolane.bench import checkpoint, load, record, shapes
from monolane.bench.decode_gpu import Say
from monolane.target.cuda.opening import required_gpu

METHOD = (
    "made-up weights of this shape in a safetensors folder; a fresh process each, imports included, from a warm disk; "
    "first: nothing cached; second: the compiled kernel is; the tokenizer has all words but no merges"
)


def run(shape: str, folder: Path, say: Say) -> None:
    """Write a folder, load it twice, keep the result."""
    config, device = shapes.named(shape), required_gpu()
    with tempfile.TemporaryDirectory(prefix="monolane-model-") as model:
        say(f"{shape}: writing a folder of made-up weights")
        size = checkpoint.write(config, Path(model))
        result = {
            "benchmark": "load",
            "model": shape,
            "dtype": "bf16",
            "device": f"cuda ({device.name})",
            **load.starts(Path(model), "cuda"),
            "checkpoint_bytes": size,
            "method": METHOD,
            "machine": record.machine() | {"gpu": record.gpu(device)},
            "versions": record.versions("numpy", "cuda-bindings", "nvidia-cuda-nvrtc"),
        }
    first, second = result["first"]["first_token_s"], result["second"]["first_token_s"]
    say(f"to the first token: {first:.1f} s the first time, {second:.1f} s with a warm cache")
    say(f"written: {record.write(f'load-{shape}-cuda', result, folder)}")
