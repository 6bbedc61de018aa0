"""Reads the rotary embedding of a Hugging Face config; scaling becomes one factor per pair."""

from __future__ import annotations

import math

import numpy as np

from monolane.errors import UnsupportedModelError
from monolane.model.config import Rope
from monolane.model.settings import Settings

_DEFAULT_THETA = 10_000.0
_CONTEXT_LIMIT = 1 << 24


def read_rope(settings: Settings, head_dim: int, context: int, theta: float = _DEFAULT_THETA) -> Rope:
    """Newer configs have everything in ``rope_parameters``, older ones have ``rope_theta`` and ``rope_scaling``.

    Where a config has both objects, only ``rope_scaling`` is used, as in transformers: it is what users add to a config
    by hand. An empty object counts as none.
    ``theta``: where the config has none.
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
    theta = scaling.number("rope_theta", settings.number("rope_theta", theta))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return linear_rope(theta, scaling.number("factor"), head_dim)
    if kind == "llama3":
        return _llama3_rope(theta, scaling, head_dim, _original_context(settings, scaling, context))
    if kind == "yarn":
        return _read_yarn(theta, scaling, head_dim, _original_context(settings, scaling, context), context)
    raise UnsupportedModelError(
        f"{settings.source}: rotary scaling of type {kind!r} is not supported.",
        "Supported are default, linear, llama3 and yarn. Remove the scaling to run within the original context, "
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


def _read_yarn(theta: float, scaling: Settings, head_dim: int, original_context: int, context: int) -> Rope:
    """YaRN, as transformers reads it: null as the factor means the ratio of the two contexts."""
    has_factor = not scaling.has("factor") or scaling.get("factor") is not None
    factor = scaling.number("factor") if has_factor else context / original_context

    def of_two(key: str) -> float:
        return _yarn_magnitude(factor, scaling.number(key)) if scaling.get(key) not in (None, 0) else 0.0

    scales = of_two("mscale"), of_two("mscale_all_dim")
    inferred = scales[0] / scales[1] if all(scales) else _yarn_magnitude(factor)
    betas = [scaling.number(key) if scaling.get(key) not in (None, 0) else None for key in ("beta_fast", "beta_slow")]
    return yarn_rope(
        theta,
        factor,
        head_dim,
        original_context,
        betas[0] or YARN_FAST,
        betas[1] or YARN_SLOW,
        scaling.number("attention_factor", inferred),
        scaling.flag("truncate", True),
    )


YARN_FAST, YARN_SLOW = 32.0, 1.0  # full rotations within the original context


def yarn_rope(
    theta: float,
    factor: float,
    head_dim: int,
    original_context: int,
    fast: float = YARN_FAST,
    slow: float = YARN_SLOW,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Rope:
    """Pairs with more than ``fast`` full rotations within the original context keep their frequency, those with fewer
    than ``slow`` are divided by ``factor``, those between are interpolated by the number of the pair."""
    if theta <= 1.0:
        raise UnsupportedModelError(f"YaRN with a theta of {theta} is not supported.", "Use another model.")

    def pair(rotations: float) -> float:
        """The (fractional) pair that has so many rotations."""
        return head_dim * math.log(original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(fast), pair(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first if last != first else 0.001
    scaled = np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)
    factors = 1.0 / (scaled / factor + (1.0 - scaled))
    magnitude = _yarn_magnitude(factor) if attention_factor is None else attention_factor
    return Rope(theta, tuple(factors.tolist()), magnitude)


def _yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What queries and keys are multiplied with."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0
