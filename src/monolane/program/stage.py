"""The data types of a program: plain, frozen data that a person can read and a target can compile.

A program is the list of stages of one pass. All workers do their share of a stage, then hand over. A stage says which
matrix it streams, how its input is prepared, what is done with its output, and which buffers it reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Literal

from monolane.model.config import SWIGLU, Gate
from monolane.model.format import BF16, Format

PASS_ROWS = 16  # the most rows (token positions) of one pass; a tensor core's A operand has as many
CacheFormat = Literal["bf16", "f32"]


class Arrangement(Enum):
    """How the parts of a matrix share its rows."""

    STACK = "stack"  # one part after the other
    INTERLEAVE = "interleave"  # row 2i from the first part, row 2i+1 from the second


@dataclass(frozen=True)
class Matrix:
    """A [rows, cols] matrix, made of one or more of the model's weights. ``parts``: (name of the weight, its rows).

    With several ``experts`` it is as many matrices of this size. A weight then has the rows of all experts, one expert
    after the other, and ``parts`` have the number of those of one.
    """

    name: str
    parts: tuple[tuple[str, int], ...]
    cols: int
    arrangement: Arrangement = Arrangement.STACK
    format: Format = BF16
    experts: int = 1

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    def part_rows(self, start: int, stop: int, expert: int = 0) -> list[tuple[str, int, int, slice]]:
        """Where rows [start, stop) of an expert come from: (weight, its first row, its last row + 1, place in the
        result). Where ``is_stacked``, rows behind its last are those of the next expert."""
        before = {name: expert * rows for name, rows in self.parts}
        return [
            (name, before[name] + first, before[name] + last, where)
            for name, first, last, where in self._part_rows(start, stop)
        ]

    @property
    def is_stacked(self) -> bool:
        """Whether the rows of all experts are those of one matrix, one expert's behind the other's."""
        return self.arrangement is Arrangement.INTERLEAVE or len(self.parts) == 1

    def _part_rows(self, start: int, stop: int) -> list[tuple[str, int, int, slice]]:
        if self.is_stacked:
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
    """A small fp32 vector that every worker reads: a norm's weight or a matrix's bias. Parts as in a matrix, but with
    the elements of all experts."""

    name: str
    parts: tuple[tuple[str, int], ...]
    arrangement: Arrangement = Arrangement.STACK

    @property
    def size(self) -> int:
        return sum(size for _, size in self.parts)


@dataclass(frozen=True)
class Norm:
    """Input preparation: RMS norm of the whole vector. Every worker computes it for itself."""

    weight: Vector
    eps: float


@dataclass(frozen=True)
class Merge:
    """Input preparation: partial results of attention, merged over the splits in the window, in order of position.
    ``sinks``: one more logit of each head's softmax, which attends to nothing."""

    window: int | None
    sinks: Vector | None = None


@dataclass(frozen=True)
class Plain:
    """Input preparation: none."""


Input = Norm | Merge | Plain


class Output(Enum):
    """What is done with the dot product (plus bias) of a row of the matrix."""

    STORE = "store"
    RESIDUAL = "residual"  # added to the residual stream
    GATE = "gate"  # rows 2i and 2i+1 become one element: the gated activation of the stage's ``gate``
    LOGITS = "logits"  # stored, for those rows of the pass whose logits are needed


@dataclass(frozen=True)
class Exchange:
    """What the lanes add to their residual streams after a projection. Every lane has multiplied its own columns of the
    matrix, so every lane has a partial output for every row; sums over lanes are in the order of the lanes.

    own    factor of the lane's own output
    late   how many layers before the outputs of the other lanes were made that are added now; 0: in this layer, which
           makes the sum an all-reduce; None: nothing of the other lanes is added
    """

    own: float = 1.0
    late: int | None = 0


class Scoring(Enum):
    """What makes weights of the logits of the chosen experts."""

    SOFTMAX = "softmax"  # over all experts
    CHOSEN_SOFTMAX = "softmax of chosen"  # over the chosen ones, whose weights sum to 1
    SIGMOID = "sigmoid"


