"""Tensors in files, which are read some rows at a time and converted to bf16 or fp32."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model import format as formats
from monolane.model.data_file import DataFile
from monolane.model.format import Format, QuantRows
from monolane.model.weights import Bf16Bits, from_bf16, to_bf16

RawBytes = NDArray[np.uint8]

# Elements converted at a time. The temporary arrays stay in a core's L2 cache, and are small enough for the allocator
# to reuse them; mapping new memory would make threads wait for each other. With much smaller parts, threads would wait
# for the interpreter's lock instead.
_CONVERTED = 1 << 18

# Samples of each tensor that the identity of weights includes, spread from the first bytes to the last.
_SAMPLES = 4
_SAMPLE_BYTES = 1 << 10


@dataclass(frozen=True)
class StoredFormat:
    """How a file stores numbers: blocks of ``block`` elements in ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int
    widen: Callable[[RawBytes], NDArray[np.float32]] | None  # raw bytes to fp32; None: the format cannot be read
    format: Format = formats.BF16  # the one of ours that holds a matrix; bf16 also where none does
    repack: Callable[[RawBytes], QuantRows] | None = None  # to that format, from [row][block][bytes]
    holds: Callable[[RawBytes], bool] | None = None  # whether it holds these blocks exactly; None: it holds all

    def size(self, elements: int) -> int:
        """The bytes of this many elements, which must be a multiple of ``block``."""
        return elements // self.block * self.block_bytes


def _bf16(raw: RawBytes) -> NDArray[np.float32]:
    return from_bf16(raw.view(np.uint16))


BF16 = StoredFormat("BF16", 1, 2, _bf16)
F16 = StoredFormat("F16", 1, 2, lambda raw: raw.view(np.float16).astype(np.float32))
F32 = StoredFormat("F32", 1, 4, lambda raw: raw.view(np.float32))


