"""The Markdown of answers, drawn in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playground_browser import needs_chromium, opened
from playground_server import Script
from playwright.sync_api import Browser, Page

pytestmark = needs_chromium

DRAW = """async ([text, size]) => {
    const { Markdown } = await import("./playground/markdown.js");
    const root = document.createElement("div");
    const markdown = new Markdown(root);
    for (let end = size; end < text.length + size; end += size) markdown.update(text.slice(0, end));
    markdown.update(text, true);
    markdown.update(text, true);
    return root.innerHTML;
}"""


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    with opened(chromium, Script()) as page:
        yield page


def link(address: str, label: str) -> str:
    return f'<a href="{address}" target="_blank" rel="noopener noreferrer" title="{address}">{label}</a>'


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("4", "<p>4</p>"),
        ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
        ("# One\n### Two", "<h3>One</h3><h5>Two</h5>"),
        ("- a\n  - b\n    - c\n- d", "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li>"
         "<li><p>d</p></li></ul>"),
        ("1. a\n   - b\n2. c", '<ol start="1"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>'),
        ("3. a\n\n   more\n\n4. b\n\nc", '<ol start="3"><li><p>a</p><p>more</p></li><li><p>b</p></li></ol><p>c</p>'),
        ("- [ ] to do\n- [x] done", "<ul><li><p>☐ to do</p></li><li><p>☑ done</p></li></ul>"),
        ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
        ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
        ("| a | b |\n|---|--:|\n| 1 | `x\\|y` |\n\nend",
         '<div class="table" tabindex="0"><table><thead><tr><th class="">a</th><th class="right">b</th></tr></thead>'
         '<tbody><tr><td class="">1</td><td class="right"><code>x|y</code></td></tr></tbody></table></div><p>end</p>'),
        ("a ~~b~~ **c *d*** __e__ _f_ snake_case_name",
         "<p>a <del>b</del> <strong>c <em>d</em></strong> <strong>e</strong> <em>f</em> snake_case_name</p>"),
        ("[x](https://a.b/c_d)", f"<p>{link('https://a.b/c_d', 'x')}</p>"),
        ("see https://e.f/g.", f"<p>see {link('https://e.f/g', 'https://e.f/g')}.</p>"),
        ("[x](javascript:alert(1)) ![y](data:text/html,z)", "<p>[x](javascript:alert(1)) ![y](data:text/html,z)</p>"),
        ("\\*a\\* `b ** c`", "<p>*a* <code>b ** c</code></p>"),
    ],
)  # fmt: skip
def test_what_models_write(page: Page, text: str, drawn: str) -> None:
    for size in (1, 2, 7, 10_000):
        assert page.evaluate(DRAW, [text, size]) == drawn


def test_code_within_a_list(page: Page) -> None:
    text = "1. First:\n   ```python\n   x = 1\n\n   # two\n   ```\n2. Second"
    for size in (1, 5, 10_000):
        drawn = page.evaluate(DRAW, [text, size])
        assert drawn.count("<figure") == 1
        assert drawn.count("<li>") == 2
        assert "# two" in drawn


@pytest.mark.parametrize("size", [1, 4, 10_000])
def test_thoughts_are_folded(page: Page, size: int) -> None:
    drawn = page.evaluate(DRAW, ["<think>\nHm, **two**.\n</think>\n\nFour.", size])
    thought = '<summary>Thoughts</summary><div class="words"><p>Hm, <strong>two</strong>.</p></div>'
    assert drawn == f'<details class="thought">{thought}</details><p>Four.</p>'
    unfinished = page.evaluate(DRAW, ["<think>\nHm", size])
    assert "<summary>Thinking</summary>" in unfinished
    empty = page.evaluate(DRAW, ["<think>\n\n</think>\n\nFour.", size])
    assert 'hidden=""' in empty
