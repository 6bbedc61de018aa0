"""Reads the header of a safetensors file: the location of each tensor. Every number is checked before it is used."""

from __future__ import annotations

import math
from typing import TypeGuard

from monolane.errors import ModelFileError
from monolane.model.data_file import DataFile
from monolane.model.json_object import parse_json_object
from monolane.model.tensors import BF16, F16, F32, StoredFormat, StoredTensor, check_layout

# Bytes; the format's own limit.
_HEADER_LIMIT = 100_000_000
_LENGTH_BYTES = 8

# All types of the format, because the layout check needs their sizes. Only BF16, F16 and F32 tensors can be read.
_FORMATS = {format.name: format for format in (BF16, F16, F32)} | {
    name: StoredFormat(name, 1, size, None)
    for name, size in {
        "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
        "U32": 4, "I32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
    }.items()
}  # fmt: skip


def read_safetensors(file: DataFile) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file by name."""
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    data_start = _LENGTH_BYTES + length
    if length > _HEADER_LIMIT or data_start > file.size:
        raise _damaged(file, f"its header claims {length} bytes")
    header = parse_json_object(file.read(_LENGTH_BYTES, length), f"The header of {file.path}")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, data_start, name, entry) for name, entry in header.items()}
    check_layout(tensors, file, data_start)
    return tensors


def _tensor(file: DataFile, data_start: int, name: str, entry: object) -> StoredTensor:
    if not isinstance(entry, dict):
        raise _damaged(file, f"the entry of {name!r} is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    format = _FORMATS.get(dtype) if isinstance(dtype, str) else None
    if format is None:
        raise _damaged(file, f"the type {dtype!r} of {name!r} is unknown")
    # No tensor has more than 8 dimensions; the product of a longer list could be a huge number.
    if not _are_sizes(shape) or len(shape) > 8 or not _are_sizes(offsets) or len(offsets) != 2:
        raise _damaged(file, f"the shape or the offsets of {name!r} make no sense")
    start, stop = offsets
    if stop - start != format.size(math.prod(shape)):
        raise _damaged(file, f"the shape {shape} of {name!r} does not fit its {stop - start} bytes")
    return StoredTensor(file, data_start + start, tuple(shape), format)


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)


def _damaged(file: DataFile, why: str) -> ModelFileError:
    return ModelFileError(f"{file.path} is no sound safetensors file: {why}.", "It is damaged; fetch it again.")
