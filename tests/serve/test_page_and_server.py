"""The playground's page and the real server, together in a browser."""

from __future__ import annotations

from playground_browser import ENOUGH_MS, answered, ask, needs_chromium
from playwright.sync_api import Browser, expect
from running import running

pytestmark = needs_chromium


def test_a_page_loads_asks_for_the_key_and_shows_an_answer(chromium: Browser) -> None:
    with running(wait=False, load_s=1.0, api_key="opensesame", ceiling=1e13, context=4096) as server:
        page = chromium.new_page()
        page.set_default_timeout(ENOUGH_MS)
        page.goto(server.url)
        page.get_by_label("API key").fill("opensesame")
        page.keyboard.press("Enter")
        expect(page.locator("#model")).to_have_text("fake")
        ask(page)
        answered(page)
        expect(page.locator(".words")).to_have_text("Hello there.")
        [answer] = server.answers
        assert answer.result.text == "Hello there."
