"""Writes a bf16 copy of a GGUF file, so that a peer reads the same 2 bytes per weight as Monolane."""

from __future__ import annotations

import hashlib
from pathlib import Path

from monolane.cache import cache_folder, make_folder


def _identity(path: Path) -> str:
    """A short hash that differs for another file of the same name, and after the file has changed."""
    stat = path.stat()
    facts = (str(path.resolve()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def bf16_twin(path: Path) -> Path:
    """The path of the copy, which is written into the cache once. Matrices become BF16, vectors F32."""
    import gguf
    import numpy as np

    twin = make_folder(cache_folder("models")) / f"{path.stem}-{_identity(path)}-bf16.gguf"
    if twin.exists():
        return twin
    reader = gguf.GGUFReader(path)
    temporary = twin.with_suffix(".tmp")
    writer = gguf.GGUFWriter(temporary, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    matrix_type = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        kind = matrix_type if len(shape) > 1 else gguf.GGMLQuantizationType.F32
        size = int(np.prod(shape)) * (2 if kind == matrix_type else 4)
        writer.add_tensor_info(
            tensor.name, shape, np.dtype(np.float16 if kind == matrix_type else np.float32), size, kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.write_tensor_data(gguf.quants.quantize(values, matrix_type) if len(tensor.shape) > 1 else values)
    writer.close()
    temporary.replace(twin)
    return twin