@dataclass(frozen=True)
class Routing:
    """Which of a matrix's experts a row of the pass uses, and with which weights: program/route.py defines the choice.
    Every worker makes it for itself from the logits, which are elements ``first`` to ``first + count - 1`` of the
    buffer ``reads``. Chosen experts are in order of their index.

    A GATE output has the activations of the chosen experts one after the other, each multiplied with its expert's
    weight. A RESIDUAL output has them as its input: the sum of what the chosen experts make of theirs, in that order,
    and of their biases, each multiplied with its expert's weight.
    """

    reads: str
    first: int
    count: int
    chosen: int
    scoring: Scoring


class Joining(Enum):
    """What becomes of one vector per lane."""

    SUM = "sum"
    MEAN = "mean"
    CONCAT = "concat"  # one after the other


@dataclass(frozen=True)
class Embed:
    """Look up the embeddings of the tokens. ``table`` names the matrix that holds them: the head's where it is tied."""

    name: str
    table: str
    writes: str


@dataclass(frozen=True)
class Project:
    """Stream a matrix and multiply it with the prepared input.

    A matrix has one format. Where parts of a stage's matrix are stored in different ones (a file in Q4_K with v in
    Q6_K), the stage is several projections in a row: all but the first ``continues`` the one before. They have the same
    input, write one after the other to the same buffer, and there is no hand-off between them. In the same way the
    stages of a shared expert continue those of the others: with the same input and a buffer of its own, and then with
    that buffer as the input, adding to the residual stream what the owner of its rows has just written.
    """

    name: str
    layer: int | None
    matrix: Matrix
    input: Input
    output: Output
    reads: str
    writes: str
    residual: str | None = None  # the buffer that RESIDUAL adds to; the owner of a row alone reads that row
    bias: Vector | None = None
    order: Vector | None = None  # of an ordered matrix: the element of the input behind each of its columns
    exchange: Exchange | None = None  # of a residual output, where there are several lanes
    continues: bool = False
    first_row: int = 0  # of the output, in the buffer that it writes
    gate: Gate = SWIGLU  # of a GATE output
    routing: Routing | None = None
    routes: bool = False  # whether the outputs are the logits that experts are chosen by

    @property
    def chosen(self) -> int:
        """How many of the matrix's experts a row of the pass uses."""
        return self.routing.chosen if self.routing else 1

    @property
    def outputs(self) -> int:
        """Elements of the output, or of that of each chosen expert."""
        return self.matrix.rows // 2 if self.output is Output.GATE else self.matrix.rows


@dataclass(frozen=True)
class Attend:
    """Apply QK norm and RoPE to queries and keys, append keys and values to the KV cache, attend split by split.

    The work items are (KV head, split of the context); AttentionShape.splitting says how a target splits. The result of
    an item is, for each query head and row of the pass, the row max, the row sum and the accumulator of the softmax.
    """

    name: str
    layer: int
    window: int | None
    q_norm: Norm | None
    k_norm: Norm | None
    reads: str
    writes: str


@dataclass(frozen=True)
class Combine:
    """Give every lane the residual streams of all lanes, each normed first where there is a norm."""

    name: str
    norm: Norm | None
    joining: Joining
    reads: str
    writes: str


@dataclass(frozen=True)
class Sample:
    """Choose the next token from the logits, check the stop conditions, give the token to the host."""

    name: str
    reads: str


Stage = Embed | Project | Attend | Combine | Sample


@dataclass(frozen=True)
class Buffer:
    """An fp32 activation buffer: ``size`` elements per row of a pass, or per row and split of the context."""

    name: str
    size: int
    per_split: bool = False


def continues(stage: Stage) -> bool:
    """Whether there is no hand-off between a stage and the one before it."""
    return isinstance(stage, Project) and stage.continues


def first_seen(position: int, window: int | None) -> int:
    """The first position that ``position`` attends to."""
    return 0 if window is None else max(0, position - window + 1)


