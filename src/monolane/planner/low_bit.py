"""Bits per weight where Monolane chooses the formats itself: q8 and q4 of ``--weights``, q4_k_m, or any one format."""

from __future__ import annotations

from collections import Counter

from monolane.bench.measure.mixtures import MIXTURES, MXFP4, MXFP4_Q8, ONE_TYPE, Q4_K_M, q4_k_m_favours
from monolane.errors import UsageError
from monolane.model.format import FORMATS as MATRIX_FORMATS
from monolane.model.quantise import KINDS, Q4, Q8
from monolane.planner import precision
from monolane.planner.mixers import GroupedAttention
from monolane.planner.parts import Part
from monolane.planner.precision import LAYER_PARTS, PUBLISHED, Precision
from monolane.planner.shape import Layer, Shape

NAMES = tuple(dict.fromkeys((*precision.FORMATS, *KINDS, *MIXTURES)))
_OUTSIDE = (Part.HEAD, Part.EMBEDDING)
_MXFP4 = MATRIX_FORMATS["fp4e32"]
_USUAL, _BETTER = MATRIX_FORMATS["u4k32"], MATRIX_FORMATS["i6k16"]  # Q4_K and Q6_K


def chosen(name: str, shape: Shape) -> Precision:
    """The precision of this name; routers, norms and biases have 16 bits."""
    if name in precision.FORMATS:
        return precision.named(name)
    if name == Q4_K_M:
        return Precision(name, _q4_k_m(shape))
    if name in (MXFP4, MXFP4_Q8):
        others = Q8.bits if name == MXFP4_Q8 else precision.BF16_BITS
        return Precision(name, dict.fromkeys((*LAYER_PARTS, *_OUTSIDE), others) | {Part.ROUTED: _MXFP4.bits})
    if name in KINDS:  # as model/quantise.py does it
        layers = Q8 if name == "q8" else Q4
        return Precision(name, dict.fromkeys(LAYER_PARTS, layers.bits) | dict.fromkeys(_OUTSIDE, Q8.bits))
    if name in MIXTURES:
        return Precision(name, dict.fromkeys((*LAYER_PARTS, *_OUTSIDE), MATRIX_FORMATS[ONE_TYPE.get(name, name)].bits))
    raise UsageError(f"There are no weights {name!r}.", f"Choose one of: {', '.join((*NAMES, PUBLISHED))}.")


def streamed(name: str, bytes_per_token: float, shape: Shape) -> Precision:
    """The precision of weights of which a token reads so many bytes, the same for all parts."""
    return Precision(name, rest=8 * bytes_per_token / shape.active_parameters)


def _q4_k_m(shape: Shape) -> dict[Part, float]:
    """Averaged over the layers: some have v and down in Q6_K."""
    all_of, better_of = Counter[Part](), Counter[Part]()
    for number, layer in enumerate(shape.layers):
        for weights in layer.weights(shape.hidden):
            all_of[weights.part] += weights.stored
            if q4_k_m_favours(number, len(shape.layers)):
                better_of[weights.part] += round(weights.stored * _share_of_better(layer, weights.part))
    more = _BETTER.bits - _USUAL.bits
    bits = {part: _USUAL.bits + more * better_of[part] / all_of[part] for part in LAYER_PARTS if all_of[part]}
    return bits | {Part.HEAD: _BETTER.bits, Part.EMBEDDING: (_BETTER if shape.tied else _USUAL).bits}


def _share_of_better(layer: Layer, part: Part) -> float:
    """Of a part's weights, the share of v, or of down. Other kinds of attention have no v of their own."""
    if part is not Part.ATTENTION:
        return 1 / 3
    mixer = layer.mixer
    return mixer.kv_heads / (2 * mixer.heads + 2 * mixer.kv_heads) if isinstance(mixer, GroupedAttention) else 0.0
