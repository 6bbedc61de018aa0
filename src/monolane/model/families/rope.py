"""Reads the rotary embedding of a Hugging Face config; scaling becomes one factor per pair."""

from __future__ import annotations

import math

import numpy as np

from monolane.errors import UnsupportedModelError
from monolane.model.config import Rope
from monolane.model.settings import Settings

_DEFAULT_THETA = 10_000.0
_CONTEXT_LIMIT = 1 << 24


def read_rope(settings: Settings, head_dim: int, context: int) -> Rope:
    """Newer configs have everything in ``rope_parameters``, older ones have ``rope_theta`` and ``rope_scaling``.

    Where a config has both objects, only ``rope_scaling`` is used, as in transformers: it is what users add to a config
    by hand. An empty object counts as none.
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
    """All frequencies are divided by the same factor."""
    return Rope(theta, (factor,) * (head_dim // 2))


def _original_context(settings: Settings, scaling: Settings, context: int) -> int:
    """The context length before scaling. The key in the config itself goes before the one in the scaling object; where
    neither is there, it is the model's whole context."""
    key = "original_max_position_embeddings"
    if settings.has(key):
        return settings.integer(key, _CONTEXT_LIMIT)
    return scaling.integer(key, _CONTEXT_LIMIT, default=None if scaling.has(key) else context)


def _llama3_rope(theta: float, scaling: Settings, head_dim: int, original_context: int) -> Rope:
    """Llama 3.1: low frequencies are divided by ``factor``, high ones are unchanged, those between are interpolated.

    Low and high are limits on the number of full rotations of a pair within the original context.
    """
    factor = scaling.number("factor")
    low = scaling.number("low_freq_factor")
    high = scaling.number("high_freq_factor")
    if high <= low:
        raise scaling.wrong("high_freq_factor", f"above low_freq_factor, {low}")
    rotations = original_context * Rope(theta).inverse_frequencies(head_dim) / (2 * math.pi)
    unscaled = np.clip((rotations - low) / (high - low), 0.0, 1.0)  # the share of the original frequency
    factors = 1.0 / ((1.0 - unscaled) / factor + unscaled)
    return Rope(theta, tuple(factors.tolist()))
