"""Made-up weights in low-bit formats: any one format, or the mixture of a usual GGUF file, without the file."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import numpy as np

from monolane.bench.measure.routing import EVEN
from monolane.bench.measure.shapes import MadeUpWeights, hash_of
from monolane.errors import UsageError
from monolane.model.config import ModelConfig
from monolane.model.format import (
    BF16,
    BLOCK_128,
    E4M3,
    EXPONENT,
    FORMATS,
    Bytes,
    Codes,
    Format,
    QuantRows,
    format_of,
    groups_of,
)
from monolane.model.quantise import Q8
from monolane.model.weights import Bf16Bits, to_bf16

Q4_K_M, FP8 = "q4_k_m", "fp8"
MXFP4, MXFP4_Q8 = "mxfp4+bf16", "mxfp4+q8"  # of gpt-oss: as it is published, and what --weights q8 makes of that
# Of GGUF files that have one type alone, by its name there.
ONE_TYPE = {"q4_0": "i4g32", "q4_1": "u4g32m", "q5_0": "i5g32", "q5_1": "u5g32m", "q8_0": "i8g32"}
_OTHERS = (name for name, format in FORMATS.items() if format.is_low_bit and name not in ONE_TYPE.values())
MIXTURES = (Q4_K_M, FP8, MXFP4, MXFP4_Q8, *ONE_TYPE, *_OTHERS)

_ALIGNED = 16  # bytes: the codes of a group are copied at once, which is slower where they are not aligned
_POOL_BYTES = ((1 << 18) + 255) * _ALIGNED  # times a prime number, so that rows begin at many places of the pool


def q4_k_m_favours(layer: int, layers: int) -> bool:
    """Whether q4_k_m has v and down of this layer in Q6_K."""
    first = layers // 8
    return layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2


class MadeUpMixture(MadeUpWeights):
    """Random weights of about the usual magnitude, as ``mixture`` says: one of MIXTURES."""

    def __init__(self, config: ModelConfig, mixture: str, seed: int = 0, routing: str = EVEN) -> None:
        super().__init__(config, seed, routing)
        if mixture not in MIXTURES:
            raise UsageError(f"There is no mixture {mixture!r}.", f"Choose one of: {', '.join(MIXTURES)}.")
        if mixture in (MXFP4, MXFP4_Q8) and config.experts is None:
            raise UsageError(f"{mixture} is a mixture for experts, and this model has none.", "Choose another mixture.")
        self._mixture = mixture
        self._bytes = np.tile(np.random.default_rng(seed).integers(0, 256, _POOL_BYTES, np.uint8), 2)
        self._bytes.flags.writeable = False  # codes are views of it
        self.identity = f"{self.identity}, {mixture}"

    def format(self, name: str) -> Format:
        """The q4_k_m of llama.cpp: Q4_K, and Q6_K for the head, and for v and down in the first and the last eighth of
        the layers and in every third one between them. The fp8 of Hugging Face: all but head and embedding. The MXFP4
        of gpt-oss: experts, and nothing else, or everything else in 8 bits. Routers are never low-bit."""
        if name.endswith("router"):
            return BF16
        if self._mixture in (MXFP4, MXFP4_Q8):
            return FORMATS["fp4e32"] if ".experts." in name else Q8 if self._mixture == MXFP4_Q8 else BF16
        if self._mixture == FP8:
            return BF16 if name in ("embed", "head") else format_of(E4M3, BLOCK_128)
        if self._mixture != Q4_K_M:
            return FORMATS[ONE_TYPE.get(self._mixture, self._mixture)]
        if name in ("embed", "head"):
            return FORMATS["i6k16" if name == "head" or self._config.tied else "u4k32"]
        _, number, *parts = name.split(".")
        part, better = parts[-1], q4_k_m_favours(int(number), self._config.layers)
        return FORMATS["i6k16" if better and part in ("v", "down") else "u4k32"]

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if not self.format(name).is_low_bit:
            return super().rows(name, start, stop)
        return to_bf16(self.quants(name, start, stop).values(self.shape(name)[1]))

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        format, cols = self.format(name), self.shape(name)[1]
        codes = format.codes
        assert codes is not None
        found = QuantRows.zeros(format, stop - start, groups_of(cols))
        place = hash_of(name) // _ALIGNED * _ALIGNED
        random = self._random(found.codes.shape, place, start)
        random = np.where(random & 0x7F == 0x7F, np.uint8(0), random) if codes.is_float else random
        high = self._random(found.high.shape, place + 1, start) & np.uint8((1 << 2 * codes.high_bits) - 1)
        found = replace(found, codes=random, high=high)
        numbers = found.scales if found.scales.size else found.blocks
        std, mean = _spread(codes)
        _fill_scales(found, self._random(numbers.shape, place + 2, start), self.std(name) / std, mean)
        return found

    def _random(self, shape: tuple[int, ...], place: int, start: int) -> Bytes:
        """Rows from ``start`` on of a matrix that begins at that place of the pool, and takes its bytes over and over.
        As in MadeUpWeights, the pool is there twice, so that they are a view of it."""
        period, wanted = len(self._bytes) // 2, math.prod(shape)
        first = (place + start * math.prod(shape[1:])) % period
        if wanted > period:
            return np.resize(self._bytes[first : first + period], shape)
        return self._bytes[first : first + wanted].reshape(shape)


@functools.cache
def _spread(codes: Codes) -> tuple[float, float]:
    """The standard deviation and the mean of random codes."""
    values = codes.values[np.isfinite(codes.values)]
    return float(values.std()), float(values.mean())


def _fill_scales(rows: QuantRows, random: Bytes, size: float, mean: float) -> None:
    """Scales between 2/3 and 4/3 of ``size``, or powers of two where files have those; and what makes the mean of the
    weights zero where a format has that."""
    kind = rows.format.scales
    assert kind is not None
    if kind == EXPONENT:
        rows.scales[:] = np.take(_powers_of_two(size), random)
        return
    if kind == BLOCK_128:
        rows.blocks[:] = size * (2 / 3 + random / 384)
        return
    if kind.per_block:
        rows.scales[:] = 32 + random % 32
        rows.blocks[..., 0] = size / 48
        if kind.name == "k32":
            rows.scales[..., 1] = rows.scales[..., 0]
            rows.blocks[..., 1] = size / 48 * mean
        return
    rows.scales[..., 0] = size * (2 / 3 + random[..., 0] / 384)
    if kind.name == "g32m":
        rows.scales[..., 1] = -mean * rows.scales[..., 0].astype(np.float32)
    if kind.name == "g32z":
        rows.scales[..., 1] = round(mean)


@functools.cache
def _powers_of_two(size: float) -> Bytes:
    """The scales of MXFP4, by a random byte: the two powers of two around ``size``, each so often that the mean square
    is that of ``size``."""
    lower = math.floor(math.log2(size))
    larger = ((size / 2.0**lower) ** 2 - 1) / 3  # the share of the larger one
    return np.where(np.arange(256) < 256 * larger, 127 + lower + 1, 127 + lower).astype(np.uint8)


def published(config: ModelConfig) -> str | None:
    """The mixture that models of this family are published in: gpt-oss has its experts in MXFP4. None: bf16."""
    return MXFP4 if config.family == "gpt_oss" else None


def made_up(config: ModelConfig, mixture: str | None, routing: str = EVEN) -> MadeUpWeights:
    """Made-up weights in a mixture, or in bf16."""
    return MadeUpMixture(config, mixture, routing=routing) if mixture else MadeUpWeights(config, routing=routing)
