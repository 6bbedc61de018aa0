"""The playground as people use it, in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playground_answers import CACHE, ORBIT
from playground_browser import ENOUGH_MS, LAPTOP, PHONE, answered, ask, needs_chromium, opened, set_to
from playground_server import Script, tokens_of
from playwright.sync_api import Browser, Page, expect

pytestmark = needs_chromium
NONE_YET = "\u2013"  # a dash


def test_an_answer_with_its_code_and_its_speed(chromium: Browser) -> None:
    script = Script(answer=CACHE)
    with opened(chromium, script) as page:
        set_to(page, {"Temperature": "0.2", "Top-p": "0.5", "Max tokens": "900", "Seed": "42"})
        ask(page, "A cache, please")
        answered(page)
        expect(page.locator(".asked")).to_have_text("A cache, please")
        expect(page.locator(".answer pre").first).to_contain_text("class LRUCache(Generic")
        expect(page.locator(".words h5")).to_have_text("Design")
        expect(page.locator("#speed")).to_have_text("2,000")
        expect(page.locator("#per-token")).to_have_text("500 µs")
        expect(page.locator("#tokens")).to_have_text(str(len(tokens_of(CACHE))))
        expect(page.locator("#first-token")).to_have_text("4.20 ms")
        expect(page.get_by_role("meter")).to_have_attribute("aria-valuenow", "39")
        expect(page.locator("#bandwidth")).to_have_text("1.78 TB/s of 4.60 TB/s, 39% of the read ceiling")
        expect(page.locator("#curve-line")).to_have_attribute("d", re.compile(r"^M0\.0 .*L400\.0 "))
        expect(page.locator(".facts")).to_contain_text("seed\u00a042")
        expect(page.locator("#announce")).to_contain_text("Answer complete")
    (request,) = script.requests
    assert request["messages"] == [{"role": "user", "content": "A cache, please"}]
    assert (request["temperature"], request["top_p"], request["max_tokens"], request["seed"]) == (0.2, 0.5, 900, 42)
    assert (request["top_k"], request["repetition_penalty"], request["stream"]) == (0, 1.05, True)  # as suggested


def test_greedy_and_sampled_speeds_stand_side_by_side(chromium: Browser) -> None:
    script = Script(speed=2000)
    with opened(chromium, script) as page:
        expect(page.locator("#kinds dd")).to_have_text([NONE_YET, NONE_YET])
        ask(page)  # with the page's own temperature
        answered(page)
        expect(page.locator("#speed")).to_have_text("2,000")
        expect(page.locator("#speed-how")).to_have_text("temperature 0.7")
        expect(page.locator("#kinds dt")).to_have_text(["greedy", "temperature 0.7"])
        expect(page.locator("#kinds dd")).to_have_text([NONE_YET, "2,000 tok/s"])
        script.speed = 2500
        set_to(page, {"Temperature": "0"})
        page.get_by_role("button", name="Retry").click()
        expect(page.locator("#speed")).to_have_text("2,500")
        expect(page.locator("#speed-how")).to_have_text("greedy")
        expect(page.locator("#kinds dd")).to_have_text(["2,500 tok/s", "2,000 tok/s"])
        script.answer, script.hold_at = CACHE, 20
        ask(page, "Once more")  # an answer that is stopped has no speed by the engine's clock
        page.locator(".turn:last-child .words p").first.wait_for()
        page.get_by_role("button", name="Stop").click()
        answered(page)
        expect(page.locator("#kinds dd")).to_have_text(["2,500 tok/s", "2,000 tok/s"])
        page.get_by_role("button", name="New conversation").click()
        page.reload()
        expect(page.locator("#kinds dd")).to_have_text(["2,500 tok/s", "2,000 tok/s"])
        script.machine = replace(script.machine, model="another")
        page.reload()
        expect(page.locator("#model")).to_have_text("another")
        expect(page.locator("#kinds dd")).to_have_text([NONE_YET, NONE_YET])


def test_the_model_and_the_machine_are_shown(chromium: Browser) -> None:
    with opened(chromium, Script()) as page:
        expect(page.locator("#model")).to_have_text("scripted")
        expect(page.locator("#device")).to_have_text("a synthetic engine")
        expect(page.locator("#machine")).to_have_text("890 MB read per token · context of 8,192")


def test_without_a_measured_ceiling_no_share_of_it_is_claimed(chromium: Browser) -> None:
    script = Script()
    script.machine = replace(script.machine, ceiling_bytes_per_s=None)
    with opened(chromium, script) as page:
        ask(page)
        answered(page)
        expect(page.locator("#bandwidth")).to_contain_text("1.78 TB/s read. To see how much")
        expect(page.locator("#bandwidth")).to_contain_text("monolane ceiling")
        expect(page.get_by_role("meter")).to_have_attribute("aria-valuenow", "0")


def test_a_suggestion_is_one_click(chromium: Browser) -> None:
    script = Script()
    with opened(chromium, script) as page:
        page.get_by_role("button", name="LRU cache").click()
        answered(page)
        expect(page.locator("#empty")).to_be_hidden()
    assert "LRU cache in Python" in script.requests[0]["messages"][0]["content"]


HOSTILE = (
    'Before <img src=x onerror=alert(1)> **<b>x</b>**\n\n<script>alert(1)</script>\n```js\n<script>"</code>\n```\n'
)


def test_nothing_in_an_answer_becomes_markup(chromium: Browser) -> None:
    with opened(chromium, Script(answer=HOSTILE)) as page:
        ask(page, "<img src=y onerror=alert(2)>")
        answered(page)
        expect(page.locator(".asked")).to_have_text("<img src=y onerror=alert(2)>")
        expect(page.locator(".words")).to_contain_text("<script>alert(1)</script>")
        assert page.locator("#turns img, #turns script, #turns b").count() == 0


def test_however_an_answer_is_cut_it_looks_the_same(chromium: Browser) -> None:
    draw = """async ([text, size]) => {
        const { Markdown } = await import("./playground/markdown.js");
        const root = document.createElement("div");
        const markdown = new Markdown(root);
        for (let end = size; end < text.length + size; end += size) markdown.update(text.slice(0, end));
        return root.innerHTML;
    }"""
    with opened(chromium, Script()) as page:
        whole, *pieces = (page.evaluate(draw, [CACHE, size]) for size in (len(CACHE), 1, 3, 50))
    assert pieces == [whole] * 3
    assert whole.count("<figure") == 3


def test_stop(chromium: Browser) -> None:
    script = Script(answer=CACHE, hold_at=20)
    with opened(chromium, script) as page:
        ask(page)
        page.locator(".words p").first.wait_for()
        page.get_by_role("button", name="Stop").click()
        answered(page)
        expect(page.locator(".note")).to_have_text("Stopped")
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        shown = page.locator(".words").inner_text()
        assert 0 < len(shown) < len(CACHE) / 2
        _until(page, lambda: script.left == 1)  # the server has noticed


def test_retry_asks_the_same_again(chromium: Browser) -> None:
    script = Script(answer="First.")
    with opened(chromium, script) as page:
        ask(page)
        answered(page)
        script.answer = "Second."
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".words")).to_have_text("Second.")
        assert page.locator(".turn").count() == 1
    first, second = script.requests
    assert first["messages"] == second["messages"]
    assert first["seed"] != second["seed"]


def test_the_conversation_is_sent_along_and_kept(chromium: Browser) -> None:
    script = Script(answer="Four.")
    with opened(chromium, script) as page:
        ask(page, "Two and two?")
        answered(page)
        ask(page, "And one more?")
        answered(page)
        page.locator(".turn").nth(1).wait_for()
        page.reload()
        expect(page.locator(".asked")).to_have_text(["Two and two?", "And one more?"])
        expect(page.locator(".words")).to_have_text(["Four.", "Four."])
        expect(page.locator("#speed")).to_have_text("2,000")
        page.get_by_role("button", name="New conversation").click()
        expect(page.locator("#empty")).to_be_visible()
        page.reload()
        expect(page.locator("#empty")).to_be_visible()
        page.get_by_role("button", name="Conversations").click()
        page.locator("#drawer .open").click()
        expect(page.locator(".asked")).to_have_text(["Two and two?", "And one more?"])
    roles = [message["role"] for message in script.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


# What the slower one's clock shows from now on.
NOTE_TIMES = """() => {
    const clock = document.getElementById("theirs-time");
    window.theirTimes = [];
    new MutationObserver(() => theirTimes.push(clock.textContent))
        .observe(clock, { childList: true, characterData: true, subtree: true });
}"""


@pytest.mark.parametrize(
    ("speed", "rival", "saving", "how"),
    [(2000, 100, "7 min 55 s saved", "25.0 s instead of 8 min 20 s, 20 times as fast"),
     (50, 30, "11 min 7 s saved", "16 min 40 s instead of 27 min 47 s, 1.67 times as fast")],
)  # fmt: skip
def test_the_race_is_against_a_speed_that_is_beaten(
    chromium: Browser, speed: int, rival: int, saving: str, how: str
) -> None:
    answer = "One two three four five six seven eight nine ten. " * 2
    with opened(chromium, Script(answer=answer, speed=speed)) as page:
        ask(page)
        expect(page.locator("#rival")).to_have_text(f"{rival} tok/s")
        expect(page.locator("#theirs-time")).to_have_text(f"{len(tokens_of(answer)) * 1000 / rival:.0f} ms ✓")
        expect(page.locator("#replay")).to_have_text(answer.strip())
        expect(page.locator("#ours-time")).to_contain_text("✓")
        expect(page.locator("#saving")).to_have_text(saving)
        expect(page.locator("#saving-how")).to_contain_text(how)
        page.evaluate(NOTE_TIMES)
        page.get_by_role("button", name="Run it again").click()
        _until(page, lambda: page.evaluate("theirTimes.length > 1 && theirTimes.at(-1).includes('✓')"))
        assert "✓" not in page.evaluate("theirTimes[0]")
        expect(page.locator("#replay")).to_have_text(answer.strip())


def test_a_machine_that_beats_nothing_has_no_race(chromium: Browser) -> None:
    with opened(chromium, Script(answer="One two three.", speed=5)) as page:
        ask(page)
        answered(page)
        expect(page.locator("#no-race")).to_be_visible()
        expect(page.locator("#replay")).to_be_hidden()
        expect(page.locator(".foot button")).to_have_text(["Copy", "Retry"])


def test_bars_have_room_for_what_is_still_to_come(chromium: Browser) -> None:
    script = Script(answer="and so on " * 16, speed=60, hold_at=40)
    with opened(chromium, script) as page:
        ask(page)
        expect(page.locator("#race-scale")).to_have_text("of 64 tokens")
        _until(page, lambda: page.evaluate("Math.abs(ours.value - 40 / 64) < 1e-6 && theirs.value <= ours.value"))
        script.hold_at = None
        answered(page)
        expect(page.locator("#race-scale")).to_have_text(f"{len(tokens_of(script.answer))} tokens")


def test_digits_fit_the_dial(chromium: Browser) -> None:
    measure = """async ([speed, view]) => {
        const { Instruments } = await import("./playground/instruments.js");
        document.body.dataset.view = view;
        const timings = { decode_us_per_token: 1e6 / speed };
        new Instruments().show({ timings, timeline: { speeds: () => [] }, temperature: 0 });
        const digits = document.createRange();
        digits.selectNodeContents(document.getElementById("speed"));
        const { left, width } = digits.getBoundingClientRect();
        const inside = document.querySelector(".dial svg").getBoundingClientRect().width * 0.75;
        return [width, inside || document.querySelector(".figures").getBoundingClientRect().left - left];
    }"""
    with opened(chromium, Script()) as page:
        page.locator("#send:enabled").wait_for()
        for size in (LAPTOP, PHONE):
            page.set_viewport_size(size["viewport"])
            for speed in (0.512, 24.9, 4812, 123_456):
                for view in ("race", "preview"):
                    width, room = page.evaluate(measure, [speed, view])
                    assert 0 < width <= room


def test_copy(chromium: Browser) -> None:
    answer = "Here:\n\n```python\nprint(1)\n```\n"
    context = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened(chromium, Script(answer=answer), **context) as page:
        ask(page)
        answered(page)
        page.get_by_role("button", name="Copy the answer").click()
        assert page.evaluate("navigator.clipboard.readText()") == answer
        page.get_by_role("button", name="Copy this code").click()
        assert page.evaluate("navigator.clipboard.readText()") == "print(1)\n"


def test_keyboard(chromium: Browser) -> None:
    script = Script(answer=CACHE, hold_at=20)
    with opened(chromium, script) as page:
        page.locator("#send:enabled").wait_for()
        page.get_by_role("tab", name="Race").focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="Preview")).to_be_focused()
        expect(page.locator("#preview")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        expect(page.locator(".asked")).to_have_text("one\ntwo")
        expect(page.get_by_role("textbox", name="Prompt")).to_have_value("")
        page.keyboard.press("Escape")
        answered(page)
        expect(page.locator(".note")).to_have_text("Stopped")
        page.keyboard.press("Alt+n")
        expect(page.locator("#empty")).to_be_visible()
        expect(page.get_by_role("textbox", name="Prompt")).to_be_focused()


def test_the_key_is_asked_for_and_kept_in_the_tab(chromium: Browser) -> None:
    script = Script(key="opensesame")
    with opened(chromium, script, may_complain=True) as page:
        for key in ("wrong", "opensesame"):
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            page.locator("#key-dialog").wait_for(state="hidden" if key == script.key else "visible")
        expect(page.locator("#model")).to_have_text("scripted")
        ask(page)
        expect(page.locator(".words")).to_have_text("Hello there.")
        page.reload()
        ask(page)
        answered(page)
        assert page.locator("#key-dialog").is_hidden()
        script.key = "changed"
        ask(page, "Once more")
        page.get_by_label("API key").fill("changed")
        page.keyboard.press("Enter")
        expect(page.locator(".turn:last-child .words")).to_have_text("Hello there.")


def test_while_the_model_loads(chromium: Browser) -> None:
    state = {"status": "loading", "label": "Packing", "done_bytes": 1_000_000_000, "total_bytes": 4_000_000_000}
    script = Script(loading=state)
    with opened(chromium, script, may_complain=True) as page:
        expect(page.locator("#loading-text")).to_have_text("Packing, 1.00 GB of 4.00 GB")
        assert page.get_by_role("progressbar", name="Loading of the model").evaluate("bar => bar.value") == 0.25
        expect(page.get_by_role("button", name="Send")).to_be_disabled()
        script.loading = {"status": "failed", "problem": "There is no such model."}
        expect(page.locator("#loading-text")).to_have_text("There is no such model.")
        script.loading = None
        expect(page.locator("#empty")).to_be_visible()
        expect(page.locator("#loading")).to_be_hidden()


def test_the_place_in_the_queue(chromium: Browser) -> None:
    script = Script(ahead=2)
    with opened(chromium, script) as page:
        ask(page)
        expect(page.locator(".note")).to_have_text("In the queue, 2 before you")
        script.ahead = 1
        expect(page.locator(".note")).to_have_text("In the queue, 1 before you")
        script.ahead = 0
        expect(page.locator(".words")).to_have_text("Hello there.")


def test_refusals_and_failures_are_told_and_can_be_retried(chromium: Browser) -> None:
    script = Script(refusal=(503, "The queue is full: try again in a moment."))
    with opened(chromium, script, may_complain=True) as page:
        ask(page)
        expect(page.locator(".note.wrong")).to_have_text("The queue is full: try again in a moment.")
        script.refusal, script.breaks_after = None, 2
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".note.wrong")).to_have_text("worker 1 got stuck in stage 7. Try again.")
        script.breaks_after = None
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".words")).to_have_text("Hello there.")
        assert page.locator(".note.wrong").count() == 0
        page.context.set_offline(True)
        ask(page)
        expect(page.locator(".note.wrong")).to_have_text("The server cannot be reached. Is it still running?")


@pytest.mark.parametrize("answer", [CACHE + "x" * 500, ORBIT])
def test_a_phone_never_scrolls_sideways(chromium: Browser, answer: str) -> None:
    with opened(chromium, Script(answer=answer, speed=20_000), **PHONE) as page:
        ask(page, "z" * 300)
        answered(page)
        for name in ("Answer", "Race", "Preview"):
            page.get_by_role("tab", name=name).tap()
            assert page.evaluate("[document.documentElement.scrollWidth, talk.scrollWidth <= talk.clientWidth]") == [
                375,
                True,
            ]
            expect(page.get_by_role("textbox", name="Prompt")).to_be_in_viewport()
            expect(page.locator("#speed")).to_be_in_viewport()


def test_a_long_answer_at_full_speed_is_complete(chromium: Browser) -> None:
    answer = "".join(f"{number} is a number.\n\n" for number in range(1500))
    with opened(chromium, Script(answer=answer, speed=5_000)) as page:
        ask(page)
        answered(page)
        assert page.locator(".words p").all_inner_texts() == [f"{number} is a number." for number in range(1500)]
        assert page.evaluate("talk.scrollHeight - talk.scrollTop - talk.clientHeight") < 2  # it was followed


def test_what_arrives_between_two_pictures_is_drawn_together(chromium: Browser) -> None:
    count = """async () => {
        const { perFrame } = await import("./playground/frames.js");
        let painted = 0;
        const changed = perFrame(() => painted++);
        for (let i = 0; i < 100; i++) changed();
        await new Promise(requestAnimationFrame);
        const together = painted;
        changed();
        changed.now();
        await new Promise(requestAnimationFrame);
        return [together, painted];
    }"""
    with opened(chromium, Script()) as page:
        assert page.evaluate(count) == [1, 2]


def test_dark_and_light(chromium: Browser) -> None:
    def background(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with opened(chromium, Script(), color_scheme="dark") as page:
        dark = background(page)
        page.get_by_role("button", name="Colours: Auto").click()
        light = background(page)
        assert light != dark
        page.reload()
        expect(page.get_by_role("button", name="Colours: Light")).to_be_visible()
        assert background(page) == light


def test_everything_that_can_be_operated_has_a_name(chromium: Browser) -> None:
    with opened(chromium, Script(answer=ORBIT)) as page:
        ask(page)
        answered(page)
        snapshot = page.locator("body").aria_snapshot()
        nameless = re.findall(
            r"^\s*- (?:button|textbox|slider|tab|meter|progressbar)(?: \[[^]]*\])*:?$", snapshot, re.M
        )
        assert nameless == []
        assert 'textbox "Prompt"' in snapshot
        assert page.locator("iframe").get_attribute("title") == "Preview of the answer"


def _until(page: Page, condition: object) -> None:
    assert callable(condition)
    pause_ms = 10
    for _ in range(ENOUGH_MS // pause_ms):
        if condition():
            return
        page.wait_for_timeout(pause_ms)
    raise AssertionError("it did not happen")
