"""Debian's Chromium, driven by Playwright. Pages are monitored for errors and for requests to other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playground_server import Script, playground
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")

ENOUGH_MS = 30_000  # for anything to happen, on a machine that also does something else
expect.set_options(timeout=ENOUGH_MS)

LAPTOP: Any = {"viewport": {"width": 1280, "height": 800}}
PHONE: Any = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True}


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Containers have neither the privileges for its sandbox nor much shared memory.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def opened(chromium: Browser, script: Script, *, may_complain: bool = False, **context: Any) -> Iterator[Page]:
    """The page of a scripted server. It may ask nobody else for anything, and complain of nothing on the console,
    unless something goes wrong on purpose."""
    with playground(script) as url:
        tab = chromium.new_context(**(context or LAPTOP), reduced_motion="reduce")  # cheaper to draw
        page = tab.new_page()
        page.set_default_timeout(ENOUGH_MS)
        outside: list[str] = []
        complaints: list[str] = []
        tab.on("requestfinished", lambda request: outside.append(request.url))
        tab.on("requestfailed", lambda request: outside.append(f"{request.url} {request.failure}"))
        page.on("console", lambda note: complaints.append(note.text) if note.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        try:
            yield page
        finally:
            tab.close()
        # What a policy has stopped was never sent.
        assert [request for request in outside if not request.startswith(url) and not request.endswith(" csp")] == []
        assert may_complain or complaints == []


def ask(page: Page, prompt: str = "Hello") -> None:
    """Send a prompt as soon as the server is ready."""
    page.locator("#send:enabled").wait_for()
    page.get_by_role("textbox", name="Prompt", exact=True).fill(prompt)
    page.keyboard.press("Enter")


def set_to(page: Page, values: dict[str, str]) -> None:
    """Fill fields of the settings, by their names."""
    page.locator("#send:enabled").wait_for()
    if not page.locator("#settings").get_attribute("open"):
        page.evaluate("settings.open = true")
    for name, value in values.items():
        page.get_by_label(name).fill(value)


def answered(page: Page) -> None:
    """Wait for the end of the last answer."""
    page.locator(".turn:last-child .retry").wait_for()
