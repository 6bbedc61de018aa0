"""Downloads from a fake hub server, which speaks the hub's protocol and fails on request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from monolane.errors import FetchError, UnsupportedModelError
from monolane.model import fetch
from monolane.model.catalogue import NamedModel
from monolane.model.hub import Hub, HubSource
from monolane.progress import Silent

WEIGHTS = b"".join(number.to_bytes(4, "big") for number in range(700_000))  # a few blocks of 1 MiB
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{} ",
    "chat_template.jinja": b"",
    "model-00001-of-00001.safetensors": WEIGHTS,
    "model.safetensors.index.json": b"{}  ",
}
UNWANTED = {
    "pytorch_model.bin": b"pickle",
    "modeling_evil.py": b"code",
    "consolidated.safetensors": b"the same weights again",
    "onnx/model.safetensors": b"x",
    "../model.safetensors": b"x",
}


@dataclass
class Server:
    """What the server has, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes]
    url: str = ""
    refusal: tuple[int, str] | None = None
    drop_after: list[int] = field(default_factory=list)
    ranges: bool = True
    listed: dict[str, bytes] = field(default_factory=dict)
    redirect_to: str = ""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def listing(self) -> bytes:
        siblings = []
        for name, content in (self.files | self.listed).items():
            entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": "0"}
            if name.endswith((".safetensors", ".gguf")):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 100}
            siblings.append(entry)
        return json.dumps({"_id": "1", "id": "some/model", "sha": "c0ffee", "siblings": siblings}).encode()


def handler_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if server.drop_after and len(body) > 100_000:
                body = body[: server.drop_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            if server.refusal:
                status, code = server.refusal
                self.answer(status, b"", X_Error_Code=code)
            elif self.path.startswith("/api/models/"):
                self.answer(200, server.listing(), Content_Type="application/json")
            elif server.redirect_to and "moved" not in self.path:
                self.answer(302, b"", Location=f"{server.redirect_to}{self.path}?moved")
            else:
                name = self.path.split("?")[0].split("/resolve/c0ffee/")[1]
                server.asked.append((name, wanted, self.headers.get("Authorization")))
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if server.ranges else 0
                self.answer(206 if server.ranges else 200, server.files[name][start:])

    return Handler


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    server = Server(dict(FILES))
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(server))
    server.url = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    listener.shutdown()
    listener.server_close()
    thread.join()


def get(server: Server) -> Path:
    return fetch.fetch_folder("some/model", Silent(), Hub(server.url))


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def final_folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / "hub" / "some--model"


def test_a_folder_holds_what_we_read_and_nothing_else(server: Server, tmp_path: Path):
    server.files |= UNWANTED
    folder = get(server)
    assert folder == final_folder(tmp_path)
    assert content(folder) == FILES
    assert not set(UNWANTED) & {name for name, _, _ in server.asked}
    assert {path.suffix for path in folder.parent.iterdir()} == {"", ".lock"}
    server.refusal = (500, "")
    assert get(server) == folder


def test_a_lost_connection_is_taken_up_where_it_ended(server: Server):
    server.files = {"config.json": b"", "tokenizer.json": b"", "model.safetensors": WEIGHTS}
    server.drop_after = [1_500_000, 700_000]
    assert content(get(server)) == server.files
    starts = [int(wanted[6:-1]) for name, wanted, _ in server.asked if name == "model.safetensors"]
    assert len(starts) == 3
    assert starts == sorted(set(starts))


def test_what_arrived_before_a_failure_is_not_downloaded_again(server: Server, tmp_path: Path):
    server.files = {"config.json": b"", "tokenizer.json": b"", "model.safetensors": WEIGHTS}
    server.drop_after = [1_500_000, 0]
    with pytest.raises(FetchError, match="run the same command again"):
        get(server)
    assert not final_folder(tmp_path).exists()
    server.asked.clear()
    assert content(get(server)) == server.files
    assert [wanted != "bytes=0-" for _, wanted, _ in server.asked] == [True]