@dataclass(frozen=True)
class StoredTensor:
    """A tensor inside a file. The last dimension of ``shape`` is contiguous and a multiple of the format's block."""

    file: DataFile
    offset: int
    shape: tuple[int, ...]
    format: StoredFormat

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.format.size(math.prod(self.shape))

    def read_vector(self) -> NDArray[np.float32]:
        """The whole tensor in fp32, flat."""
        raw = np.empty(self.size, np.uint8)
        self.file.read_into(self.offset, raw)
        return self._widen(raw)

    def samples(self) -> Iterator[bytes]:
        """Samples of the tensor's bytes, spread evenly over it; all of its bytes if it is small."""
        if self.size <= _SAMPLES * _SAMPLE_BYTES:
            yield self.file.read(self.offset, self.size)
            return
        for index in range(_SAMPLES):
            within = (self.size - _SAMPLE_BYTES) * index // (_SAMPLES - 1)
            yield self.file.read(self.offset + within, _SAMPLE_BYTES)

    def read_rows(self, first: int, stride: int, target: Bf16Bits) -> None:
        """Fill ``target`` with the rows first, first + stride, first + 2 * stride, ..."""
        count, columns = target.shape
        row_bytes = self.format.size(columns)
        if stride == 1 and self.format is BF16:
            self.file.read_into(self.offset + first * row_bytes, target.view(np.uint8))
            return
        step = max(1, _CONVERTED // columns)
        for start in range(0, count, step):
            rows = min(step, count - start)
            raw = np.empty(((rows - 1) * stride + 1, row_bytes), np.uint8)
            self.file.read_into(self.offset + (first + start * stride) * row_bytes, raw)
            picked = np.ascontiguousarray(raw[::stride]).reshape(-1)
            bits = picked.view(np.uint16) if self.format is BF16 else to_bf16(self._widen(picked))
            target[start : start + rows] = bits.reshape(rows, columns)

    def read_quants(self, first: int, count: int, stride: int) -> QuantRows:
        """The rows first, first + stride, first + 2 * stride, ... in the format that holds them."""
        assert self.format.repack is not None, "Weights.format says which matrices are low-bit"
        return self.format.repack(self._blocks(first, count, stride))

    def is_held(self) -> bool:
        """Whether our format holds the whole matrix exactly. Only for types where that depends on the numbers are they
        read."""
        if self.format.repack is None or self.format.holds is None:
            return self.format.repack is not None
        rows, step = self.shape[0], max(1, _CONVERTED // self.shape[1])
        return all(self.format.holds(self._blocks(first, min(step, rows - first), 1)) for first in range(0, rows, step))

    def _blocks(self, first: int, count: int, stride: int) -> RawBytes:
        """[row][block][bytes]"""
        row_bytes = self.format.size(self.shape[1])
        raw = np.empty(((count - 1) * stride + 1, row_bytes), np.uint8)
        self.file.read_into(self.offset + first * row_bytes, raw)
        return raw[::stride].reshape(count, -1, self.format.block_bytes)

    def _widen(self, raw: RawBytes) -> NDArray[np.float32]:
        assert self.format.widen is not None, "StoredWeights refuses formats that cannot be read"
        with np.errstate(invalid="ignore", over="ignore"):  # a broken scale gives inf or NaN, without a warning
            return self.format.widen(raw)


class StoredWeights:
    """The ``Weights`` of a model whose tensors are in files; ``file_name`` translates a canonical name to the file's.

    ``interleaved_head`` is the head size if the file has the rows of q and k in the order for RoPE over neighbouring
    pairs. They are returned in the order for RoPE over the two halves of a head. None: they already are in that order.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        file_name: Callable[[str], str],
        interleaved_head: int | None = None,
    ) -> None:
        self._tensors = tensors
        self._file_name = file_name
        self._interleaved_head = interleaved_head
        self._matrices = [tensor for tensor in tensors.values() if len(tensor.shape) == 2]
        self._held: dict[tuple[Path, int], bool] = {}  # whether a format of ours holds a tensor

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the files' versions and of samples of every tensor.

        The versions (data_file.py) are enough on a file system that sets ctime itself: there every change of the
        content changes them. Read-only images and some network mounts have neither reliable times nor inode numbers;
        there the samples distinguish two models. A hash of all bytes would not be more reliable: to avoid reading
        gigabytes at every start it would have to be cached, with these same versions as the key. A copy of a file has
        another identity, which costs one more conversion, but never gives wrong weights.
        """
        digest = hashlib.sha256(repr(self._interleaved_head).encode())
        for path, version in sorted({(str(t.file.path.resolve()), t.file.version) for t in self._tensors.values()}):
            digest.update(f"\0{path}\0{version}".encode("utf-8", "surrogateescape"))
        for name, tensor in sorted(self._tensors.items()):
            digest.update(f"\0{name!r}\0{tensor.shape}\0{tensor.format.name}\0".encode())
            for sample in tensor.samples():
                digest.update(sample)
        return digest.hexdigest()

    @property
    def converted(self) -> bool:
        return any(tensor.format is not BF16 for tensor in self._matrices)

    @property
    def widened(self) -> tuple[str, ...]:
        stored = {t.format.name for t in self._matrices if t.format.block > 1 and not self._is_held(t)}
        return tuple(sorted(stored))

    def format(self, name: str) -> Format:
        tensor = self._tensor(name)
        return tensor.format.format if self._is_held(tensor) else formats.BF16

    def _is_held(self, tensor: StoredTensor) -> bool:
        """Remembered, because some types have to be read for it."""
        place = (tensor.file.path, tensor.offset)
        if place not in self._held:
            self._held[place] = tensor.is_held()
        return self._held[place]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensor(name).shape

    def rows(self, name: str, start: int, stop: int) -> Bf16Bits:
        tensor = self._tensor(name)
        if len(tensor.shape) != 2 or not 0 <= start <= stop <= tensor.shape[0]:
            raise IndexError(f"rows {start} to {stop} of tensor {name!r} with shape {list(tensor.shape)}")
        result = np.empty((stop - start, tensor.shape[1]), np.uint16)
        head = self._interleaved_head if name.endswith((".q", ".k")) else None
        for at, first, count, stride in _runs(start, stop, head):
            tensor.read_rows(first, stride, result[at : at + count])
        return result

    def quants(self, name: str, start: int, stop: int) -> QuantRows:
        tensor = self._tensor(name)
        if len(tensor.shape) != 2 or not 0 <= start <= stop <= tensor.shape[0]:
            raise IndexError(f"rows {start} to {stop} of tensor {name!r} with shape {list(tensor.shape)}")
        head = self._interleaved_head if name.endswith((".q", ".k")) else None
        runs = [(at, tensor.read_quants(first, count, stride)) for at, first, count, stride in _runs(start, stop, head)]
        if len(runs) == 1:
            return runs[0][1]
        result = QuantRows.zeros(tensor.format.format, stop - start, formats.groups_of(tensor.shape[1]))
        for at, rows in runs:
            result.put(slice(at, at + len(rows)), rows)
        return result

    def vector(self, name: str) -> NDArray[np.float32]:
        tensor = self._tensor(name)
        if len(tensor.shape) != 1:
            raise IndexError(f"tensor {name!r} with shape {list(tensor.shape)} is no vector")
        values = tensor.read_vector()
        if self._interleaved_head and name.endswith((".q.bias", ".k.bias")):
            return np.ascontiguousarray(values.reshape(-1, self._interleaved_head // 2, 2).swapaxes(1, 2)).reshape(-1)
        return values

    def _tensor(self, name: str) -> StoredTensor:
        stored = self._file_name(name)
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise ModelFileError(
                f"The tensor {stored!r} is missing from the model's files.",
                "The files are incomplete or belong to another kind of model; fetch them again.",
            )
        if tensor.format.widen is None:
            raise UnsupportedModelError(
                f"The tensor {stored!r} is stored as {tensor.format.name}, which is not supported.",
                "Use a BF16, F16 or F32 model, or a GGUF file in one of the usual formats, such as Q4_K, Q6_K or Q8_0.",
            )
        return tensor


def check_layout(tensors: Mapping[str, StoredTensor], file: DataFile, data_start: int) -> None:
    """Refuse tensors that reach beyond their file, or overlap."""
    spans = sorted((tensor.offset, tensor.offset + tensor.size, name) for name, tensor in tensors.items())
    for start, stop, name in spans:
        if start < data_start or stop > file.size:
            raise ModelFileError(
                f"{file.path}: the tensor {name!r} reaches beyond the end of the file.",
                "It was not fetched completely; fetch it again.",
            )
    for (_, stop, name), (start, _, following) in pairwise(_not_empty(spans)):
        if start < stop:
            raise ModelFileError(
                f"{file.path}: the tensors {name!r} and {following!r} overlap.", "The file is damaged; fetch it again."
            )


def _not_empty(spans: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    return (span for span in spans if span[0] < span[1])


def _runs(start: int, stop: int, interleaved_head: int | None) -> Iterator[tuple[int, int, int, int]]:
    """The location of rows [start, stop) in the file: (row of the result, row of the file, count, stride)."""
    if interleaved_head is None:
        yield 0, start, stop - start, 1
        return
    half = interleaved_head // 2
    row = start
    while row < stop:
        count = min(half - row % half, stop - row)
        which, within = divmod(row % interleaved_head, half)
        yield row - start, row - row % interleaved_head + 2 * within + which, count, 2
        row += count
