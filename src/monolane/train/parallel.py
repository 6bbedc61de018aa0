"""One function for many items, on all processors: Python cannot tokenise on more than one with threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def on_all_processors(function: Callable[[Item], Made], items: Iterable[Item], workers: int) -> Iterator[Made]:
    """The results in the order of the items. With one worker, this process does the work itself."""
    if workers == 1:
        yield from map(function, items)
        return
    # New processes instead of copies of this one: a copy would not have the threads that libraries have started.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(function, items)


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
