"""Conversations in the playground: kept, listed, edited, cut by a reload, too long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playground_answers import CACHE
from playground_browser import PHONE, answered, ask, needs_chromium, opened, set_to
from playground_server import Script
from playwright.sync_api import Browser, Page, expect

from thorough import thorough

pytestmark = needs_chromium


def drawer(page: Page) -> None:
    page.get_by_role("button", name="Conversations").click()


def test_conversations_are_listed_renamed_exported_and_deleted(chromium: Browser, tmp_path: Path) -> None:
    with opened(chromium, Script(answer="Four.")) as page:
        for question in ("Two and two?", "Three and one?"):
            ask(page, question)
            answered(page)
            page.get_by_role("button", name="New conversation").click()
        drawer(page)
        expect(page.locator("#drawer strong")).to_have_text(["Three and one?", "Two and two?"])
        page.get_by_role("button", name="Rename “Two and two?”").click()
        page.get_by_role("textbox", name="Name").fill("Sums")
        page.keyboard.press("Enter")
        expect(page.locator("#drawer strong")).to_have_text(["Three and one?", "Sums"])
        with page.expect_download() as saved:
            page.get_by_role("button", name="Export “Sums”").click()
        assert saved.value.suggested_filename == "Sums.md"
        saved.value.save_as(tmp_path / "Sums.md")
        assert (tmp_path / "Sums.md").read_text() == "# Sums\n\n## You\n\nTwo and two?\n\n## Model\n\nFour.\n"
        page.get_by_role("button", name="Delete “Three and one?”").click()
        expect(page.locator("#drawer strong")).to_have_text(["Sums"])
        page.keyboard.press("Escape")
        expect(page.locator("#drawer")).to_be_hidden()
        other = page.context.new_page()  # another tab has the same list, and a conversation of its own
        other.goto(page.url)
        expect(other.locator("#empty")).to_be_visible()
        drawer(other)
        other.get_by_role("button", name="Sums", exact=False).first.click()
        expect(other.locator(".asked")).to_have_text("Two and two?")
        expect(page.locator("#empty")).to_be_visible()


@thorough
def test_a_conversation_that_is_deleted_while_it_is_answered_stays_away(chromium: Browser) -> None:
    script = Script(answer=CACHE, hold_at=20)
    with opened(chromium, script) as page:
        ask(page, "A cache")
        page.locator(".words p").first.wait_for()
        drawer(page)
        page.get_by_role("button", name="Delete “A cache”").click()
        page.keyboard.press("Escape")
        expect(page.locator("#empty")).to_be_visible()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        drawer(page)
        expect(page.locator("#drawer-empty")).to_be_visible()


@thorough
def test_the_system_prompt_goes_first_and_survives_a_reload(chromium: Browser) -> None:
    script = Script()
    with opened(chromium, script) as page:
        set_to(page, {"System prompt": "Be brief."})
        page.reload()
        expect(page.locator("#settings-line")).to_contain_text("system prompt")
        ask(page)
        answered(page)
        page.get_by_role("button", name="New conversation").click()
        ask(page, "Again")
        answered(page)
    first, second = (request["messages"] for request in script.requests)
    assert first == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert second[0] == first[0]


@thorough
def test_settings_are_those_of_the_model_until_they_are_changed(chromium: Browser) -> None:
    script = Script()
    script.machine = replace(script.machine, sampling=replace(script.machine.sampling, temperature=0.6, top_p=0.8))
    with opened(chromium, script) as page:
        expect(page.locator("#settings-line")).to_have_text("temperature 0.6 · top-p 0.8")
        set_to(page, {"Temperature": "1.2"})
        page.reload()
        expect(page.locator("#settings-line")).to_have_text("temperature 1.2 · top-p 0.8")
        set_to(page, {"Max tokens": "many"})
        ask(page)
        expect(page.locator(".turn")).to_have_count(0)
        page.get_by_role("button", name="As the model suggests").click()
        expect(page.locator("#temperature-value")).to_have_text("0.6")
        ask(page)
        answered(page)
    assert [(request["temperature"], request.get("max_tokens")) for request in script.requests] == [(0.6, None)]


def test_a_question_is_edited_and_what_followed_is_gone(chromium: Browser) -> None:
    script = Script(answer="Four.")
    with opened(chromium, script) as page:
        for question in ("Two and two?", "And one more?", "And another?"):
            ask(page, question)
            answered(page)
        second = page.locator(".turn").nth(1)
        second.hover()
        second.get_by_role("button", name="Edit the question").click()
        page.get_by_role("textbox", name="Question").fill("And two more?")
        page.keyboard.press("Enter")
        expect(page.locator(".asked")).to_have_text(["Two and two?", "And two more?"])
        answered(page)
        page.reload()
        expect(page.locator(".asked")).to_have_text(["Two and two?", "And two more?"])
    said = [message["content"] for message in script.requests[-1]["messages"]]
    assert said == ["Two and two?", "Four.", "And two more?"]


def test_a_question_is_deleted_with_its_answer(chromium: Browser) -> None:
    script = Script(answer="Four.")
    with opened(chromium, script, **PHONE) as page:
        for question in ("Two and two?", "And one more?"):
            ask(page, question)
            answered(page)
        page.get_by_role("button", name="Delete question and answer").first.tap()
        expect(page.locator(".asked")).to_have_text(["And one more?"])
        ask(page, "Why?")
        answered(page)
        for _ in range(2):
            page.get_by_role("button", name="Delete question and answer").first.tap()
        expect(page.locator("#empty")).to_be_visible()
    said = [message["content"] for message in script.requests[-1]["messages"]]
    assert said == ["And one more?", "Four.", "Why?"]


def test_a_reload_in_the_middle_of_an_answer_loses_nothing(chromium: Browser) -> None:
    script = Script(answer=CACHE, hold_at=80)
    with opened(chromium, script, may_complain=True) as page:
        ask(page, "A cache")
        expect(page.locator(".words")).to_contain_text('V = TypeVar("')  # the last of the 80 tokens
        before = page.locator(".words").inner_text()
        script.hold_at = 5
        page.reload()
        expect(page.locator(".note")).to_contain_text("reloaded")
        expect(page.locator(".words")).to_have_text(before, use_inner_text=True)
        script.hold_at = None
        answered(page)
        expect(page.locator(".words h5")).to_have_text("Design")
        expect(page.locator(".turn")).to_have_count(1)
    first, second = script.requests
    assert first == second  # the same seed: the same answer


def test_the_context_is_shown_and_a_full_one_offers_what_can_be_done(chromium: Browser) -> None:
    script = Script(answer="Four.")
    with opened(chromium, script, may_complain=True) as page:
        for question in ("One?", "Two?", "Three?"):
            ask(page, question)
            answered(page)
        expect(page.locator("#context-text")).to_have_text("22 of 8,192 tokens")
        script.refusal = (400, "The prompt has 9000 tokens.", "context_length_exceeded")
        ask(page, "Four?")
        expect(page.locator(".note.wrong")).to_have_text("The prompt has 9000 tokens.")
        expect(page.locator(".turn:last-child .ways")).to_contain_text("--context")
        script.refusal = None
        page.get_by_role("button", name="Leave out the oldest").click()
        answered(page)
        expect(page.locator(".turn:last-child .words")).to_have_text("Four.")
        expect(page.locator(".left-out .asked")).to_have_text(["One?", "Two?"])
        script.finish, script.machine = "length", replace(script.machine, context=22)
        page.reload()
        ask(page, "Five?")
        expect(page.locator(".turn:last-child .note")).to_have_text("The context is full: the answer ends here.")
        page.locator(".turn:last-child .ways").get_by_role("button", name="New conversation").click()
        script.machine = replace(script.machine, context=8192)
        page.reload()
        set_to(page, {"Max tokens": "2"})
        ask(page, "Six?")
        expect(page.locator(".note")).to_have_text("Ended after 2 tokens, the most that were allowed.")
        expect(page.locator(".ways")).to_be_hidden()
    said = [[message["content"] for message in request["messages"]] for request in script.requests]
    assert said[4] == ["Three?", "Four.", "Four?"]


def test_with_several_models_one_is_chosen(chromium: Browser) -> None:
    script = Script(models=["scripted", "another"])
    with opened(chromium, script) as page:
        page.get_by_role("combobox", name="Model").select_option("another")
        page.locator("#send:enabled").wait_for()
        ask(page)
        answered(page)
        expect(page.locator("#model")).to_be_hidden()
    assert script.requests[0]["model"] == "another"


def test_suggestions_fit_the_model(chromium: Browser) -> None:
    invite = """async ([model, bytes_per_token]) => {
        const { invite } = await import("./playground/suggestions.js");
        invite({ model, bytes_per_token, can_chat: true }, () => {});
        return document.getElementById("suggestions").textContent;
    }"""
    with opened(chromium, Script()) as page:
        page.locator("#send:enabled").wait_for()
        for model, size, suggested in (
            ("smollm2-135m", 96e6, "Capital"),
            ("qwen2.5-coder-0.5b", 392e6, "Primes"),
            ("qwen2.5-coder-1.5b", 997e6, "Snake"),
            ("llama-3.1-8b", 15e9, "Plan"),
        ):
            assert suggested in page.evaluate(invite, [model, size])
