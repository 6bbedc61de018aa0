"""What one launch needs of a model: arrays that are copied to the device, and the sizes of its buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.plan import Plan
from monolane.program.tape import Bytes, Tape
from monolane.program.tape_store import stream_lanes
from monolane.progress import Progress
from monolane.target.cuda.dealing import dealt_tiles, most_dealt
from monolane.target.cuda.launch import ALIGNMENT, CLEARED, HANDOFFS, TAGGED, Arena, Launch, cache_rows, scratch_sizes
from monolane.target.cuda.layers import segment_table
from monolane.target.cuda.pack_processes import packing_of


@dataclass(frozen=True)
class LaunchModel:
    """Plain data, of all lanes of a model or of one: the process of lane 0 passes it on to those of the other lanes."""

    tapes: Sequence[Bytes]  # one for each worker
    arrays: Mapping[str, NDArray[np.generic]]  # by their names in Launch
    head_places: NDArray[np.int64] | None  # [tile of a tied head][worker, byte of its tape]; None: there is a table
    sizes: Mapping[str, int]  # bytes of every buffer
    cache_rows: int  # rows of pages in each of the two arrays of a KV cache: [lane][layer][KV head]
    vocab: int
    context: int
    placed: Sequence[int] = ()  # instead of ``tapes``: their addresses, where the device has them already

    @classmethod
    def of(
        cls, plan: Plan, tapes: Sequence[Tape], table: Bytes | None, context: int, placed: Sequence[int] = ()
    ) -> LaunchModel:
        """Of the lanes that have these tapes. ``placed``: where the device has those of all workers."""
        arrays: dict[str, NDArray[np.generic]] = {
            "segments": np.frombuffer(segment_table(plan), np.uint8),
            "constants": np.concatenate([tape.constants.values for tape in tapes]),
            "rope_table": rope_table(plan, context),
        }
        if most_dealt(plan):
            arrays["dealt_tiles"] = np.frombuffer(dealt_tiles(plan), np.uint8)
        if table is not None:
            arrays["table"] = table
        return cls(
            tapes=[part for tape in tapes for part in tape.workers],
            arrays=arrays,
            head_places=head_places(plan) if table is None else None,
            sizes=scratch_sizes(plan, context, len(tapes)),
            cache_rows=len(tapes) * cache_rows(plan.program),
            vocab=plan.program.vocab,
            context=context,
            placed=placed,
        )

    @property
    def workers(self) -> int:
        return len(self.placed or self.tapes)

    @property
    def handoff_bytes(self) -> int:
        return self._bytes(HANDOFFS)

    @property
    def cleared_bytes(self) -> int:
        """The first bytes of the memory of hand-offs, which are zeroed before a launch."""
        return self._bytes(CLEARED)

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Of the keys and of the values of a KV cache."""
        return self.sizes["keys"], self.sizes["values"]

    def without_arrays(self) -> LaunchModel:
        return replace(self, tapes=(), arrays={}, head_places=None)

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(-(-self.sizes[name] // ALIGNMENT) * ALIGNMENT for name in names)

    def place(self, arena: Arena, handoffs: int, deadline_s: float) -> Launch:
        """Copy the arrays to the device and allocate the buffers, but for the memory of hand-offs, which is at
        ``handoffs``. The request and the host's memory are not filled in."""
        parts = self.placed or [arena.upload(part) for part in self.tapes]
        launch = Launch(
            tapes=arena.upload(np.array(parts, np.uint64)),
            deadline_ns=int(deadline_s * 1e9),
            tagged_bytes=self._bytes(TAGGED),
            context=self.context,
            **{name: arena.upload(array) for name, array in self.arrays.items()},
        )
        if self.head_places is not None:
            worker, place = self.head_places.T
            launch.head_tiles = arena.upload(np.array(parts, np.uint64)[worker] + place.astype(np.uint64))
        self.place_handoffs(launch, handoffs)
        sizes = {name: size for name, size in self.sizes.items() if name not in HANDOFFS}
        # Rows of activations end in padding that no worker writes and that is multiplied with zeros: it must not be
        # NaN.
        launch.prefill_activations = arena.upload(np.zeros(sizes.pop("prefill_activations"), np.uint8))
        for name, size in sizes.items():
            setattr(launch, name, arena.allocate(size))
        return launch

    def place_handoffs(self, launch: Launch, address: int) -> None:
        """The memory of hand-offs is at ``address``."""
        for name in HANDOFFS:
            setattr(launch, name, address)
            address += -(-self.sizes[name] // ALIGNMENT) * ALIGNMENT


def place_tapes(
    plan: Plan, weights: Weights, config: ModelConfig, arena: Arena, progress: Progress
) -> tuple[tuple[Tape, ...], list[int]]:
    """Load the tapes of all lanes into the device's memory, part by part, so that the host's holds little of them.
    Returns what is left of each lane's tape, and the addresses of all workers' tapes."""
    addresses = [[arena.allocate(size) for size in plan.tape_bytes] for _ in range(plan.program.lanes)]

    def deliver(lane: int, part: Tape) -> None:
        for worker, own in enumerate(part.workers):
            if own.nbytes:
                arena.write(addresses[lane][worker] + part.begin(worker), own)

    with packing_of(plan, weights) as packing:
        left = stream_lanes(plan, weights, config, deliver, progress, packing)
    return left, [address for lane in addresses for address in lane]


def rope_table(plan: Plan, context: int) -> NDArray[np.float32]:
    """The RoPE coefficients: [position][pair][cosine, sine]."""
    angles = np.outer(np.arange(context), plan.program.attention.frequencies)
    return np.stack([np.cos(angles), np.sin(angles)], -1).astype(np.float32)


def head_places(plan: Plan) -> NDArray[np.int64]:
    """Where each tile of a tied head lies: [tile][worker, byte of its tape]."""
    last = len(plan.program.projections) - 1
    tile_bytes = plan.layout.tile_bytes(plan.program.head)
    places = [
        (worker, segments[last].offset + tile * tile_bytes)
        for worker, segments in enumerate(plan.segments)
        for tile in range(segments[last].tiles)
    ]
    return np.array(places, np.int64)
