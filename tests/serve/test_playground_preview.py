"""Web pages in answers are rendered while they stream, in an iframe without network access."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from playground_answers import CACHE, ORBIT
from playground_browser import LAPTOP, PHONE, answered, ask, needs_chromium, opened
from playground_server import Script
from playwright.sync_api import Browser, Locator, Page, expect

from thorough import seldom

pytestmark = needs_chromium


def fenced(html: str) -> str:
    return f"Here it is:\n\n```html\n{html}\n```\n\nEnjoy."


def preview(page: Page, selector: str) -> Locator:
    return page.frame_locator("#paper iframe").locator(selector)


def test_a_page_is_drawn_while_it_is_written(chromium: Browser) -> None:
    html = "<!doctype html><h1>Begun</h1>\n<script>document.title = 'ran'; document.body.append('S')</script>\n"
    html += "<p>word</p>\n" * 200 + "<h2>Done</h2>"
    script = Script(answer=fenced(html), hold_at=100)
    with opened(chromium, script) as page:
        ask(page)
        expect(preview(page, "h1")).to_have_text("Begun")
        expect(page.locator("#preview-state")).to_have_text("Being written")
        assert preview(page, "h2").count() == 0
        script.hold_at = None
        expect(preview(page, "h2")).to_have_text("Done")
        answered(page)
        expect(page.locator("#preview-state")).to_have_text("Complete")
        assert preview(page, "p").count() == 200
        assert page.locator("#paper iframe").get_attribute("sandbox") == "allow-scripts"
        page.get_by_role("button", name="Start over").click()
        expect(preview(page, "h2")).to_have_text("Done")
        page.get_by_role("button", name="Enlarge").click()
        box = page.locator("#preview").bounding_box()
        assert box is not None
        assert (box["width"], box["height"]) == (LAPTOP["viewport"]["width"], LAPTOP["viewport"]["height"])


def test_scripts_run_in_it(chromium: Browser) -> None:
    with opened(chromium, Script(answer=ORBIT)) as page:
        ask(page)
        answered(page)
        expect(preview(page, "p")).to_have_text("Seven planets, one sun")
        drawn = "sky => sky.getContext('2d').getImageData(sky.width / 2, sky.height / 2, 1, 1).data[0] > 200"
        preview(page, "canvas").wait_for()
        assert preview(page, "canvas").evaluate(drawn)  # the sun


def test_on_a_phone_it_waits_behind_its_tab(chromium: Browser) -> None:
    with opened(chromium, Script(answer=fenced("<!doctype html><h1>Hello</h1>")), **PHONE) as page:
        ask(page)
        answered(page)
        expect(page.locator("#preview")).to_be_hidden()
        page.get_by_role("tab", name="Preview").tap()
        expect(preview(page, "h1")).to_be_visible()


REACH_OUT = """<p id="result"></p><script>
const attempts = {
  parent: () => parent.document.body, top: () => top.document.title, storage: () => localStorage.length,
  session: () => sessionStorage.length, cookie: () => document.cookie, frame: () => frameElement.id,
  database: () => indexedDB.open("x"), navigate: () => { top.location = "about:blank"; },
};
const reached = [];
for (const [name, attempt] of Object.entries(attempts)) {
  try { if (attempt() !== null) reached.push(name); } catch {}
}
parent.postMessage({ key: "monolane" }, "*");
result.textContent = `reached: ${reached.join(" ")}`;
</script>"""


def test_it_cannot_reach_the_page_around_it(chromium: Browser) -> None:
    with opened(chromium, Script(answer=fenced(REACH_OUT)), may_complain=True) as page:
        ask(page)
        answered(page)
        expect(preview(page, "#result")).to_have_text("reached:")
        expect(page).to_have_title("scripted on Monolane")
        ask(page, "Still there?")
        expect(page.locator(".asked")).to_have_count(2)


STUN = """
  p = new RTCPeerConnection({ iceServers: [{ urls: 'stun:127.0.0.1:PORT' }] });
  p.createDataChannel('x');
  p.createOffer().then((offer) => p.setLocalDescription(offer));
