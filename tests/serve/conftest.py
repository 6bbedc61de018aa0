"""Servers that the tests here share, if they only send requests and check the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import openai
import pytest
from running import Running, openai_client, running
from tool_engines import CALLS, tool_engine

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One that answers "Hello there.", faster than any real one."""
    with running(tokens_per_second=100_000, ceiling=1e15) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: Running) -> openai.OpenAI:
    return openai_client(server)


@pytest.fixture(scope="session")
def caller() -> Iterator[Running]:
    """One whose model calls a function after a few words."""
    with running(engine=tool_engine("hermes", "Let me see.\n" + CALLS["hermes"])) as server:
        yield server


@pytest.fixture(scope="module")  # while it runs, this thread has an event loop, and tests of other files want theirs
def chromium() -> Iterator[Browser]:
    from playground_browser import browser

    with browser() as chromium:
        yield chromium