def test_a_server_that_knows_no_ranges_is_read_from_the_start(server: Server):
    server.ranges = False
    server.drop_after = [1_500_000, 1_000_000]
    with pytest.raises(FetchError):
        get(server)
    assert content(get(server)) == FILES


@pytest.mark.parametrize("length", [10, len(WEIGHTS) - 1, len(WEIGHTS) + 1, len(WEIGHTS) + 3_000_000])
def test_another_length_than_listed_is_refused(server: Server, tmp_path: Path, length: int):
    server.listed = {"model-00001-of-00001.safetensors": WEIGHTS}
    server.files["model-00001-of-00001.safetensors"] = (WEIGHTS * 3)[:length]
    with pytest.raises(FetchError, match=r"ends after|is longer"):
        get(server)
    assert not final_folder(tmp_path).exists()


def test_damaged_weights_are_refused_with_both_hashes_and_removed(server: Server, tmp_path: Path):
    damaged = WEIGHTS[:-1] + b"!"
    server.listed = {"model-00001-of-00001.safetensors": WEIGHTS}
    server.files["model-00001-of-00001.safetensors"] = damaged
    with pytest.raises(FetchError) as caught:
        get(server)
    assert hashlib.sha256(WEIGHTS).hexdigest() in caught.value.message
    assert hashlib.sha256(damaged).hexdigest() in caught.value.message
    assert not list(tmp_path.rglob("*.safetensors"))
    server.files = dict(FILES)
    assert content(get(server)) == FILES


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "GatedRepo"), "accept its terms"),
        ((404, "RepoNotFound"), "there is no model some/model"),
        ((500, ""), "the hub answered with an error"),
    ],
)
def test_refusals_say_what_to_do(server: Server, refusal: tuple[int, str], message: str):
    server.refusal = refusal
    with pytest.raises(FetchError, match=message) as caught:
        get(server)
    assert caught.value.hint


def test_a_hub_that_is_not_there_is_one_clear_error(server: Server, tmp_path: Path):
    with pytest.raises(FetchError, match="the connection failed") as caught:
        fetch.fetch_folder("some/model", Silent(), Hub("http://127.0.0.1:9"))
    assert "give the path" in caught.value.hint
    assert not final_folder(tmp_path).exists()


def test_offline_mode_is_respected(server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE"):
        get(server)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model-00001-of-00001.safetensors"])
def test_a_repository_that_is_no_model_for_us_costs_no_download(server: Server, missing: str):
    del server.files[missing]
    server.files["pytorch_model.bin"] = b"pickle"
    with pytest.raises(UnsupportedModelError, match="has no"):
        get(server)
    assert server.asked == []


def test_the_token_stays_with_the_hub(server: Server):
    get(server)
    assert {token for _, _, token in server.asked} == {"Bearer secret"}
    server.asked.clear()
    server.redirect_to = server.url.replace("127.0.0.1", "localhost")
    fetch.fetch_folder("other/model", Silent(), Hub(server.url))
    assert {token for _, _, token in server.asked} == {None}


def named(digest: str) -> NamedModel:
    return NamedModel("tiny", "", "", "tiny.gguf", len(WEIGHTS), digest, "some/model", "Tiny.gguf", ())


def test_a_named_model_comes_from_the_hub_where_that_has_the_right_file(server: Server):
    server.files = {"Tiny.gguf": WEIGHTS}
    model = named(hashlib.sha256(WEIGHTS).hexdigest())
    assert fetch.fetch_named(model, Silent(), [HubSource(Hub(server.url))]).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("file", "message"), [("Tiny.gguf", "another file"), ("Other.gguf", "does not have Tiny.gguf")]
)
def test_a_named_model_that_changed_on_the_hub_costs_no_download(server: Server, file: str, message: str):
    server.files = {file: WEIGHTS}
    with pytest.raises(FetchError, match=message):
        fetch.fetch_named(named("0" * 64), Silent(), [HubSource(Hub(server.url))])
    assert server.asked == []
