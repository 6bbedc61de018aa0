"""Links in the documents lead to existing files and headings, and in docs/token.md to the right lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])
TOKEN = ROOT / "docs/token.md"
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


def line_of(name: str, path: Path) -> int:
    """Where something is defined: a class or function of Python, a struct, class or function of the kernel."""
    word = re.escape(re.split(r"::|\.", name)[-1])
    defined = re.compile(rf"(def|class|struct) {word}\b|^ *MONOLANE_\w+ [^;=]*\b{word}\(")
    found = [number for number, line in enumerate(path.read_text().splitlines(), 1) if defined.search(line)]
    assert found, f"{path} does not define {name}"
    return found[0]


def with_right_lines(text: str) -> str:
    def right(match: re.Match[str]) -> str:
        return f"[`{match[1]}`]({match[2]}#L{line_of(match[1], TOKEN.parent / match[2])})"

    return re.sub(r"\[`([^`]+)`\]\(([^)#]+)#L\d+\)", right, text)


def test_a_tokens_life_names_the_right_lines() -> None:
    assert len(re.findall(r"#L\d+", TOKEN.read_text())) > 20
    assert TOKEN.read_text() == with_right_lines(TOKEN.read_text()), "python tests/test_docs.py puts the lines right"


if __name__ == "__main__":
    TOKEN.write_text(with_right_lines(TOKEN.read_text()))
