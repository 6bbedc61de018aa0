"""Work in a thread that does not delay the end of the program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


async def in_daemon_thread(work: Callable[[], Result]) -> Result:
    """Like ``asyncio.to_thread``, but the interpreter does not wait for the thread when it exits."""
    outcome: Future[Result] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(work())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="monolane-load", daemon=True).start()
    return await asyncio.wrap_future(outcome)
