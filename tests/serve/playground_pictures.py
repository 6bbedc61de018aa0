"""Makes the pictures of the playground in docs/pictures: ``python tests/serve/playground_pictures.py``.

They show a synthetic engine, and say so; with ``--url`` they show a server that runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playground_answers import CACHE, ORBIT
from playground_browser import ask as type_in
from playground_browser import browser, set_to
from playground_server import Script, playground
from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
LAPTOP = {"width": 1360, "height": 820}
PHONE = {"width": 375, "height": 760}
RACE_MS = 2500  # into the race
CODE = "Write an LRU cache in Python with O(1) get and put. Explain it briefly."
PLANETS = "Write one HTML file that shows planets circling a sun on a canvas, with trails. Only the code."
CARD = "Write one HTML file with a centred card: a name, a short text and a button, with CSS. Only the code."  # easier


@contextmanager
def page_of(chromium: Browser, url: str, size: dict[str, int], scheme: str) -> Iterator[Page]:
    phone = size is PHONE
    context = chromium.new_context(
        viewport=size, color_scheme=scheme, device_scale_factor=1.5, is_mobile=phone, has_touch=phone
    )
    page = context.new_page()
    page.goto(url)
    page.locator("#send:enabled").wait_for()
    try:
        yield page
    finally:
        context.close()


def ask(page: Page, prompt: str) -> None:
    set_to(page, {"Seed": "1"})
    page.evaluate("settings.open = false")
    type_in(page, prompt)
    page.locator(".retry").wait_for(timeout=300_000)
    page.wait_for_timeout(RACE_MS)
    page.evaluate("talk.scrollTop = 0")


def take(chromium: Browser, url: str, folder: Path, drawing: str) -> None:
    for scheme in ("dark", "light"):
        with page_of(chromium, url, LAPTOP, scheme) as page:
            ask(page, CODE)
            page.screenshot(path=folder / f"playground-race-{scheme}.png")
    with page_of(chromium, url, LAPTOP, "dark") as page:
        page.screenshot(path=folder / "playground-start.png")
        ask(page, drawing)
        page.screenshot(path=folder / "playground-preview.png")
    with page_of(chromium, url, PHONE, "dark") as page:
        ask(page, CODE)
        page.screenshot(path=folder / "playground-phone.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs; without it, a synthetic engine")
    parser.add_argument("--to", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    script = Script(speed=4700, answers={"planets": ORBIT}, answer=CACHE)
    with browser() as chromium, playground(script) as synthetic:
        take(chromium, arguments.url or synthetic, arguments.to, CARD if arguments.url else PLANETS)


if __name__ == "__main__":
    main()
