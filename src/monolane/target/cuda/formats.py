"""The formats of a program's weights, as the kernel knows them: a C++ type for each (csrc/lowbit.cuh)."""

from __future__ import annotations

from monolane.model.format import BLOCK_GROUPS, FORMATS, Format
from monolane.program.stage import Program
from monolane.program.tiles import block_type
from monolane.target.cpp import braces, integer_constants
from monolane.target.cuda.constants import FRAGMENT_BYTES, MMA_COLS
from monolane.target.generate import SCALINGS

BYTE_ZERO = 128  # is added to the values of a table where they need all of a byte


def any_low_bit(program: Program) -> bool:
    """Whether any projection has low-bit weights."""
    return any(stage.matrix.format.is_low_bit for stage in program.projections)


def type_name(format: Format) -> str:
    return format.name.capitalize()


def fragment_bytes(format: Format) -> int:
    """Bytes that a warp loads at once: 16 per thread of bf16, or a super-block."""
    return block_type(format, MMA_COLS, BLOCK_GROUPS).itemsize if format.is_low_bit else FRAGMENT_BYTES


def definitions(program: Program) -> list[str]:
    """C++ of the formats, and of the embedding's."""
    embedding = program.table or program.head.matrix
    matrices = [*(stage.matrix for stage in program.projections), embedding]
    used = dict.fromkeys(matrix.format.name for matrix in matrices if matrix.format.is_low_bit)
    return [
        f"enum class Scaling : int {braces(SCALINGS.values())};",
        *(line for name in used for line in _type(FORMATS[name])),
        f"using EmbeddingFormat = {type_name(embedding.format)};",
        *integer_constants(
            {
                "kAnyLowBit": int(any_low_bit(program)),
                "kTableRowBytes": embedding.format.row_bytes(embedding.cols),
            }
        ),
    ]


def _type(format: Format) -> list[str]:
    codes, scales = format.codes, format.scales
    assert codes is not None
    assert scales is not None
    values = codes.table or (0,) * 16
    # Values of a table are signed; what the kernel looks up has the zero added, and is unsigned.
    is_small = max(values) - min(values) < BYTE_ZERO
    zero = -min(values) if is_small else BYTE_ZERO
    table = bytes(value + zero for value in values)
    looked_up = table if is_small else bytes(abs(value) for value in values)
    negative = int(min(values[8:]) < 0)  # the half of the table whose values are not positive
    assert all(value <= 0 for value in values[8 * negative :][:8])
    assert all(value >= 0 for value in values[8 - 8 * negative :][:8])
    fields = {
        "bool kIsLowBit": "true",
        "bool kIsInteger": str(format.is_integer).lower(),
        "int kBits": codes.bits,
        "int kZero": zero if codes.table else codes.zero,
        "bool kInPairs": str(codes.bits == 4 and codes.table is None).lower(),
        "bool kInThrees": str(codes.bits == 6).lower(),
        "bool kHasTable": str(codes.table is not None).lower(),
        "bool kHasSmallTable": str(codes.table is not None and is_small).lower(),
        **{f"uint32_t kTable{i}": word for i, word in enumerate(_words(table))},
        **{f"uint32_t kLookup{i}": word for i, word in enumerate(_words(looked_up[:8] + looked_up[:7:-1]))},
        "int kNegativeHalf": negative,
        "Scaling kScaling": f"Scaling::{SCALINGS[scales]}",
        "int kScaleBytes": scales.group_bytes,
        "int kBlockBytes": scales.block_bytes,
    }
    return [
        f"struct {type_name(format)} {{",
        *(f"  static constexpr {name} = {value};" for name, value in fields.items()),
        "};",
    ]


def _words(table: bytes) -> list[str]:
    """Four bytes in a word."""
    return [f"{int.from_bytes(table[i : i + 4], 'little'):#010x}u" for i in range(0, 16, 4)]
