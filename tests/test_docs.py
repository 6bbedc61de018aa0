"""The documents point at what is there: files, headings, and in docs/token.md the very lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<to>[^)\s]+)\)")
LINE = re.compile(r"L(\d+)")


def links(page: Path) -> list[tuple[str, str, str]]:
    """Text, path and anchor of every link that stays in the project."""
    found = []
    for match in LINK.finditer(page.read_text()):
        if not match["to"].startswith(("http:", "https:", "mailto:")):
            path, _, anchor = match["to"].partition("#")
            found.append((match["text"], path, anchor))
    return found


def headings(page: Path) -> set[str]:
    """Anchors, as they are made of headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for text, path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"[{text}] leads to {path}, which is not there"
        if anchor and not LINE.fullmatch(anchor):
            assert anchor in headings(target), f"[{text}] leads to #{anchor}, which {target.name} does not have"


def test_a_tokens_life_names_the_right_lines() -> None:
    page = ROOT / "docs/token.md"
    named = [(text.strip("`"), path, anchor) for text, path, anchor in links(page) if LINE.fullmatch(anchor)]
    assert len(named) > 20
    for name, path, anchor in named:
        lines = (page.parent / path).read_text().splitlines()
        word = re.escape(re.split(r"::|\.", name)[-1])
        defined = re.compile(rf"(def|class|struct) {word}\b|^ *MONOLANE_\w+ [^;=]*\b{word}\(")
        right = [number for number, line in enumerate(lines, 1) if defined.search(line)]
        assert int(anchor[1:]) in right, f"`{name}` is at L{right} of {path}, not at {anchor}"
