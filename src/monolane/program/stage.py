"""The words a decode program is written in: plain, frozen data that a person can read and a target can compile.

A program is the list of stages of one pass. All workers do their share of a stage, then hand over. Everything a
stage needs to know is in it: which matrix it streams, how its input is prepared, what becomes of its output, and
which buffers it reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal

PASS_ROWS = 16  # the most rows (token positions) of one pass: those of a tensor core's A operand
CacheFormat = Literal["bf16", "f32"]


@dataclass(frozen=True)
class Format:
    """How the weights of a matrix are stored. Formats with scales will add their group size here."""

    name: str
    bits: int


BF16 = Format("bf16", 16)


class Arrangement(Enum):
    """How the parts of a matrix share its rows."""

    STACK = "stack"  # one part after the other
    INTERLEAVE = "interleave"  # row 2i from the first part, row 2i+1 from the second


@dataclass(frozen=True)
class Matrix:
    """A [rows, cols] matrix, made of one or more of the model's weights, each with its own number of rows."""

    name: str
    parts: tuple[tuple[str, int], ...]
    cols: int
    arrangement: Arrangement = Arrangement.STACK
    format: Format = BF16

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    def part_rows(self, start: int, stop: int) -> list[tuple[str, int, int, slice]]:
        """Which rows of which weights make up rows [start, stop): (weight, first, last, where in the result)."""
        if self.arrangement is Arrangement.INTERLEAVE:
            count = len(self.parts)
            return [
                (name, -(-(start - i) // count), -(-(stop - i) // count), slice((i - start) % count, None, count))
                for i, (name, _) in enumerate(self.parts)
            ]
        found, base = [], 0
        for name, rows in self.parts:
            first, last = max(start, base), min(stop, base + rows)
            if first < last:
                found.append((name, first - base, last - base, slice(first - start, last - start)))
            base += rows
        return found


@dataclass(frozen=True)
class Vector:
    """A small fp32 vector that every worker may read: a norm's weight, a matrix's bias. Parts as in a matrix."""

    name: str
    parts: tuple[tuple[str, int], ...]
    arrangement: Arrangement = Arrangement.STACK

    @property
    def size(self) -> int:
        return sum(size for _, size in self.parts)


@dataclass(frozen=True)
class Norm:
    """Input preparation: RMS norm of the whole vector, recomputed by every worker."""

    weight: Vector
    eps: float


@dataclass(frozen=True)
class Merge:
    """Input preparation: attention's partial results are merged over the splits in its window, in order of position."""

    window: int | None


@dataclass(frozen=True)
class Plain:
    """Input preparation: none."""


Input = Norm | Merge | Plain


class Output(Enum):
    """What becomes of a row's dot product (plus bias)."""

    STORE = "store"
    RESIDUAL = "residual"  # added to the residual stream
    GATE = "gate"  # rows 2i and 2i+1 become silu(gate) * up
    LOGITS = "logits"  # stored, for the rows whose next token is asked for


@dataclass(frozen=True)
class Embed:
    """Look the tokens' rows up. ``table`` names the matrix that holds them: the head's when tied."""

    name: str
    table: str
    writes: str


@dataclass(frozen=True)
class Project:
    """Stream a matrix, multiply it with the prepared input."""

    name: str
    layer: int | None
    matrix: Matrix
    input: Input
    output: Output
    reads: str
    writes: str
    residual: str | None = None  # the buffer that RESIDUAL adds to; only a row's owner reads it
    bias: Vector | None = None


@dataclass(frozen=True)
class Attend:
    """Norm and rotate queries and keys, append keys and values to the cache, attend split by split.

    The work items are (key/value head, split of the context); AttentionShape.splitting says how a target splits. The
    result of an item is, for each query head and position, the running maximum, the sum of exponentials and the
    unnormalised weighted values.
    """

    name: str
    layer: int
    window: int | None
    q_norm: Norm | None
    k_norm: Norm | None
    reads: str
    writes: str


@dataclass(frozen=True)
class Sample:
    """Choose the next token from the logits, check for the end, hand the token over."""

    name: str
    reads: str


Stage = Embed | Project | Attend | Sample


@dataclass(frozen=True)
class Buffer:
    """An fp32 activation buffer: ``size`` elements per position of a pass, or per position and split of the context."""

    name: str
    size: int
    per_split: bool = False


def first_seen(position: int, window: int | None) -> int:
    """The earliest position that a position looks at."""
    return 0 if window is None else max(0, position - window + 1)


@dataclass(frozen=True)
class Splitting:
    """How a target divides the context of a position into splits, which workers attend to side by side.

    Without ``most``, every split has ``tokens`` tokens: neither the splits nor the order of any sum depend on how many
    workers there are. With it, ``tokens`` is the least that a split has, and a longer context is divided into at most
    ``most`` equal splits. Their number follows from the number of workers, so the last bits of a result do, too; for
    one plan they are the same on every run.
    """

    tokens: int
    most: int | None = None


@dataclass(frozen=True)
class AttentionShape:
    """What all attention stages share. Frequencies are radians per position."""

    heads: int
    kv_heads: int
    head_dim: int
    splitting: Splitting
    scale: float
    frequencies: tuple[float, ...]
    cache_format: CacheFormat

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def partial_size(self) -> int:
        """Elements of one head's partial result: maximum, sum, weighted values."""
        return 2 + self.head_dim

    @property
    def split(self) -> int:
        """Positions of a split."""
        return self.splitting.tokens

    def splits(self, context: int) -> int:
        return -(-context // self.split)

    def splits_seen(self, position: int, window: int | None) -> range:
        """The splits that a position looks at."""
        return range(first_seen(position, window) // self.split, position // self.split + 1)


@dataclass(frozen=True)
class Program:
    """The stages of one pass, in order, and the buffers between them."""

    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]
    attention: AttentionShape
    table: Matrix | None  # the embedding where it is not the head's matrix
    hidden: int
    vocab: int
    layers: int
    context: int  # the longest the model was made for

    @cached_property
    def projections(self) -> tuple[Project, ...]:
        """The stages that stream weights, in reading order."""
        return tuple(stage for stage in self.stages if isinstance(stage, Project))

    @property
    def head(self) -> Project:
        return self.projections[-1]

    @property
    def handoffs(self) -> int:
        """Hand-offs in one pass: one after every stage but the last."""
        return len(self.stages) - 1

    def vectors(self) -> tuple[Vector, ...]:
        """Every constant vector, in order of first use."""
        found: list[Vector] = []
        for stage in self.stages:
            if isinstance(stage, Project):
                found += [stage.input.weight] if isinstance(stage.input, Norm) else []
                found += [stage.bias] if stage.bias else []
            elif isinstance(stage, Attend):
                found += [norm.weight for norm in (stage.q_norm, stage.k_norm) if norm]
        return tuple(found)

    def cache_bytes(self, context: int) -> int:
        """Bytes of keys and values for that many positions."""
        element = 2 if self.attention.cache_format == "bf16" else 4
        return 2 * self.layers * self.attention.kv_heads * self.attention.head_dim * context * element
