"""Makes the pictures of the playground in docs/pictures: ``python tests/serve/playground_pictures.py``.

They show a synthetic engine, and say so; with ``--url`` they show a server that runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playground_answers import CACHE, ORBIT
from playground_browser import browser
from playground_server import Script, playground
from playwright.sync_api import Browser, Page

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
LAPTOP = {"width": 1360, "height": 820}
PHONE = {"width": 375, "height": 760}
RACE_MS = 2500  # into the race


@contextmanager
def page_of(chromium: Browser, url: str, size: dict[str, int], scheme: str) -> Iterator[Page]:
    phone = size is PHONE
    context = chromium.new_context(
        viewport=size, color_scheme=scheme, device_scale_factor=1.5, is_mobile=phone, has_touch=phone
    )
    page = context.new_page()
    page.goto(url)
    page.get_by_role("button", name="Orbit").wait_for()
    try:
        yield page
    finally:
        context.close()


def ask(page: Page, suggestion: str) -> None:
    page.get_by_role("button", name=suggestion).click()
    page.locator(".retry").wait_for(timeout=300_000)


def take(chromium: Browser, url: str, folder: Path) -> None:
    for scheme in ("dark", "light"):
        with page_of(chromium, url, LAPTOP, scheme) as page:
            ask(page, "LRU cache")
            page.wait_for_timeout(RACE_MS)
            page.screenshot(path=folder / f"playground-race-{scheme}.png")
    with page_of(chromium, url, LAPTOP, "dark") as page:
        page.screenshot(path=folder / "playground-start.png")
        ask(page, "Orbit")
        page.wait_for_timeout(RACE_MS)
        page.screenshot(path=folder / "playground-preview.png")
    with page_of(chromium, url, PHONE, "dark") as page:
        ask(page, "LRU cache")
        page.get_by_role("tab", name="Race").click()
        page.wait_for_timeout(RACE_MS)
        page.screenshot(path=folder / "playground-phone.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs; without it, a synthetic engine")
    parser.add_argument("--to", type=Path, default=PICTURES)
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    script = Script(speed=4700, answers={"planets": ORBIT}, answer=CACHE)
    with browser() as chromium, playground(script) as synthetic:
        take(chromium, arguments.url or synthetic, arguments.to)


if __name__ == "__main__":
    main()
