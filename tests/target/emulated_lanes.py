"""Lanes apart in the emulation: a launch for each lane, all at the same time, which store to each other's memory."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from emulated import HostArena, build_emulated
from numpy.typing import NDArray

from monolane.model.config import ModelConfig
from monolane.model.weights import Weights
from monolane.program.sample import Sampling
from monolane.program.tape_store import load_lanes
from monolane.progress import Silent
from monolane.target import structs
from monolane.target.base import Request, Token
from monolane.target.cuda.launch import Launch, Outcome, set_request
from monolane.target.cuda.launch_model import LaunchModel
from monolane.target.cuda.opening import cuda_plan


class EmulatedLanes:
    """``workers`` thread blocks for each lane."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        lanes: int,
        workers: int = 2,
        context: int = 256,
        delay_permille: int = 0,
        seed: int = 1,
        stall: tuple[int, int, int] | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        plan = cuda_plan(config, workers * lanes, lanes)
        tapes = load_lanes(plan, weights, config, lambda size: np.zeros(size, np.uint8), Silent())
        models = [LaunchModel.of(plan, [tape], tapes[0].table, context) for tape in tapes]
        self._arena, self._cleared, self._handoffs = HostArena(), models[0].cleared_bytes, models[0].handoff_bytes
        places = [self._arena.allocate(self._handoffs) for _ in models]
        self.launches = []
        for lane, (model, place) in enumerate(zip(models, places, strict=True)):
            ctypes.memset(place, 0, self._handoffs)
            launch = model.place(self._arena, place, deadline_s)
            launch.lane = lane
            for other, address in enumerate(places):
                launch.peers[other] = address - place
            self.launches.append(launch)
        # A library has one Launch struct: every lane needs one of its own.
        self._folder = tempfile.TemporaryDirectory()
        library = build_emulated(plan, stall, apart=True)
        copies = [shutil.copy(library, Path(self._folder.name) / f"{lane}.so") for lane in range(lanes)]
        self._calls = [ctypes.CDLL(str(copy)).monolane_emulate for copy in copies]
        self._context, self._delays, self._head_rows = context, (delay_permille, seed), plan.program.head.matrix.rows
        self.vocab, self._number = config.vocab, 0

    def run(self, request: Request) -> tuple[list[Token], list[Outcome]]:
        """The tokens that lane 0 has found, and how the request ended on each lane."""
        return self._run(request, [None] * len(self.launches))

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        shares = [np.full((len(tokens), self.vocab), np.nan, np.float32) for _ in self.launches]
        _, outcomes = self._run(Request(tokens, 0, 0, frozenset(), Sampling()), [share.ctypes.data for share in shares])
        assert all(outcome.status == structs.Status.LENGTH_REACHED for outcome in outcomes)
        rows = self._head_rows
        return np.concatenate([share[:, lane * rows : (lane + 1) * rows] for lane, share in enumerate(shares)], 1)

    def _run(self, request: Request, logits: Sequence[int | None]) -> tuple[list[Token], list[Outcome]]:
        self._number += 1
        kept, threads, outcomes = [], [], []
        for lane, (call, model) in enumerate(zip(self._calls, self.launches, strict=True)):
            ctypes.memset(model.activation_words, 0, self._cleared)
            launch = Launch.from_buffer_copy(model)
            set_request(launch, request, self.vocab, self._arena, logits[lane])
            entries, outcome, abort = (structs.Entry * self._context)(), Outcome(), ctypes.c_uint32(0)
            launch.entries, launch.outcome = ctypes.addressof(entries), ctypes.addressof(outcome)
            launch.abort, launch.number = ctypes.addressof(abort), self._number
            delays = self._delays[0], ctypes.c_uint64(self._delays[1] + lane)
            threads.append(threading.Thread(target=call, args=(ctypes.byref(launch), *delays)))
            kept.append((launch, entries, abort))
            outcomes.append(outcome)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        entries = kept[0][1]
        return [structs.token_of(entries[i], request.logprobs is not None) for i in range(outcomes[0].made)], outcomes
