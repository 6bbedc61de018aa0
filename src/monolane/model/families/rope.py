"""Rotary embedding as a Hugging Face config describes it, with its scaling worked out to one factor per pair."""

from __future__ import annotations

import math

import numpy as np

from monolane.errors import UnsupportedModelError
from monolane.model.config import Rope
from monolane.model.settings import Settings

_DEFAULT_THETA = 10_000.0
_CONTEXT_LIMIT = 1 << 24


def read_rope(settings: Settings, head_dim: int, context: int) -> Rope:
    """Newer configs have all in ``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling`` apart.

    Where both objects are there, ``rope_scaling`` counts and nothing of the other does, as in transformers: it is what
    somebody adds to a config by hand. An empty object counts as none.
    """
    objects = {}
    for key in ("rope_scaling", "rope_parameters"):
        found = settings.get(key)
        if found is not None and not isinstance(found, dict):
            raise settings.wrong(key, "an object")
        objects[key] = found or {}
    key = "rope_scaling" if objects["rope_scaling"] else "rope_parameters"
    scaling = Settings(objects[key], f"{settings.source}: {key}")
    if any(isinstance(value, dict) for value in scaling.values.values()):
        raise UnsupportedModelError(
            f"{settings.source}: {key} differs from layer to layer, which is not supported.", "Use another model."
        )
    for place in (scaling, settings):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(
                f"{place.source}: partial_rotary_factor is not 1; rotating a part of each head is not supported.",
                "Use another model.",
            )
    theta = scaling.number("rope_theta", settings.number("rope_theta", _DEFAULT_THETA))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return linear_rope(theta, scaling.number("factor"), head_dim)
    if kind == "llama3":
        return _llama3_rope(theta, scaling, head_dim, _original_context(settings, scaling, context))
    raise UnsupportedModelError(
        f"{settings.source}: rotary scaling of type {kind!r} is not supported.",
        "Supported are default, linear and llama3. Remove the scaling to run within the original context, "
        "or use another model.",
    )


def linear_rope(theta: float, factor: float, head_dim: int) -> Rope:
    """Every frequency divided by the same factor."""
    return Rope(theta, (factor,) * (head_dim // 2))


def _original_context(settings: Settings, scaling: Settings, context: int) -> int:
    """Positions a model was first trained on: beside the scaling (this one counts), in it, or else all it has."""
    key = "original_max_position_embeddings"
    if settings.has(key):
        return settings.integer(key, _CONTEXT_LIMIT)
    return scaling.integer(key, _CONTEXT_LIMIT, default=None if scaling.has(key) else context)


def _llama3_rope(theta: float, scaling: Settings, head_dim: int, original_context: int) -> Rope:
    """Llama 3.1: slow pairs are slowed down by ``factor``, fast ones left alone, those between blended.

    How fast a pair is, is counted in the full turns it makes within the context the model was first trained on.
    """
    factor = scaling.number("factor")
    slow = scaling.number("low_freq_factor")
    fast = scaling.number("high_freq_factor")
    if fast <= slow:
        raise scaling.wrong("high_freq_factor", f"above low_freq_factor, {slow}")
    turns = original_context * Rope(theta).inverse_frequencies(head_dim) / (2 * math.pi)
    kept = np.clip((turns - slow) / (fast - slow), 0.0, 1.0)
    factors = 1.0 / ((1.0 - kept) / factor + kept)
    return Rope(theta, tuple(factors.tolist()))
