"""gpt-oss: experts with biases and a clamped activation, attention sinks, a window in every other layer.

Published files have the experts in MXFP4: ``gate_up_proj_blocks``, 16 bytes for every 32 columns, and
``gate_up_proj_scales``, a byte each, the exponent of their scale. A byte holds two neighbouring columns, the first one
in its low 4 bits. Unquantised files have ``gate_up_proj``, transposed. In both, every other row is one of gate, and the
one of up follows it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError
from monolane.model.config import Experts, Gate, ModelConfig
from monolane.model.families.experts import HARMLESS, gguf_experts, read_counts
from monolane.model.families.limits import CONTEXT_LIMIT, HEAD_DIM_LIMIT
from monolane.model.families.names import gguf_name, huggingface_name
from monolane.model.families.rope import read_rope, yarn_rope
from monolane.model.families.shared import Family, gguf_rope, windows_by_kind
from monolane.model.format import BF16, EXPONENT, FP4, GROUP, Bytes, Format, QuantRows, format_of
from monolane.model.gguf_blocks import mxfp4_rows, mxfp4_scales_fit
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights
from monolane.model.weights import Bf16Bits, to_bf16

# Where a config does not say: those of the published models.
_THETA, _FACTOR, _ORIGINAL_CONTEXT = 150_000.0, 32.0, 4096
_EPSILON, _HEAD_DIM, _WINDOW = 1e-5, 64, 128
_SLOPE, _LIMIT = 1.702, 7.0
_SOFTMAX_OF_CHOSEN = 3  # expert_gating_func of a GGUF file

_STORED = {"gate": "gate_up_proj", "up": "gate_up_proj", "down": "down_proj"}
_STEP = 1 << 24  # bytes of scales that are looked at together
_KEPT = 4  # transposed matrices of one expert that are kept while its rows are read
_MXFP4 = format_of(FP4, EXPONENT)


def file_name(name: str) -> str:
    """``layers.3.router`` -> ``model.layers.3.mlp.router.weight``"""
    if name.endswith(".sinks"):
        return huggingface_name(name).removesuffix(".weight")
    return huggingface_name(name).replace(".mlp.gate.", ".mlp.router.")


def gate_of(limit: float = _LIMIT, slope: float = _SLOPE) -> Gate:
    return Gate(slope=slope, shift=1.0, limit=limit)


def _in_our_order(blocks: Bytes) -> Bytes:
    """Codes of whole groups of 16 bytes. In files byte i has columns 2 * i and, above it, 2 * i + 1; ours has columns i
    and 16 + i. Many groups are moved at once, because NumPy is slow with short rows."""
    columns = blocks.astype(np.uint16)  # two columns in 16 bits, then one in each of their bytes
    columns |= columns << 4
    columns &= 0x0F0F
    words = columns.view(np.uint64).reshape(-1, 4)  # of a group: columns 0 to 7, 8 to 15, 16 to 23, 24 to 31
    codes = np.empty((len(words), 2), np.uint64)
    for half in range(2):
        codes[:, half] = words[:, half] | words[:, 2 + half] << np.uint64(4)
    return codes.view(np.uint8)


def alternating(layers: int, window: int | None) -> tuple[int | None, ...]:
    """Even layers have a window."""
    return tuple(window if layer % 2 == 0 else None for layer in range(layers))


def _refine(settings: Settings, plain: ModelConfig) -> ModelConfig:
    layers = plain.layers
    head_dim = settings.integer("head_dim", HEAD_DIM_LIMIT, default=_HEAD_DIM)
    is_null = settings.has("sliding_window") and settings.get("sliding_window") is None
    window = None if is_null else settings.integer("sliding_window", CONTEXT_LIMIT, default=_WINDOW)
    count, chosen = read_counts(settings, ("num_local_experts",))
    bias = settings.flag("attention_bias", True)
    gate = gate_of(settings.number("swiglu_limit", _LIMIT), settings.number("swiglu_alpha", _SLOPE))
    if settings.get("rope_scaling") or settings.get("rope_parameters"):
        rope = read_rope(settings, head_dim, plain.context, _THETA)
    else:
        theta = settings.number("rope_theta", _THETA)
        rope = yarn_rope(theta, _FACTOR, head_dim, _ORIGINAL_CONTEXT, truncate=False)
    return replace(
        plain,
        head_dim=head_dim,
        norm_eps=settings.number("rms_norm_eps", _EPSILON),
        rope=rope,
        windows=windows_by_kind(settings, layers, window, alternating(layers, window)),
        qkv_bias=bias,
        o_bias=bias,
        sinks=True,
        experts=Experts(count, chosen, plain.ffn, (True,) * layers, normalised=True, biased=True, gate=gate),
    )


def _gguf_name(name: str) -> str:
    return gguf_name(name).replace(".ffn_norm.", ".post_attention_norm.")


def _refine_gguf(settings: Settings, plain: ModelConfig) -> ModelConfig:
    """The activation and the order of windows are those of the architecture; no key has them. Frequencies are those
    that the model was trained with, where llama.cpp interpolates between whole pairs."""
    experts = gguf_experts(settings, plain, normalised=True, gating=_SOFTMAX_OF_CHOSEN)
    return replace(
        plain,
        rope=gguf_rope(settings, plain.head_dim, plain.context, None, truncate=False),
        windows=alternating(plain.layers, plain.windows[0]),
        sinks=True,
        experts=replace(experts, biased=True, gate=gate_of()),
    )


class GptOssWeights(StoredWeights):
    """The weights of a folder. Matrices of experts are read from tensors of their own."""

    def __init__(self, tensors: Mapping[str, StoredTensor], config: ModelConfig) -> None:
        super().__init__(tensors, file_name)
        assert config.experts is not None, "every gpt-oss has experts"
        ffn, hidden = 2 * config.experts.ffn, config.hidden
        self._count = config.experts.count
        self._sizes = {"gate_up_proj": (ffn, hidden), "down_proj": (hidden, config.experts.ffn)}  # of one expert
        self._holds_scales = functools.cache(self._scales_fit)
        self._transposed = functools.lru_cache(_KEPT)(self._read_transposed)

    @property
    def dtype(self) -> str:
        """What people call the format."""
        return "mxfp4+bf16" if any(name.endswith("_blocks") for name in self._tensors) else "bf16"

    @property
    def widened(self) -> tuple[str, ...]:
        bases = {name.removesuffix("_blocks") for name in self._tensors if name.endswith("_blocks")}
        return super().widened + (() if all(map(self._holds_scales, bases)) else ("MXFP4 with these scales",))

    def shape(self, name: str) -> tuple[int, ...]:
        if ".experts." not in name:
            return super().shape(name)
        base, matrix, _, stride = self._place(name)
        rows, cols = self._sizes[matrix]
        self._require(base, rows, cols)
        if name.endswith(".bias"):
            return (self._count * rows // stride,)
        return self._count * rows // stride, cols

    def format(self, name: str) -> Format:
        if ".experts." not in name:
            return super().format(name)
        base = self._place(name)[0]
        return _MXFP4 if f"{base}_blocks" in self._tensors and self._holds_scales(base) else BF16

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        if ".experts." not in name:
            return super().rows(name, start, stop)
        base, matrix, first, stride = self._place(name)
        if f"{base}_blocks" in self._tensors:
            return to_bf16(_values(*self._blocks(name, start, stop)))
        each = self._sizes[matrix][0] // stride
        parts = []
        for expert in range(start // each, -(-stop // each)):
            rows = self._transposed(base, matrix, expert)[first::stride]
            parts.append(rows[max(start - expert * each, 0) : stop - expert * each])
        return np.ascontiguousarray(np.concatenate(parts))

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        if ".experts." not in name:
            return super().quants(name, start, stop)
        exponents, codes = self._blocks(name, start, stop)
        return mxfp4_rows(exponents, codes)

    def vector(self, name: str) -> NDArray[np.float32]:
        if ".experts." not in name:
            return super().vector(name)
        base, matrix, first, stride = self._place(name)
        self._require(base, *self._sizes[matrix])
        return np.ascontiguousarray(self._tensors[f"{base}_bias"].read_vector()[first::stride])

    def _place(self, name: str) -> tuple[str, str, int, int]:
        """Where a matrix of experts is: (what the names of its tensors begin with, the matrix in the file, the first of
        its rows there, the distance of its rows)."""
        layer, _, part = name.removesuffix(".bias").partition(".experts.")
        matrix = _STORED[part]
        stride = 1 if part == "down" else 2
        return f"model.{layer}.mlp.experts.{matrix}", matrix, int(part == "up"), stride

    def _require(self, base: str, rows: int, cols: int) -> None:
        """Refuse tensors of a matrix that are missing, or of other shapes than the config asks for."""
        wanted: dict[str, tuple[int, ...]] = {f"{base}_bias": (self._count, rows)}
        if f"{base}_blocks" in self._tensors:
            wanted[f"{base}_blocks"] = (self._count, rows, cols // GROUP, GROUP // 2)
            wanted[f"{base}_scales"] = (self._count, rows, cols // GROUP)
        else:
            wanted[base] = (self._count, cols, rows)
        for name, shape in wanted.items():
            found = self._tensors.get(name)
            if found is None or found.shape != shape or (name.endswith(("_blocks", "_scales")) and cols % GROUP):
                actual = "is missing" if found is None else f"has shape {list(found.shape)}"
                raise ModelFileError(
                    f"Tensor {name!r} {actual}, but the config asks for {list(shape)}.",
                    "The config and the weights do not belong together; fetch both from the same source.",
                )

    def _blocks(self, name: str, start: int, stop: int) -> tuple[Bytes, Bytes]:
        """(exponents [row][group], codes [row][group][16]), the codes in our order."""
        base, matrix, first, stride = self._place(name)
        groups = self._sizes[matrix][1] // GROUP
        rows = start * stride + first, stop - start, stride
        exponents = self._bytes(f"{base}_scales", *rows, groups)
        raw = self._bytes(f"{base}_blocks", *rows, groups * GROUP // 2)
        return exponents, _in_our_order(raw).reshape(stop - start, groups, GROUP // 2)

    def _bytes(self, name: str, first: int, count: int, stride: int, width: int) -> Bytes:
        """The rows first, first + stride, ... of a tensor of bytes, which has ``width`` of them in a row."""
        tensor = self._tensors[name]
        raw = np.empty(((count - 1) * stride + 1, width), np.uint8)
        tensor.file.read_into(tensor.offset + first * width, raw)
        return raw[::stride]

    def _scales_fit(self, base: str) -> bool:
        """Whether our format holds all scales of a matrix."""
        tensor = self._tensors[f"{base}_scales"]
        for start in range(0, tensor.size, _STEP):
            raw = np.empty(min(_STEP, tensor.size - start), np.uint8)
            tensor.file.read_into(tensor.offset + start, raw)
            if not mxfp4_scales_fit(raw):
                return False
        return True

    def _read_transposed(self, base: str, matrix: str, expert: int) -> Bf16Bits:
        rows, cols = self._sizes[matrix]
        flat = replace(self._tensors[base], shape=(self._count * cols, rows))
        bits = np.empty((cols, rows), np.uint16)
        flat.read_rows(expert * cols, 1, bits)
        return np.ascontiguousarray(bits.T)


def _values(exponents: Bytes, codes: Bytes) -> NDArray[np.float32]:
    """The weights of rows in fp32, exactly."""
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    values = FP4.values[np.concatenate([codes & 15, codes >> 4], 2)] * scales[..., None]
    return np.asarray(values.reshape(len(codes), -1), np.float32)


FAMILY = Family(
    "gpt_oss",
    "GptOssForCausalLM",
    _refine,
    file_name=file_name,
    weights=GptOssWeights,
    joins_experts=True,
    gguf_architecture="gpt-oss",
    gguf_refine=_refine_gguf,
    gguf_name=_gguf_name,
    harmless=HARMLESS,
)
