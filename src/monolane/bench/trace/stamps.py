"""A trace: time stamps of every worker at every stage, over a few tokens, and the times that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from monolane.program.stage import Stage

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """The stamps of some successive decode passes. Of the first pass only the end is used: the second begins there."""

    name: str  # of model and target, for display
    stages: tuple[Stage, ...]
    stamps: NDArray[np.int64]  # as ``Stamping.trace`` returns them
    us_per_token: float  # in a run without stamps
    bytes_per_token: int

    @property
    def tokens(self) -> int:
        return len(self.stamps) - 1

    @property
    def workers(self) -> int:
        return int(self.stamps.shape[1])

    @cached_property
    def began(self) -> Times:
        """When each worker reached each stage, in µs since the earliest: [token][worker][stage]."""
        return self._since_begin(self.stamps[1:, ..., 0])

    @cached_property
    def ready(self) -> Times:
        """When each worker had the stage's input; where a stage has no stamp for that, when it reached the stage."""
        return np.where(self.stamps[1:, ..., 1] > 0, self._since_begin(self.stamps[1:, ..., 1]), self.began)

    @cached_property
    def ended(self) -> Times:
        return self._since_begin(self.stamps[1:, ..., 2])

    @cached_property
    def critical(self) -> Times:
        """From the slowest worker's end of the previous stage to that of this one, in µs: [token][stage].

        The sum over a token's stages is the time of the token.
        """
        ends = self.stamps[..., 2].max(1)
        added = np.diff(ends.ravel())[len(self.stages) - 1 :] / 1e3
        return np.asarray(added.reshape(self.tokens, -1))

    def kinds(self) -> dict[str, NDArray[np.bool_]]:
        """For each kind of stage, by name, which of the stages are of this kind."""
        names = np.array([stage.name for stage in self.stages])
        return {name: names == name for name in dict.fromkeys(names.tolist())}

    def _since_begin(self, stamps: NDArray[np.int64]) -> Times:
        return np.asarray((stamps - self.stamps[1:, ..., 0].min()) / 1e3)


def report(trace: Trace) -> str:
    """Decode speed and, per kind of stage, the time on the critical path, waiting and working, in µs."""
    gigabytes = trace.bytes_per_token / trace.us_per_token / 1e3
    wait, work = trace.ready - trace.began, trace.ended - trace.ready
    lines = [
        f"{trace.name}: {trace.us_per_token:,.1f} µs/token, {gigabytes:,.1f} GB/s of weights",
        f"{'stage':10}{'times':>6}{'adds each':>12}{'adds in all':>13}{'wait mean':>12}{'work mean':>12}{'max':>11}",
    ]
    for name, which in trace.kinds().items():
        each = trace.critical[:, which].mean()
        lines.append(
            f"{name:10}{which.sum():6}{each:12,.2f}{each * which.sum():13,.1f}"
            f"{wait[..., which].mean():12,.2f}{work[..., which].mean():12,.2f}{work[..., which].max():11,.2f}"
        )
    total = trace.critical.sum(1).mean()
    lines.append(f"{'a token':10}{len(trace.stages):6}{'':12}{total:13,.1f}   with stamps, over {trace.tokens} tokens")
    return "\n".join(lines)
