"""Reads the header of a GGUF file: metadata and the location of each tensor. Every count is checked before use."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monolane.errors import ModelFileError, UnsupportedModelError
from monolane.model.data_file import DataFile
from monolane.model.format import BF16 as WIDENED
from monolane.model.gguf_blocks import REPACKED, mxfp4_fits
from monolane.model.tensors import BF16, F16, F32, RawBytes, StoredFormat, StoredTensor, check_layout

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)

# Limits that no model exceeds. A vocabulary of 262,144 entries makes a header of about 16 MB.
_HEADER_LIMIT = 128 << 20  # bytes
_ENTRIES_LIMIT = 1 << 16  # metadata keys; tensors
_ARRAY_LIMIT = 1 << 23  # elements
_ARRAY_DEPTH = 2
_NAME_LIMIT = 1 << 16  # bytes
_DIMENSIONS_LIMIT = 4
_ALIGNMENT_LIMIT = 1 << 16  # bytes

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}

# Types that none of our formats holds, by their names in the gguf package: they are widened to bf16.
_WIDENED = {"Q2_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"}


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, object]
    tensors: dict[str, StoredTensor]


def read_gguf(file: DataFile) -> GgufHeader:
    """The metadata and the tensors of a GGUF file."""
    reader = _Reader(file)
    if reader.take(4) != _MAGIC:
        raise ModelFileError(
            f"{file.path} is no GGUF file.", "Give a .gguf file or the folder of a Hugging Face model."
        )
    version = reader.scalar("I")
    if version not in _VERSIONS:
        raise UnsupportedModelError(
            f"{file.path} has GGUF version {version}, or is big-endian.",
            "Supported are the versions 2 and 3, little-endian; convert the model again.",
        )
    tensor_count = reader.count("Q", _ENTRIES_LIMIT, bytes_each=24)
    metadata_count = reader.count("Q", _ENTRIES_LIMIT, bytes_each=13)
    metadata: dict[str, object] = {}
    for _ in range(metadata_count):
        key = reader.string(_NAME_LIMIT)
        if key in metadata:
            raise reader.damaged(f"the key {key!r} is there twice")
        metadata[key] = reader.value(reader.scalar("I"))
    infos: dict[str, _TensorInfo] = {}
    for _ in range(tensor_count):
        name = reader.string(_NAME_LIMIT)
        if name in infos:
            raise reader.damaged(f"the tensor {name!r} is there twice")
        infos[name] = reader.tensor_info(name)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _ALIGNMENT_LIMIT or alignment & (alignment - 1):
        raise reader.damaged(f"the alignment {alignment!r} is no power of two")
    data_start = (reader.position + alignment - 1) // alignment * alignment
    for name, info in infos.items():
        if info.offset % alignment:
            raise reader.damaged(f"the tensor {name!r} is not aligned to {alignment} bytes")
    tensors = {
        name: StoredTensor(file, data_start + info.offset, info.shape, info.format) for name, info in infos.items()
    }
    check_layout(tensors, file, data_start)
    return GgufHeader(metadata, tensors)


@dataclass(frozen=True)
class _TensorInfo:
    shape: tuple[int, ...]
    format: StoredFormat
    offset: int  # bytes from the start of the data


class _Reader:
    """Reads a header sequentially, and more of the file as needed."""

    def __init__(self, file: DataFile) -> None:
        self.position = 0
        self._file = file
        self._size = min(file.size, _HEADER_LIMIT)
        self._buffer = b""

    def damaged(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self._file.path} is no sound GGUF file: {why}.", "It is damaged; fetch it again.")

    def take(self, length: int) -> bytes:
        self._need(length)
        self.position += length
        return self._buffer[self.position - length : self.position]

    def scalar(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        assert isinstance(value, int)
        return value

    def count(self, code: str, limit: int, bytes_each: int) -> int:
        """Read a number of entries and check it: each entry has at least ``bytes_each`` bytes in the file."""
        count = self.scalar(code)
        if count > limit or count * bytes_each > self._size - self.position:
            raise self.damaged(f"it claims {count} entries at byte {self.position}")
        return count

    def string(self, limit: int = _HEADER_LIMIT) -> str:
        try:
            return self.take(self.count("Q", limit, bytes_each=1)).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text before byte {self.position} is not UTF-8") from error

    def value(self, kind: int, depth: int = 0) -> object:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _ARRAY_DEPTH:
            return self._array(depth)
        if kind not in _SCALARS:
            raise self.damaged(f"a value at byte {self.position} has the unknown type {kind}")
        code = "<" + _SCALARS[kind]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def tensor_info(self, name: str) -> _TensorInfo:
        dimensions = self.count("I", _DIMENSIONS_LIMIT, bytes_each=8)
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))[::-1]  # the file has the innermost first
        kind, offset = self.scalar("I"), self.scalar("Q")
        format = _formats().get(kind)
        if format is None:
            raise UnsupportedModelError(
                f"{self._file.path}: the tensor {name!r} is stored as type {kind}, which is unknown.",
                "Use a GGUF file in another format.",
            )
        # The product of the dimensions is bounded later, when check_layout compares the tensor with the file's size.
        if not shape or 0 in shape or max(shape) > 1 << 40 or shape[-1] % format.block:
            raise self.damaged(f"the shape {list(shape)} of {name!r} makes no sense for {format.name}")
        return _TensorInfo(shape, format, offset)

    def _array(self, depth: int) -> list[object]:
        kind = self.scalar("I")
        if kind == _STRING:
            return self._strings(self.count("Q", _ARRAY_LIMIT, bytes_each=8))
        if kind == _ARRAY:
            return [self.value(kind, depth + 1) for _ in range(self.count("Q", _ARRAY_LIMIT, bytes_each=12))]
        if kind not in _SCALARS:
            raise self.damaged(f"an array at byte {self.position} has the unknown type {kind}")
        dtype = np.dtype("<" + _SCALARS[kind]) if kind != _BOOL else np.dtype(np.bool_)
        count = self.count("Q", _ARRAY_LIMIT, bytes_each=dtype.itemsize)
        raw = self.take(count * dtype.itemsize)
        values = np.frombuffer(raw, np.uint8) != 0 if kind == _BOOL else np.frombuffer(raw, dtype)
        return list(values.tolist())

    def _strings(self, count: int) -> list[object]:
        """Read ``count`` strings, faster than ``string`` does: vocabularies have hundreds of thousands."""
        result: list[object] = []
        append, unpack = result.append, struct.Struct("<Q").unpack_from
        position, buffer = self.position, self._buffer
        try:
            for _ in range(count):
                if position + 8 > len(buffer):
                    buffer = self._fetch(position + 8)
                stop = position + 8 + unpack(buffer, position)[0]
                if stop > len(buffer):
                    buffer = self._fetch(stop)
                append(buffer[position + 8 : stop].decode("utf-8"))
                position = stop
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text after byte {position} is not UTF-8") from error
        self.position = position
        return result

    def _need(self, length: int) -> None:
        if self.position + length > len(self._buffer):
            self._fetch(self.position + length)

    def _fetch(self, stop: int) -> bytes:
        """Extend the buffer to at least the first ``stop`` bytes of the file."""
        if stop > self._size:
            raise self.damaged(f"its header does not end within {self._size} bytes")
        have = len(self._buffer)
        # The buffer doubles each time, so that copying it stays a small part of the work.
        self._buffer += self._file.read(have, min(max(stop, 2 * have, 1 << 16), self._size) - have)
        return self._buffer


@functools.cache
def _formats() -> dict[int, StoredFormat]:
    """All tensor types of the gguf package, by their number in files."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    own = {format.name: format for format in (BF16, F16, F32)}

    def make(kind: GGMLQuantizationType) -> StoredFormat:
        block, block_bytes = GGML_QUANT_SIZES[kind]

        def widen(raw: RawBytes) -> NDArray[np.float32]:
            values: NDArray[np.float32] = dequantize(raw, kind)
            return values

        format, repack = REPACKED.get(kind.name, (WIDENED, None))
        is_read = repack is not None or kind.name in _WIDENED
        holds = mxfp4_fits if kind.name == "MXFP4" else None
        return StoredFormat(kind.name, block, block_bytes, widen if is_read else None, format, repack, holds)

    return {int(kind): own.get(kind.name) or make(kind) for kind in GGML_QUANT_SIZES}