@dataclass(frozen=True)
class Splitting:
    """How a target divides the context of a position into splits, which workers attend to in parallel.

    Without ``most``, every split has ``tokens`` tokens, so neither the splits nor the order of any sum depend on the
    number of workers. With ``most``, a split has at least ``tokens`` tokens, and a longer context is divided into at
    most ``most`` equal splits. ``most`` follows from the number of workers, so the last bits of a result depend on that
    number; for one plan they are the same on every run.
    """

    tokens: int
    most: int | None = None


@dataclass(frozen=True)
class AttentionShape:
    """What all attention stages share. Frequencies are those of RoPE, in radians per position."""

    heads: int
    kv_heads: int
    head_dim: int
    splitting: Splitting
    scale: float
    frequencies: tuple[float, ...]
    cache_format: CacheFormat

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def partial_size(self) -> int:
        """Elements of one head's partial result: row max, row sum, accumulator."""
        return 2 + self.head_dim

    @property
    def split(self) -> int:
        """Positions of a split (with ``most``: the fewest)."""
        return self.splitting.tokens

    def splits(self, context: int) -> int:
        return -(-context // self.split)

    def splits_seen(self, position: int, window: int | None) -> range:
        """The splits that ``position`` attends to."""
        return range(first_seen(position, window) // self.split, position // self.split + 1)


@dataclass(frozen=True)
class Program:
    """The stages of one pass, in order, and the buffers between them.

    With several lanes this is the program of each of them: sizes are those of one lane's share, and all lanes run the
    same stages on their own weights. The logits of all lanes are gathered, so that every lane samples the same token;
    ``vocab`` is the whole vocabulary, of which each lane's head has ``head.matrix.rows`` rows, some of them padding.
    """

    stages: tuple[Stage, ...]
    buffers: tuple[Buffer, ...]
    attention: AttentionShape
    table: Matrix | None  # the embedding, where it is not tied to the head
    hidden: int
    vocab: int
    layers: int
    context: int  # the most positions that the model was made for
    lanes: int = 1

    @cached_property
    def projections(self) -> tuple[Project, ...]:
        """The stages that stream weights, in reading order."""
        return tuple(stage for stage in self.stages if isinstance(stage, Project))

    @property
    def head(self) -> Project:
        return self.projections[-1]

    @cached_property
    def begun(self) -> tuple[Stage, ...]:
        """The stages without those that continue another one: there is a hand-off after each but the last."""
        return tuple(stage for stage in self.stages if not continues(stage))

    @cached_property
    def projections_by_stage(self) -> list[list[int]]:
        """Indices into ``projections``: several where projections continue the stage of the one before."""
        found: list[list[int]] = []
        for index, stage in enumerate(self.projections):
            if stage.continues:
                found[-1].append(index)
            else:
                found.append([index])
        return found

    @property
    def handoffs(self) -> int:
        """Hand-offs in one pass: one after every stage but the last, and none within a stage of several formats."""
        return len(self.begun) - 1

    def vectors(self) -> tuple[Vector, ...]:
        """Every constant vector, once, in order of first use."""
        found: list[Vector] = []
        for stage in self.stages:
            if isinstance(stage, Project):
                found += [stage.input.weight] if isinstance(stage.input, Norm) and not stage.continues else []
                found += [stage.input.sinks] if isinstance(stage.input, Merge) and stage.input.sinks else []
                found += [stage.order] if stage.order and not stage.continues else []
                found += [stage.bias] if stage.bias else []
            elif isinstance(stage, Combine):
                found += [stage.norm.weight] if stage.norm else []
            elif isinstance(stage, Attend):
                found += [norm.weight for norm in (stage.q_norm, stage.k_norm) if norm]
        return tuple(dict.fromkeys(found))  # the norm before experts is also that before their router

    def cache_bytes(self, context: int) -> int:
        """Bytes of keys and values for that many positions, of one lane."""
        element = 2 if self.attention.cache_format == "bf16" else 4
        return 2 * self.layers * self.attention.kv_heads * self.attention.head_dim * context * element
