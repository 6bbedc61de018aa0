"""How a model's makers want it sampled: ``generation_config.json``, or the same in a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monolane.errors import ModelFileError
from monolane.model.settings import shown

_LIMITS = {  # from, to: beyond them a file is damaged
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31),  # -1 and 0: all tokens
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
}
_GGUF = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True)
class SuggestedSampling:
    """The defaults suit models whose files say nothing: small ones that are greedy repeat themselves without end."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.9
    min_p: float = 0.0
    repetition_penalty: float = 1.05


def sampling_of_config(config: Mapping[str, object], source: Path) -> SuggestedSampling:
    """Of a ``generation_config.json``. What it does not name is off, if it names anything at all."""
    given = {name: config[name] for name in _LIMITS if config.get(name) is not None}
    if config.get("do_sample") is False:
        given["temperature"] = 0.0
    return _checked(given, source)


def sampling_of_metadata(metadata: Mapping[str, object], source: Path) -> SuggestedSampling:
    """Of the keys ``general.sampling.*`` of a GGUF file."""
    keys = {name: f"general.sampling.{key}" for name, key in _GGUF.items()}
    return _checked({name: metadata[key] for name, key in keys.items() if metadata.get(key) is not None}, source)


def _checked(given: Mapping[str, object], source: Path) -> SuggestedSampling:
    if not given:
        return SuggestedSampling()
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    for name, value in given.items():
        low, high = _LIMITS[name]
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ModelFileError(
                f"{source}: {name} should be a number from {low} to {high}, but is {shown(value)}.",
                "The file is damaged; fetch it again.",
            )
        values[name] = round(max(float(value), 0.0), 6)  # GGUF files have fp32: 0.7 is 0.699999988 there
    if values["top_p"] == 0:  # only the likeliest token: what temperature 0 says
        values |= {"top_p": 1.0, "temperature": 0.0}
    return SuggestedSampling(
        values["temperature"], int(values["top_k"]), values["top_p"], values["min_p"], values["repetition_penalty"]
    )
