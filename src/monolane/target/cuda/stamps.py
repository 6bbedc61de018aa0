"""Time stamps of one request: the kernel that records them, and the memory where it does."""

from __future__ import annotations

import numpy as np

from monolane.target.cuda.launcher import Launcher


class Stamps:
    """Of the next request of a launcher, in ns, from decode pass ``first`` on. ``cubin``: a traced kernel."""

    def __init__(self, launcher: Launcher, cubin: bytes, stages: int, first: int, passes: int) -> None:
        shape = (passes, launcher.workers, stages)
        self.trace = np.zeros((*shape, 3), np.int64)  # when a worker came to a stage, had its input, ended its share
        self.waits = np.zeros(shape, np.int64)  # how long a worker waited for other lanes
        self._launcher, context = launcher, launcher.context
        context.enter()
        self.kernel = context.load(cubin, context.device.shared_limit)
        self._places = [context.allocate(stamps.nbytes) for stamps in (self.trace, self.waits)]
        for place, stamps in zip(self._places, (self.trace, self.waits), strict=True):
            context.clear(place, stamps.nbytes)  # a request may end before the last of these passes
        launch = launcher.launch
        launch.trace, launch.lane_waits = self._places
        launch.trace_from, launch.trace_passes = first, passes

    def read(self) -> None:
        """Once the request has ended."""
        for place, stamps in zip(self._places, (self.trace, self.waits), strict=True):
            self._launcher.context.download(place, stamps)

    def close(self) -> None:
        self._launcher.launch.trace = self._launcher.launch.lane_waits = None
        for place in self._places:
            self._launcher.context.free(place)
