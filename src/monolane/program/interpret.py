"""The oracle: executes a plan in NumPy, from the very bytes that a kernel reads, stage by stage, worker by worker.

It is written to be read, not to be fast: each kind of stage is one method, and that method is the definition of the
stage. Lanes take turns: each does its share of a stage, then what they exchange is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import Gate
from monolane.model.format import groups_of
from monolane.model.weights import from_bf16, to_bf16
from monolane.program import tiles
from monolane.program.activations import rounded
from monolane.program.route import choose
from monolane.program.stage import (
    PASS_ROWS,
    Attend,
    Combine,
    Embed,
    Joining,
    Merge,
    Norm,
    Output,
    Project,
    Routing,
    Sample,
    first_seen,
)
from monolane.program.tape import Bytes, Tape

Floats = NDArray[np.float32]


class Interpreter:
    """A plan, the tape of each lane, and KV caches of ``context`` positions."""

    def __init__(self, tapes: Sequence[Tape], context: int) -> None:
        self.program = tapes[0].plan.program
        self.context = context
        self._lanes = [_Lane(tape, tapes[0].table, context) for tape in tapes]
        self._sent: dict[tuple[str, int], list[Floats]] = {}  # the outputs of all lanes, by stage and layer

    def logits(self, tokens: Sequence[int], start: int = 0, last_only: bool = False) -> Floats:
        """Run tokens at positions ``start``, ``start + 1``, …; return the logits after each, or after the last."""
        found = []
        for first in range(0, len(tokens), PASS_ROWS):
            part = tokens[first : first + PASS_ROWS]
            is_last = first + PASS_ROWS >= len(tokens)
            rows = slice(0, None) if not last_only else slice(len(part) - 1 if is_last else len(part), None)
            found.append(self.run_pass(part, start + first, rows))
        return np.concatenate(found)

    def run_pass(self, tokens: Sequence[int], start: int, logits_of: slice) -> Floats:
        """One pass of up to 16 rows. Returns the logits of the rows ``logits_of``."""
        positions = np.arange(start, start + len(tokens))
        for lane in self._lanes:
            lane.begin_pass(len(positions))
        index = 0
        for stage in self.program.stages:
            match stage:
                case Embed():
                    for lane in self._lanes:
                        lane.embed(stage, tokens)
                case Attend():
                    for lane in self._lanes:
                        lane.attend(stage, positions)
                case Combine():
                    self._combine(stage)
                case Project():
                    if stage.output is Output.LOGITS:
                        shares = [lane.logits(stage, index, logits_of) for lane in self._lanes]
                        return np.concatenate(shares, 1)[:, : self.program.vocab]
                    outputs = [lane.project(stage, index, positions) for lane in self._lanes]
                    self._store(stage, outputs)
                    index += 1
                case Sample():
                    pass
        raise AssertionError("a program ends with its logits")

    def _store(self, stage: Project, outputs: list[Floats]) -> None:
        """Write what a projection has made to the buffers of the lanes; residual streams get it added."""
        if stage.output is Output.RESIDUAL:
            assert stage.residual is not None
            assert stage.layer is not None
            self._sent[stage.name, stage.layer] = outputs
            outputs = [
                lane.buffers[stage.residual][:, 0] + self._added(stage, stage.layer, number)
                for number, lane in enumerate(self._lanes)
            ]
        for lane, output in zip(self._lanes, outputs, strict=True):
            lane.buffers[stage.writes][:, 0, stage.first_row : stage.first_row + output.shape[1]] = output

    def _added(self, stage: Project, layer: int, lane: int) -> Floats:
        """What a lane adds to its residual stream."""
        made, exchange = self._sent[stage.name, layer], stage.exchange
        if exchange is None:
            return made[lane]
        if exchange.late == 0:
            return _sum(made)
        total = np.float32(exchange.own) * made[lane]
        if exchange.late is None:
            return total
        arrived = self._sent[stage.name, layer - exchange.late]
        return _sum([total, *(output for other, output in enumerate(arrived) if other != lane)])

    def _combine(self, stage: Combine) -> None:
        streams = [lane.normed(lane.buffers[stage.reads][:, 0], stage.norm) for lane in self._lanes]
        if stage.joining is Joining.CONCAT:
            combined = np.concatenate(streams, 1)
        else:
            combined = _sum(streams)
            if stage.joining is Joining.MEAN:
                combined = combined / np.float32(len(streams))
        for lane in self._lanes:
            lane.buffers[stage.writes][:, 0] = combined


class _Lane:
    """One lane: its tape, its buffers, its KV cache."""

    def __init__(self, tape: Tape, table: Bytes | None, context: int) -> None:
        self.tape = tape
        self.table = table  # the embedding, which all lanes share
        self.plan = tape.plan
        self.program = tape.plan.program
        self.context = context
        shape = self.program.attention
        # Filled with NaN, so that attention over a position that was never written gives NaN.
        cache = (self.program.layers, shape.kv_heads, context, shape.head_dim)
        self._keys = np.full(cache, np.nan, np.float32)
        self._values = np.full(cache, np.nan, np.float32)
        self.buffers: dict[str, Floats] = {}

    def begin_pass(self, rows: int) -> None:
        """Every buffer starts as NaN, so that a stage that reads an element before it is written gives NaN."""
        for buffer in self.program.buffers:
            splits = self.program.attention.splits(self.context) if buffer.per_split else 1
            self.buffers[buffer.name] = np.full((rows, splits, buffer.size), np.nan, np.float32)

    def embed(self, stage: Embed, tokens: Sequence[int]) -> None:
        out = self.buffers[stage.writes][:, 0]
        for row, token in enumerate(tokens):
            out[row] = self._tied_embedding(token) if self.table is None else self._embedding(self.table[token])

    def _embedding(self, row: Bytes) -> Floats:
        table = self.program.table
        assert table is not None
        if table.format.is_low_bit:
            return tiles.unpack(row, table.format, groups_of(table.cols), 1).values(table.cols).reshape(-1)
        return from_bf16(row.view(np.uint16))

    def _tied_embedding(self, token: int) -> Floats:
        """A row of the head."""
        head, layout = self.program.head, self.plan.layout
        worker, offset = self.plan.locate(len(self.program.projections) - 1, token // layout.rows(head))
        tile = self.tape.workers[worker][offset : offset + layout.tile_bytes(head)]
        row: Floats = layout.values(tile, head)[token % layout.rows(head)]
        return row

    def _prepared(self, stage: Project, positions: NDArray[np.int64] | None) -> Floats:
        """The input of a projection, as every worker prepares it for itself."""
        match stage.input:
            case Norm():
                return self.normed(self.buffers[stage.reads][:, 0], stage.input)
            case Merge():
                assert positions is not None
                return self._merged(stage.reads, positions, stage.input)
            case _:
                return self.buffers[stage.reads][:, 0]

    def _rows(self, stage: Project, index: int, x: Floats, expert: int = 0) -> Floats:
        """Dot products with all rows of the matrix, each row read from the tape of the worker that owns it.

        The input of a matrix of integers is rounded to integers. Kernels add products of integers, which is exact; here
        fp64 is, so what a kernel makes differs from this by the rounding of its fp32 sums of groups only.
        """
        if stage.order:
            x = x[:, self.tape.constants.vector(stage.order).astype(np.int64)]
        inputs = rounded(x) if stage.matrix.format.is_integer else x
        shares = []
        for worker in range(self.plan.workers):
            matrix = self.plan.layout.values(self.tape.experts(worker, index)[expert], stage)
            shares.append((inputs @ matrix.T.astype(inputs.dtype)).astype(np.float32))
        return np.concatenate(shares, 1)[:, : stage.matrix.rows]

    def _bias(self, stage: Project, expert: int = 0) -> Floats:
        if stage.bias is None:
            return np.zeros(stage.matrix.rows, np.float32)
        return self.tape.constants.vector(stage.bias)[expert * stage.matrix.rows :][: stage.matrix.rows]

    def project(self, stage: Project, index: int, positions: NDArray[np.int64]) -> Floats:
        x = self._prepared(stage, positions)
        if stage.routing is not None:
            return self._experts(stage, stage.routing, index, x)
        y = self._rows(stage, index, x) + self._bias(stage)
        return _gated(stage.gate, y) if stage.output is Output.GATE else y

    def _experts(self, stage: Project, routing: Routing, index: int, x: Floats) -> Floats:
        """Each expert is visited once, for all rows of the pass that have chosen it. The input of a sum over experts
        has been multiplied with their weights before; biases have not."""
        experts, weights = choose(routing, self.buffers[routing.reads][:, 0])
        is_sum = stage.output is Output.RESIDUAL
        made = np.zeros((len(x), 1 if is_sum else routing.chosen, stage.outputs), np.float32)
        for expert in np.unique(experts):
            rows, places = np.nonzero(experts == expert)
            weight, bias = weights[rows, places, None], self._bias(stage, expert)
            if is_sum:
                inputs = x.reshape(len(x), routing.chosen, -1)[rows, places]
                made[rows, 0] += self._rows(stage, index, inputs, expert) + weight * bias
            else:
                made[rows, places] = weight * _gated(stage.gate, self._rows(stage, index, x[rows], expert) + bias)
        return made.reshape(len(x), -1)

    def logits(self, stage: Project, index: int, rows: slice) -> Floats:
        x = self._prepared(stage, None)[rows]
        return (
            self._rows(stage, index, x) + self._bias(stage) if len(x) else np.zeros((0, stage.matrix.rows), np.float32)
        )

    def attend(self, stage: Attend, positions: NDArray[np.int64]) -> None:
        shape = self.program.attention
        qkv = self.buffers[stage.reads][:, 0].reshape(len(positions), -1, shape.head_dim)
        q, k, v = np.split(qkv, [shape.heads, shape.heads + shape.kv_heads], 1)
        q = self._rotated(self.normed(q, stage.q_norm), positions)
        k = self._rotated(self.normed(k, stage.k_norm), positions)
        keys, values = self._keys[stage.layer], self._values[stage.layer]
        keys[:, positions] = self._stored(k).swapaxes(0, 1)
        values[:, positions] = self._stored(v).swapaxes(0, 1)
        out = self.buffers[stage.writes].reshape(len(positions), -1, shape.heads, shape.partial_size)
        for row, position in enumerate(positions):
            for split in shape.splits_seen(int(position), stage.window):
                start = max(first_seen(int(position), stage.window), split * shape.split)
                seen = slice(start, min(int(position) + 1, (split + 1) * shape.split))
                for head in range(shape.heads):
                    scores = keys[head // shape.group, seen] @ q[row, head] * np.float32(shape.scale)
                    highest = scores.max()
                    weights = np.exp(scores - highest)
                    partial = out[row, split, head]
                    partial[0], partial[1] = highest, weights.sum()
                    partial[2:] = weights @ values[head // shape.group, seen]

    def _merged(self, buffer: str, positions: NDArray[np.int64], merge: Merge) -> Floats:
        """The output of attention: the partial results of the splits, scaled to a common row max and added. A sink is
        part of the row sum only."""
        shape = self.program.attention
        sinks = self.tape.constants.vector(merge.sinks) if merge.sinks else np.full(shape.heads, -np.inf, np.float32)
        partials = self.buffers[buffer].reshape(len(positions), -1, shape.heads, shape.partial_size)
        out = np.empty((len(positions), shape.heads, shape.head_dim), np.float32)
        for row, position in enumerate(positions):
            made = partials[row, shape.splits_seen(int(position), merge.window)]
            highest = np.maximum(made[:, :, 0].max(0), sinks)
            weights = np.exp(made[:, :, 0] - highest)
            total = (weights * made[:, :, 1]).sum(0) + np.exp(sinks - highest)
            out[row] = (weights[:, :, None] * made[:, :, 2:]).sum(0) / total[:, None]
        return out.reshape(len(positions), -1)

    def normed(self, x: Floats, norm: Norm | None) -> Floats:
        if norm is None:
            return x
        scale = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=np.float32) + np.float32(norm.eps))
        return (x * scale * self.tape.constants.vector(norm.weight)).astype(np.float32)

    def _rotated(self, x: Floats, positions: NDArray[np.int64]) -> Floats:
        """RoPE: element i of the first half of a head and element i of the second half are one pair."""
        angles = np.outer(positions, self.program.attention.frequencies)[:, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        low, high = np.split(x, 2, -1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def _stored(self, x: Floats) -> Floats:
        """A key or value as the KV cache stores it."""
        return from_bf16(to_bf16(x)) if self.program.attention.cache_format == "bf16" else x


def _gated(gate: Gate, y: Floats) -> Floats:
    """The gated activation of rows in which gate and up take turns."""
    gates, ups = y[:, 0::2], y[:, 1::2]
    if gate.limit is not None:
        limit = np.float32(gate.limit)
        gates, ups = np.minimum(gates, limit), np.clip(ups, -limit, limit)
    activated: Floats = gates / (1 + np.exp(np.float32(-gate.slope) * gates)) * (ups + np.float32(gate.shift))
    return activated


def _sum(parts: Sequence[Floats]) -> Floats:
    """In order, in fp32."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
