"""Weights of Hugging Face folders that were quantised by GPTQ, AWQ, compressed-tensors, or to FP8.

Integers of 4 and 8 bits with scales for groups of 32 columns or a multiple are repacked without loss, and so is FP8.
Columns whose groups are not runs of columns (act-order) are sorted by group. What no format holds is widened to bf16:
scales that fp16 does not hold, q, k and v in different orders.
Scales of activations (``input_scale``) are not read: activations are not rounded to 8 bits here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.format import (
    BF16,
    BLOCK_128,
    E4M3,
    GROUP,
    I4,
    I8,
    SCALE,
    SCALE_ZERO,
    U4,
    Bytes,
    Floats,
    Format,
    QuantRows,
    format_of,
    groups_of,
)
from monolane.model.settings import Settings
from monolane.model.tensors import StoredTensor, StoredWeights
from monolane.model.weights import Bf16Bits, to_bf16

Words = NDArray[np.uint32]

METHODS = ("gptq", "awq", "compressed-tensors", "fp8")
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # the place in a word of each of its 8 columns
_FP8_BLOCK = 128  # rows and columns that share a scale, where scales are per block
_SAME_INPUT = {part: parts for parts in (("q", "k", "v"), ("gate", "up")) for part in parts}
_CACHED = 16  # tensors that are kept: files have them transposed, so each is needed whole, many times


@dataclass(frozen=True)
class Scheme:
    """How the matrices of a folder are quantised."""

    method: str
    bits: int
    zero_offset: int = 0  # added to stored zero points
    is_float: bool = False  # FP8

    @classmethod
    def of(cls, settings: Settings) -> Scheme | None:
        """From ``quantization_config``; None where there is none. Other methods are refused by name."""
        found = settings.get("quantization_config")
        if found is None:
            return None
        config = found if isinstance(found, dict) else {}
        method = config.get("quant_method")
        if method == "mxfp4" and settings.get("model_type") == "gpt_oss":
            return None  # the names of its tensors say what is quantised (families/gpt_oss.py)
        bits = config.get("bits", 4 if method == "awq" else None)
        kind: object = "float" if method == "fp8" else "int"
        if method == "compressed-tensors":
            bits, kind = _compressed_weights(config)
        if method == "fp8":
            bits = 8
        if method not in METHODS or bits not in (4, 8) or (method == "awq" and config.get("version", "gemm") != "gemm"):
            raise UnsupportedModelError(
                f"{settings.source}: weights quantised by {method} with {bits} bits (quantization_config) are not "
                "supported.",
                f"Supported are {', '.join(METHODS)} with 4 or 8 bits. Use the unquantised model, or a GGUF file.",
            )
        is_first_version = method == "gptq" and config.get("checkpoint_format", "gptq") == "gptq"
        return cls(str(method), int(bits), zero_offset=int(is_first_version), is_float=kind == "float")


def _compressed_weights(config: dict[str, object]) -> tuple[object, object]:
    """(bits, "int" or "float")"""
    groups = config.get("config_groups")
    found = {
        (group["weights"].get("num_bits"), group["weights"].get("type", "int"))
        for group in (groups.values() if isinstance(groups, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    }
    return found.pop() if len(found) == 1 else (None, None)


class Quantised:
    """One matrix: its integers [row][column], its scales and zero points [row][group of columns]."""

    def __init__(
        self,
        shape: tuple[int, int],
        bits: int,
        codes: Callable[[slice], Bytes],
        scales: Floats,
        zeros: NDArray[np.int32],
        group_of: NDArray[np.int64] | None = None,
    ) -> None:
        """``codes``: some rows of the integers, unsigned. ``group_of``: the group of each column, where groups are not
        runs of columns."""
        self.shape = shape
        self._bits = bits
        self._codes = codes
        self._scales, self._zeros = (np.broadcast_to(each, (shape[0], each.shape[1])) for each in (scales, zeros))
        self._group_of = group_of
        self.order = None if group_of is None else np.argsort(group_of, kind="stable")

    @functools.cached_property
    def format(self) -> Format:
        wide, rest = divmod(self.shape[1], self._scales.shape[1])
        exact = np.array_equal(self._scales.astype(np.float16).astype(np.float32), self._scales)
        even = self._group_of is None or np.all(np.bincount(self._group_of) == wide)
        if rest or (self._scales.shape[1] > 1 and wide % GROUP) or not exact or not even:
            return BF16
        middle = np.all(self._zeros == 1 << self._bits - 1)
        codes = I8 if self._bits == 8 else I4 if middle else U4
        return replace(format_of(codes, SCALE if middle else SCALE_ZERO), ordered=self.order is not None)

    def values(self, rows: slice) -> Floats:
        scales, zeros = self._scales[rows], self._zeros[rows]
        columns = self.shape[1]
        runs = np.arange(columns) // -(-columns // scales.shape[1])
        group_of = runs if self._group_of is None else self._group_of
        codes = self._codes(rows).astype(np.int32)
        return np.asarray(scales[:, group_of] * (codes - zeros[:, group_of]), np.float32)

    def quants(self, rows: slice) -> QuantRows:
        codes, groups = self._codes(rows), groups_of(self.shape[1])
        codes = codes if self.order is None else codes[:, self.order]
        found = QuantRows.zeros(self.format, len(codes), groups)
        padded = np.pad(codes, ((0, 0), (0, groups * GROUP - self.shape[1]))).reshape(len(codes), groups, GROUP)
        found.codes[:] = padded if self._bits == 8 else padded[..., :16] | padded[..., 16:] << np.uint8(4)
        each = -(-groups // self._scales.shape[1])
        found.scales[..., 0] = np.repeat(self._scales[rows], each, 1)[:, :groups]
        if found.scales.shape[2] == 2:
            below = 128 if self._bits == 8 else 0  # which the codes of the format have already been moved by
            found.scales[..., 1] = np.repeat(self._zeros[rows], each, 1)[:, :groups] - below
        return found


class QuantisedFolder(StoredWeights):
    """The weights of a folder, of which some matrices are quantised: those that have scales."""

    def __init__(self, tensors: Mapping[str, StoredTensor], file_name: Callable[[str], str], scheme: Scheme) -> None:
        super().__init__(tensors, file_name)
        self._scheme = scheme
        self._raw = functools.lru_cache(_CACHED)(self._read)
        self._found: dict[str, Quantised | Fp8 | None] = {}

    @property
    def converted(self) -> bool:
        return True

    @property
    def dtype(self) -> str:
        """What people call the format."""
        return "fp8" if self._scheme.is_float else f"{self._scheme.method}-int{self._scheme.bits}"

    @property
    def widened(self) -> tuple[str, ...]:
        matrices = (self._quantised(base) for base in self._bases())
        is_widened = any(each is not None and each.format == BF16 for each in matrices)
        found = [f"{self._scheme.method} with these scales"] if is_widened else []
        layers = {int(place[1]) for base in self._bases() if (place := re.search(r"\blayers\.(\d+)\.", base))}
        names = [f"layers.{layer}.{part}" for layer in layers for part in _SAME_INPUT]
        if any(self._order(name) is not None and not self.format(name).is_low_bit for name in names):
            found.append("matrices that share an input and have different orders of columns")
        return tuple(found)

    def shape(self, name: str) -> tuple[int, ...]:
        found = self._quantised(self._base(name))
        return super().shape(name) if found is None else found.shape

    def format(self, name: str) -> Format:
        found = self._quantised(self._base(name))
        if found is None:
            return super().format(name)
        return BF16 if self._differs(name, found) else found.format

    def vector(self, name: str) -> Floats:
        if not name.endswith(".order"):
            return super().vector(name)
        order = self._order(name.removesuffix(".order"))
        assert order is not None, "Weights.format says which matrices are ordered"
        return order.astype(np.float32)  # which holds every whole number up to 2^24

    def _order(self, name: str) -> NDArray[np.int64] | None:
        found = self._quantised(self._base(name))
        return found.order if isinstance(found, Quantised) and found.format.ordered else None

    def _differs(self, name: str, found: Quantised | Fp8) -> bool:
        """Whether a matrix is ordered, and others that have the same input have another order."""
        layer, _, part = name.rpartition(".")
        if not found.format.ordered or part not in _SAME_INPUT:
            return False
        orders = [self._order(f"{layer}.{other}") for other in _SAME_INPUT[part]]
        return len({None if order is None else order.tobytes() for order in orders}) > 1

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        found = self._quantised(self._base(name))
        return super().rows(name, start, stop) if found is None else to_bf16(found.values(slice(start, stop)))

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        found = self._quantised(self._base(name))
        assert found is not None, "Weights.format says which matrices are low-bit"
        return found.quants(slice(start, stop))

    def _base(self, name: str) -> str:
        return self._file_name(name).removesuffix(".weight")

    def _bases(self) -> set[str]:
        endings = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")
        return {name.rpartition(".")[0] for name in self._tensors if name.endswith(endings)}

    def _quantised(self, base: str) -> Quantised | Fp8 | None:
        if base not in self._found:
            has = {
                ending
                for ending in ("qweight", "weight_packed", "weight_scale", "weight_scale_inv")
                if f"{base}.{ending}" in self._tensors
            }
            readers = {"qweight": self._transposed, "weight_packed": self._packed}
            reader = next((reader for ending, reader in readers.items() if ending in has), self._plain if has else None)
            self._found[base] = reader(base) if reader else None
        return self._found[base]

    def _transposed(self, base: str) -> Quantised:
        """GPTQ and AWQ: [column][row]. GPTQ packs columns into words, AWQ rows; both pack rows of the zero points."""
        bits, is_awq = self._scheme.bits, self._scheme.method == "awq"
        per_word = 32 // bits
        scales = self._floats(f"{base}.scales").T
        zeros = _unpacked(self._words(f"{base}.qzeros"), bits)
        packed = self._tensor_shape(f"{base}.qweight")
        shape = (packed[1] * per_word, packed[0]) if is_awq else (packed[1], packed[0] * per_word)
        zeros = zeros[..., _AWQ_ORDER] if is_awq else zeros

        def codes(rows: slice) -> Bytes:
            words = self._words(f"{base}.qweight")
            if is_awq:
                first, last = rows.start // per_word, -(-rows.stop // per_word)
                found = _unpacked(words[:, first:last], bits)[..., _AWQ_ORDER].reshape(len(words), -1)
                return found[:, rows.start - first * per_word :][:, : rows.stop - rows.start].T
            return _unpacked(words[:, rows], bits).transpose(1, 0, 2).reshape(rows.stop - rows.start, -1)

        points = zeros.reshape(len(zeros), -1).T.astype(np.int32) + self._scheme.zero_offset
        if points.shape != scales.shape or len(scales) != shape[0]:
            raise _damaged(base)
        return Quantised(shape, bits, codes, scales, points, self._group_of(f"{base}.g_idx", shape, scales))

    def _group_of(self, name: str, shape: tuple[int, int], scales: Floats) -> NDArray[np.int64] | None:
        """The group of each column; None where groups are runs of columns, or where none are given (all are -1)."""
        if name not in self._tensors or np.all((given := self._words(name).reshape(-1)) == np.uint32(0xFFFFFFFF)):
            return None
        if given.shape != (shape[1],) or given.max() >= scales.shape[1]:
            raise _damaged(name)
        usual = np.arange(shape[1]) // -(-shape[1] // scales.shape[1])
        return None if np.array_equal(given, usual) else given.astype(np.int64)

    def _packed(self, base: str) -> Quantised:
        """compressed-tensors: words with columns, and zero points in words with rows where there are any."""
        bits = self._scheme.bits
        rows, words = self._tensor_shape(f"{base}.weight_packed")
        scales = self._floats(f"{base}.weight_scale")
        zeros = np.full((1, 1), 1 << bits - 1, np.int32)
        if f"{base}.weight_zero_point" in self._tensors:
            points = _unpacked(self._words(f"{base}.weight_zero_point"), bits)  # [rows / 8][group][8 rows]
            zeros = points.transpose(0, 2, 1).reshape(-1, points.shape[1])[:rows].astype(np.int32)
        shape = (rows, words * 32 // bits)
        if f"{base}.weight_shape" in self._tensors:
            stated = self._raw(f"{base}.weight_shape").view("<i8" if self._is_wide(f"{base}.weight_shape") else "<i4")
            if stated.shape != (2,) or stated[0] != rows or not 0 < stated[1] <= shape[1]:
                raise _damaged(base)
            shape = (rows, int(stated[1]))

        def codes(which: slice) -> Bytes:
            found = _unpacked(self._words(f"{base}.weight_packed")[which], bits)
            return found.reshape(len(found), -1)[:, : shape[1]]

        zeros = np.broadcast_to(zeros, scales.shape)
        return Quantised(shape, bits, codes, scales, zeros, self._group_of(f"{base}.weight_g_idx", shape, scales))

    def _plain(self, base: str) -> Quantised | Fp8:
        """A byte for every weight: signed integers, or FP8."""
        tensor = self._tensors[f"{base}.weight"]
        inverse = f"{base}.weight_scale_inv"
        scales = self._floats(inverse if inverse in self._tensors else f"{base}.weight_scale")
        scales = scales.reshape(1, 1) if scales.size == 1 else scales.reshape(len(scales), -1)
        shape = (tensor.shape[0], tensor.shape[1])

        def bytes_of(rows: slice) -> Bytes:
            return self._raw(f"{base}.weight").reshape(shape)[rows]

        if tensor.format.name == "I8":
            middle = np.full((1, scales.shape[1]), 128, np.int32)
            return Quantised(shape, 8, lambda rows: bytes_of(rows) ^ np.uint8(0x80), scales, middle)
        if tensor.format.name != "F8_E4M3":
            raise UnsupportedModelError(
                f"The tensor {base!r} is stored as {tensor.format.name} with a scale, which is not supported.",
                "Use the unquantised model, or a GGUF file.",
            )
        return Fp8(f"{base}.weight", shape, bytes_of, scales)

    def _tensor_shape(self, name: str) -> tuple[int, int]:
        shape = self._tensors[name].shape
        if len(shape) != 2:
            raise _damaged(name)
        return shape[0], shape[1]

    def _is_wide(self, name: str) -> bool:
        return self._tensors[name].format.block_bytes == 8

    def _read(self, name: str) -> Bytes:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelFileError(
                f"The tensor {name!r} is missing from the model's files.",
                "The files are incomplete or belong to another kind of model; fetch them again.",
            )
        raw = np.empty(tensor.size, np.uint8)
        tensor.file.read_into(tensor.offset, raw)
        return raw

    def _words(self, name: str) -> Words:
        raw = self._raw(name)
        if self._tensors[name].format.block_bytes != 4:
            raise _damaged(name)
        return raw.view("<u4").reshape(self._tensors[name].shape)

    def _floats(self, name: str) -> Floats:
        tensor = self._tensors.get(name)
        if tensor is None or tensor.format.widen is None or len(tensor.shape) > 2:
            raise _damaged(name)
        return tensor.read_vector().reshape(tensor.shape if tensor.shape else (1,))


class Fp8:
    """One matrix of 8-bit floating-point numbers (E4M3), with a scale for all, for every row, or for blocks of 128 rows
    and columns."""

    format = format_of(E4M3, BLOCK_128)

    def __init__(self, name: str, shape: tuple[int, int], codes: Callable[[slice], Bytes], scales: Floats) -> None:
        self.shape = shape
        self._name = name
        self._codes = codes
        rows, columns = (-(-size // _FP8_BLOCK) for size in shape)
        if scales.shape not in ((1, 1), (shape[0], 1), (rows, columns)):
            raise UnsupportedModelError(
                f"The tensor {name!r} of shape {shape} has scales of shape {scales.shape}.",
                f"FP8 weights have one scale, one for every row, or blocks of {_FP8_BLOCK} x {_FP8_BLOCK}. Use the "
                "unquantised model, or a GGUF file.",
            )
        self._scales = scales  # [those of some rows][half of a super-block, or 1]
        self._rows_of_scale = 1 if scales.shape == (shape[0], 1) else shape[0] if scales.size == 1 else _FP8_BLOCK

    def values(self, rows: slice) -> Floats:
        return self.quants(rows).values(self.shape[1])

    def quants(self, rows: slice) -> QuantRows:
        codes, groups = self._codes(rows), groups_of(self.shape[1])
        if np.any(codes & 0x7F == 0x7F):
            raise ModelFileError(
                f"The tensor {self._name!r} has weights that are not numbers.",
                "The files are damaged; fetch them again.",
            )
        found = QuantRows.zeros(self.format, len(codes), groups)
        found.codes.reshape(len(codes), -1)[:, : self.shape[1]] = codes
        which = np.arange(rows.start, rows.stop) // self._rows_of_scale
        halves = found.blocks.reshape(len(codes), -1)  # of super-blocks; the last one may be zero, behind all columns
        halves[:, : -(-self.shape[1] // _FP8_BLOCK)] = self._scales[which]
        return found


def _unpacked(words: Words, bits: int) -> Bytes:
    """[..., place in the word]"""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words[..., None] >> shifts & np.uint32((1 << bits) - 1)).astype(np.uint8)


def _damaged(name: str) -> ModelFileError:
    return ModelFileError(
        f"The quantised tensors of {name!r} do not fit each other.", "The files are damaged; fetch them again."
    )
