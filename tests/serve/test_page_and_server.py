"""The playground's page and the real server, together in a browser."""

from __future__ import annotations

from playground_browser import ENOUGH_MS, answered, ask, needs_chromium, set_to
from playwright.sync_api import Browser, expect
from running import openai_client, running

from monolane.engine.async_engine import AsyncEngine
from synthetic_engine import synthetic_engine
from thorough import thorough

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


def test_another_model_is_chosen_and_loaded(chromium: Browser) -> None:
    """An alias is not another model, and does not stand in the list."""
    other = synthetic_engine(answer="From the other.<eos>", load_s=1.0, context=512)
    with running(aliases=("default",), others={"other": other}, context=4096) as server:
        page = chromium.new_page()
        page.set_default_timeout(ENOUGH_MS)
        page.goto(server.url)
        expect(page.locator("#models option")).to_have_text(["fake", "other"])
        page.locator("#models").select_option("other")
        expect(page.locator("#loading-text")).to_contain_text("loading nothing")
        expect(page.locator("#loading")).to_be_hidden()
        ask(page)
        answered(page)
        expect(page.locator(".words")).to_have_text("From the other.")
        expect(page.locator("#machine")).to_contain_text("512")
        assert server.service.models[1].engine.state.status == "ready"


@thorough
def test_a_model_that_cannot_chat_continues_a_text(chromium: Browser) -> None:
    beginning = "def read_json(path):"
    with running(engine=AsyncEngine.for_model("laneformer-tiny", context=128), name="laneformer-tiny") as server:
        page = chromium.new_page()
        page.set_default_timeout(ENOUGH_MS)
        page.goto(server.url)
        expect(page.locator("#invitation")).to_contain_text("continues the text")
        expect(page.get_by_role("textbox", name="Prompt")).to_have_attribute("placeholder", "Begin a text")
        set_to(page, {"Temperature": "0"})
        page.get_by_role("button", name="JSON").click()
        answered(page)
        answer = openai_client(server).completions.create(
            model="laneformer-tiny", prompt=beginning, max_tokens=40, temperature=0
        )
        text = answer.choices[0].text
        assert text.startswith("\n    ")
        assert (page.locator(".verbatim").text_content() or "").startswith(beginning + text)
        expect(page.locator(".note")).to_have_text("The context is full: the answer ends here.")
        ask(page, "class Point:")
        answered(page)
        expect(page.locator(".verbatim .given")).to_have_text([beginning, "class Point:"])
        first, _, second = server.answers
        assert (first.result.text.startswith(text), first.result.finish_reason) == (True, "length")
        assert second.prompt_tokens < first.prompt_tokens  # it is a text of its own, not a part of a conversation
