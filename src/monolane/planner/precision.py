"""Bits per weight, part by part: one of a few formats, or the format that a model was published in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monolane.errors import UnsupportedModelError
from monolane.model.settings import Settings
from monolane.planner.parts import Part, Weights

PUBLISHED = "published"
BF16_BITS = 16.0
# Formats that checkpoints are published in. Bits per weight with scales: fp4 has 8 bits of scale per 32 weights; fp8
# has one scale per 128 x 128, which does not count.
FORMATS = {"bf16": BF16_BITS, "fp8": 8.0, "fp4": 4.25}

# The parts that are quantised. Head, router, embedding, norms and biases are small or sensitive, and are not.
LAYER_PARTS = (Part.ATTENTION, Part.DENSE, Part.ROUTED, Part.SHARED)
_EXPERTS_ALONE = (Part.ROUTED,)
# Names in a checkpoint's list of tensors that are not quantised -> their part.
_LEFT_OUT = {"self_attn": Part.ATTENTION, "shared_expert": Part.SHARED, "mlp": Part.DENSE}


@dataclass(frozen=True)
class Precision:
    """Bits per weight of each part."""

    name: str
    bits: Mapping[Part, float] = field(default_factory=dict)
    rest: float = BF16_BITS  # of the parts that ``bits`` does not have

    def active_bytes(self, weights: Weights) -> float:
        return weights.active * self.bits_of(weights.part) / 8

    def stored_bytes(self, weights: Weights) -> float:
        return weights.stored * self.bits_of(weights.part) / 8

    def bits_of(self, part: Part) -> float:
        return self.bits.get(part, self.rest)

    def is_low_bit(self, part: Part) -> bool:
        return self.bits_of(part) < BF16_BITS


def named(dtype: str) -> Precision:
    """The precision with all layers in one format of checkpoints."""
    return _some(dtype, LAYER_PARTS, FORMATS[dtype])


def published(settings: Settings) -> Precision:
    """The precision of a checkpoint, by its ``config.json``."""
    found = settings.get("quantization_config")
    if found is None:
        dtype = settings.get("dtype") or settings.get("torch_dtype")
        return Precision("fp32", rest=32.0) if dtype == "float32" else named("bf16")
    quantised = Settings(found if isinstance(found, dict) else {}, f"{settings.source}: quantization_config")
    method = quantised.get("quant_method")
    if method == "mxfp4":
        return _some("fp4 experts, bf16", _EXPERTS_ALONE, FORMATS["fp4"])
    if method == "fp8" and settings.get("expert_dtype") == "fp4":
        bits = dict.fromkeys(LAYER_PARTS, FORMATS["fp8"]) | {Part.ROUTED: FORMATS["fp4"]}
        return Precision("fp4 experts, fp8", bits)
    if method == "fp8":
        return named("fp8")
    if method == "compressed-tensors":
        return _compressed(quantised)
    if method in ("gptq", "awq"):
        return _grouped(method, LAYER_PARTS, quantised)
    raise UnsupportedModelError(
        f"{settings.source}: the planner does not know the size of weights quantised by {method!r}.",
        f"Choose a format to count with: --weights {', '.join(FORMATS)}.",
    )


def _compressed(quantised: Settings) -> Precision:
    groups = quantised.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        raise quantised.wrong("config_groups", "groups with the format of their weights")
    left_out = str(quantised.get("ignore"))
    parts = tuple(
        part for part in LAYER_PARTS if not any(name in left_out for name, of in _LEFT_OUT.items() if of is part)
    )
    settings = Settings({"bits": weights.get("num_bits"), "group_size": weights.get("group_size")}, quantised.source)
    return _grouped("int", parts, settings)


def _grouped(method: str, parts: tuple[Part, ...], settings: Settings) -> Precision:
    """Weights in groups with a scale of 16 bits each; without a group size there is one scale per row."""
    bits = settings.integer("bits", 16, default=4)
    size = settings.get("group_size")
    scale = 16.0 / size if isinstance(size, int) and size > 0 else 0.0
    kind = f"{method}{bits}"
    if parts == LAYER_PARTS:
        return _some(kind, parts, bits + scale)
    return _some(f"{kind} experts, bf16" if parts == _EXPERTS_ALONE else f"{kind}, bf16", parts, bits + scale)


def _some(name: str, parts: tuple[Part, ...], bits: float) -> Precision:
    return Precision(name, dict.fromkeys(parts, bits))
