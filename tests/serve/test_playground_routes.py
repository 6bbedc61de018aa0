"""What the playground's routes send, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from playground_server import Script, playground

from monolane.serve.playground_routes import FILES


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with playground(Script()) as url:
        yield url


def test_the_page_may_load_and_reach_its_own_server_only(url: str) -> None:
    with urlopen(url) as response:
        policy = dict(part.strip().split(" ", 1) for part in response.headers["Content-Security-Policy"].split(";"))
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"


def test_the_preview_is_sandboxed_even_when_it_is_opened_by_itself(url: str) -> None:
    with urlopen(f"{url}playground/preview.html") as response:
        policy = [part.strip() for part in response.headers["Content-Security-Policy"].split(";")]
    assert "sandbox allow-scripts" in policy
    assert "default-src 'none'" in policy
    assert not any("http" in part or "*" in part or "connect-src" in part for part in policy)


@pytest.mark.parametrize("path", sorted(path.name for path in FILES.iterdir()))
def test_every_file_has_its_type_and_its_policy(url: str, path: str) -> None:
    types = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
    with urlopen(f"{url}playground/{path}") as response:
        assert response.headers.get_content_type() == types[path.rsplit(".")[-1]]
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attributes if name in ("src", "href")]
        assert not any(name == "style" or name.startswith("on") for name, _ in attributes), tag


def test_the_page_names_files_that_exist() -> None:
    parser = _Addresses()
    parser.feed((FILES / "index.html").read_text(encoding="utf-8"))
    files = [address for address in parser.found if not address.startswith("#")]
    assert files
    assert all((FILES.parent / address).is_file() for address in files)


@pytest.mark.parametrize(
    "path", ["playground/", "playground/missing.js", "playground/%2e%2e/app.py", "playground/../app.py"]
)
def test_nothing_else_is_served(url: str, path: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(f"{url}{path}")
    assert caught.value.code == 404


def test_the_machine(url: str) -> None:
    with urlopen(f"{url}machine") as response:
        assert json.load(response) == {
            "model": "scripted", "device": "a synthetic engine", "bytes_per_token": 890_000_000,
            "ceiling_bytes_per_s": 4.6e12, "context": 8192, "can_chat": True,
            "sampling": {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "repetition_penalty": 1.05},
        }  # fmt: skip