"""
ESCAPES = {
    "loading": """
        <link rel=prefetch href="http://127.0.0.1:PORT/"><link rel=preconnect href="http://127.0.0.1:PORT/">
        <style>@import url(http://127.0.0.1:PORT/); body { background: url(http://127.0.0.1:PORT/) }</style>
        <img src="http://127.0.0.1:PORT/"><script src="http://127.0.0.1:PORT/"></script>
        <iframe src="http://127.0.0.1:PORT/"></iframe><object data="http://127.0.0.1:PORT/"></object>""",
    "sending": """<a id=a href="#x" ping="http://127.0.0.1:PORT/">x</a><form id=f action="http://127.0.0.1:PORT/"></form>
        <script>
        const attempts = [
          () => fetch("http://127.0.0.1:PORT/"), () => fetch("/machine"), () => new WebSocket("ws://127.0.0.1:PORT/"),
          () => navigator.sendBeacon("http://127.0.0.1:PORT/", "x"), () => open("http://127.0.0.1:PORT/"),
          () => a.click(), () => f.submit(), () => new EventSource("http://127.0.0.1:PORT/"),
          () => new Worker(URL.createObjectURL(new Blob(["fetch('http://127.0.0.1:PORT/')"]))),
        ];
        for (const attempt of attempts) { try { attempt(); } catch {} }
        </script>""",
    "leaving": "<script>location = 'http://127.0.0.1:PORT/'</script>",
    "refreshing": "<meta http-equiv=refresh content='0;url=http://127.0.0.1:PORT/'>",
    "leaving for this server": "<script>location = '/docs'</script>",
    "peer connection": f"<script>{STUN}</script>",
    "peer connection in a frame": f'<iframe srcdoc="<script>{STUN}</script>"></iframe>',
    "peer connection in a made frame": f"""<script>const frame = document.createElement("iframe");
        frame.srcdoc = `<script>{STUN}<` + "/script>"; document.documentElement.append(frame);</script>""",
}


# The browser is watched for seconds each time: every run has one of each kind.
USUAL = (*list(ESCAPES)[:2], "peer connection in a made frame")


@pytest.mark.parametrize("name", [name if name in USUAL else seldom(name) for name in ESCAPES])
def test_it_cannot_reach_the_network(chromium: Browser, name: str) -> None:
    with listening() as (port, heard):
        html = ESCAPES[name].replace("PORT", str(port))
        script = Script(answer=fenced(f"<!doctype html><h1>Here</h1>\n{html}\n"))
        with opened(chromium, script, may_complain=True) as page:
            ask(page)
            answered(page)
            page.locator("#paper iframe").wait_for()
            page.wait_for_timeout(400)  # milliseconds; an attempt takes a few
            assert len(page.context.pages) == 1
        known = {"/", "/health", "/machine", "/v1/models", "/v1/chat/completions"}
        asked = [path for path in script.paths if path not in known and not path.startswith("/playground/")]
        assert (heard, asked, script.paths.count("/machine")) == ([], [], 1)


def test_the_escapes_would_be_noticed() -> None:
    with listening() as (port, heard):
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(b"by TCP")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.sendto(b"by UDP", ("127.0.0.1", port))
        while len(heard) < 2:
            threading.Event().wait(0.01)
        assert sorted(heard) == [b"by TCP", b"by UDP"]


@contextmanager
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port that notes whatever is sent to it, by TCP or UDP. Connections on which nothing is said do not count:
    Chromium opens one for a navigation before it looks at the policy that forbids it."""
    heard: list[bytes] = []

    def accept(tcp: socket.socket) -> None:
        while True:
            connection, _ = tcp.accept()
            threading.Thread(target=note, args=[connection], daemon=True).start()

    def note(source: socket.socket) -> None:
        while data := source.recv(4096):
            heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        port = tcp.getsockname()[1]
        udp.bind(("127.0.0.1", port))
        for target, source in ((accept, tcp), (note, udp)):
            threading.Thread(target=_until_closed, args=[target, source], daemon=True).start()
        yield port, heard


def _until_closed(read: Callable[[socket.socket], None], source: socket.socket) -> None:
    with suppress(OSError):
        read(source)


# What is taken for a web page: the answer, and the page in it (None: none).
FINDS = [
    (CACHE, None),
    ("", None),
    ("<p>Hi</p>", None),
    ("<!DOCTYPE html>\n<p>Hi</p>", "<!DOCTYPE html>\n<p>Hi</p>"),
    ("```html\n<p>Hi</p>\n```", "<p>Hi</p>"),
    ("```HTML\n<p>Hi</p>\n```\nmore", "<p>Hi</p>"),
    ("```\n<!doctype html><p>Hi</p>\n```", "<!doctype html><p>Hi</p>"),
    ("```\nplain\n```", None),
    ("```css\np {}\n```\n\n```html\n<p>Hi</p>\n```", "<p>Hi</p>"),
    ("```python\nprint(1)\n```\nthen\n```svg\n<svg/>\n```", "<svg/>"),
    ("```html\n<p>`` and ```</p>\n```", "<p>`` and ```</p>"),
    ("Use ```html inline``` like so", None),
]


def test_which_answers_are_web_pages(chromium: Browser) -> None:
    find = """async (answers) => {
        const { pageIn } = await import("./playground/page.js");
        const prefixes = (text) => Array.from({ length: text.length + 1 }, (_, end) => text.slice(0, end));
        return answers.map((answer) => prefixes(answer).map(pageIn));
    }"""
    with opened(chromium, Script()) as page:
        found = page.evaluate(find, [answer for answer, _ in FINDS])
    for (answer, expected), prefixes in zip(FINDS, found, strict=True):
        assert prefixes[-1] == expected, answer
        shown = [source for source in prefixes if source is not None]
        # While an answer comes, its page only grows: what was drawn is never taken back.
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown)), answer
