"""Rotary embedding as a Hugging Face config describes it, with its scaling worked out to one factor per pair."""

from __future__ import annotations

import math

import numpy as np

from monolane.errors import UnsupportedModelError
from monolane.model.config import Rope
from monolane.model.settings import Settings

_DEFAULT_THETA = 10_000.0
_CONTEXT_LIMIT = 1 << 24


def read_rope(settings: Settings, head_dim: int) -> Rope:
    """Newer configs have all in ``rope_parameters``, older ones ``rope_theta`` and ``rope_scaling`` apart."""
    key = "rope_parameters" if settings.get("rope_parameters") is not None else "rope_scaling"
    found = settings.get(key)
    if found is not None and not isinstance(found, dict):
        raise settings.wrong(key, "an object")
    scaling = Settings(found or {}, f"{settings.source}: {key}")
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
        return _llama3_rope(theta, scaling, head_dim)
    raise UnsupportedModelError(
        f"{settings.source}: rotary scaling of type {kind!r} is not supported.",
        "Supported are default, linear and llama3. Remove the scaling to run within the original context, "
        "or use another model.",
    )


def linear_rope(theta: float, factor: float, head_dim: int) -> Rope:
    """Every frequency divided by the same factor."""
    return Rope(theta, (factor,) * (head_dim // 2))


def _llama3_rope(theta: float, scaling: Settings, head_dim: int) -> Rope:
    """Llama 3.1: slow pairs are slowed down by ``factor``, fast ones left alone, those between blended.

    How fast a pair is, is counted in the full turns it makes within the context the model was first trained on.
    """
    factor = scaling.number("factor")
    slow = scaling.number("low_freq_factor")
    fast = scaling.number("high_freq_factor")
    if fast <= slow:
        raise scaling.wrong("high_freq_factor", f"above low_freq_factor, {slow}")
    original_context = scaling.integer("original_max_position_embeddings", _CONTEXT_LIMIT)
    turns = original_context * Rope(theta).inverse_frequencies(head_dim) / (2 * math.pi)
    kept = np.clip((turns - slow) / (fast - slow), 0.0, 1.0)
    factors = 1.0 / ((1.0 - kept) / factor + kept)
    return Rope(theta, tuple(factors.tolist()))
