"""The server as a process: loading, listening, ending; and the command with its options."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from running import running, until

from monolane import ResourceError, UsageError
from monolane.serve import request_log
from monolane.serve.run import Settings, address, listen, serve
from monolane.serve.service import Service
from synthetic_engine import synthetic_engine


def test_health_tells_how_far_the_loading_has_come() -> None:
    with running(wait=False, load_s=0.5) as server:
        until(lambda: server.get("/health")[1].get("label") == "loading nothing")
        status, body = server.get("/health")
        assert status == 503
        assert set(body) == {"status", "label", "done_bytes", "total_bytes", "problem"}
        assert (body["status"], body["total_bytes"], body["problem"]) == ("loading", 20, None)
        status, body = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]})
        assert status == 503
        assert "loading" in body["error"]["message"]
        assert server.get("/v1/models")[0] == 503
        assert server.get("/machine")[0] == 503
        assert server.get("/metrics")[0] == 200
        server.ready()
        assert server.get("/health") == (200, {"status": "ok"})


def test_a_port_in_use_is_told() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"Port {port} .* in use") as caught:
            listen("127.0.0.1", port)
        assert "--port" in caught.value.hint


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("no such host.invalid", 0), ("127.0.0.1", -1)])
def test_no_address_is_told(host: str, port: int) -> None:
    with pytest.raises(UsageError, match="no address"):
        listen(host, port)


def test_an_address_of_the_new_kind_is_written_in_brackets() -> None:
    try:
        listener = listen("::1", 0)
    except ResourceError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert re.fullmatch(r"http://\[::1\]:\d+", address(listener))


def test_a_model_that_does_not_load_ends_the_server_with_its_error() -> None:
    service = Service({"fake": synthetic_engine(faults="load")})
    with pytest.raises(UsageError, match="told not to load"):
        serve(service, Settings(port=0), lambda _: None)


PROGRAM = """
import sys
from monolane import cli
from monolane.engine.async_engine import AsyncEngine
from synthetic_engine import synthetic_engine
AsyncEngine.for_model = lambda model, *, workers, context, queue, **more: synthetic_engine(
    queue=queue, context=context or 256, answer="Hello.<eos>", tokens_per_second=workers or 5000)
cli.main()
"""


@contextmanager
def command(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """``monolane serve`` with a synthetic engine, when it is ready; its process, its address, and what it has said."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "MONOLANE_MODEL": "fake"} | variables,
    )
    try:
        assert process.stderr is not None
        said = [process.stderr.readline()]
        ready = r"(\S+) is ready on synthetic: playground (http://127\.0\.0\.1:\d+)/ .*, API \2/v1"
        while not (found := re.search(ready, said[-1])):
            assert said[-1], said
            said.append(process.stderr.readline())
        yield process, found[2], said
    finally:
        process.kill()
        process.communicate()


def test_the_command_ends_with_ctrl_c() -> None:
    with command("--port", "0") as (process, url, _):
        with urlopen(f"{url}/health", timeout=30) as response:
            assert json.load(response) == {"status": "ok"}
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
        assert process.returncode in (0, 130)  # 0 where the shell has told its children to ignore the signal
        assert "Traceback" not in rest


def test_told_to_stop_it_brings_the_answer_under_way_to_its_end_and_logs_how_fast_it_was() -> None:
    with command("--port", "0", "--workers", "20") as (process, url, _):  # 20 tok/s: 0.3 s
        with _post(url, b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}') as response:
            assert response.readline().startswith(b"data: ")
            process.send_signal(signal.SIGTERM)
            events = response.read().decode()
        _, rest = process.communicate(timeout=30)
    assert events.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"stop"' in events
    assert "Traceback" not in rest
    line = next(line for line in rest.splitlines() if "/v1/chat" in line)
    pairs = dict(pair.split("=") for pair in line.split()[3:])
    assert (pairs["status"], pairs["finish"], pairs["tokens"]) == ("200", "stop", "6")
    assert float(pairs["tokens_per_second"]) == pytest.approx(20, rel=0.5)
    assert {"queue_s", "first_token_s", "prompt_tokens", "cached_tokens"} <= set(pairs)


def test_options_come_from_the_command_line_then_the_environment_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'port = 0\nserved-model-name = "from-file"\nmax_model_len = 64\nlog-level = "debug"\nworkers = 900\n'
    )
    key = tmp_path / "key"
    key.write_text("secret\n")
    variables = {"MONOLANE_SERVED_MODEL_NAME": "from-environment", "MONOLANE_API_KEY_FILE": str(key)}
    with command("--config", str(file), "--max-model-len", "128", **variables) as (process, url, _):
        with urlopen(_request(f"{url}/v1/models", "secret"), timeout=30) as response:
            card = json.load(response)["data"][0]
        assert (card["id"], card["max_model_len"]) == ("from-environment", 128)
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    assert re.search(r"^\S+Z INFO request method=GET path=/v1/models status=200 client=127.0.0.1 s=", rest, re.M)


def test_every_option_of_the_server_can_be_set_by_the_environment() -> None:
    from typer.main import get_command

    from monolane import cli

    serve_command = get_command(cli.app).commands["serve"]  # type: ignore[attr-defined]
    names = {parameter.name: parameter.envvar for parameter in serve_command.params if parameter.name != "help"}
    assert len(names) > 12
    assert {name: f"MONOLANE_{name.upper()}" for name in names} == names


def test_the_ceiling_is_the_one_given_or_else_the_one_measured_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monolane.bench.ceiling import store as ceiling_store
    from monolane.cli.options import ceiling

    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    assert ceiling(None, "cpu", None)() is None
    ceiling_store.keep({"device": "cpu", "ceiling_bytes_per_s": 2e10})
    for device, workers in (("cpu", None), ("interpreter", None), ("auto", 2)):
        assert ceiling(None, device, workers)() == 2e10
    assert ceiling(13.5, "cpu", None)() == 13.5e9


def test_without_a_ceiling_the_server_says_how_to_get_one(tmp_path: Path) -> None:
    with command("--port", "0", MONOLANE_CACHE=str(tmp_path)) as (_, _, said):
        assert any("monolane ceiling" in line for line in said)
    with command("--port", "0", MONOLANE_CEILING="20") as (_, url, said):
        assert not any("monolane ceiling" in line for line in said)
        with urlopen(f"{url}/machine", timeout=30) as response:
            assert json.load(response)["ceiling_bytes_per_s"] == 20e9


def _post(url: str, raw: bytes):  # type: ignore[no-untyped-def]
    request = _request(f"{url}/v1/chat/completions", "none")
    request.data = raw
    request.add_header("Content-Type", "application/json")
    return urlopen(request, timeout=30)


def _request(url: str, key: str):  # type: ignore[no-untyped-def]
    from urllib.request import Request

    return Request(url, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize(
    ("words", "file", "told"),
    [
        (["--config", "FILE"], 'model = "/no/such/model.gguf"\nport = 0', "/no/such/model.gguf"),
        (["--config", "FILE"], "port = ", "not TOML"),
        (["--config", "FILE"], "prot = 1", "prot"),
        (["--config", "FILE"], 'config = "x"', "config"),
        (["--config", "FILE"], 'port = "x"', "port"),
        (["--config", "missing.toml"], "", "missing.toml"),
        (["--api-key", "a", "--api-key-file", "FILE"], "b", "--api-key-file"),
        (["--api-key-file", "FILE"], "", "API key"),
        (["--api-key-file", "FILE"], "two words", "API key"),
        (["--api-key", "schlüssel"], "", "API key"),
        (["--log-level", "loud"], "", "--log-level"),
        (["--keep-alive", "soon"], "", "--keep-alive"),
        (["a", "b", "--served-model-name", "c"], "", "--served-model-name"),
        (["--config", "FILE"], 'model = ["a", "b", "a"]', "Two models"),
        (["--queue-limit", "-1"], "", "--queue-limit"),
        (["--replicas", "2"], "", "without --ray"),
        (["fake", "--ray", "--replicas", "2-1"], "", "--replicas is '2-1'"),
    ],
)
def test_wrong_options_are_told(
    words: list[str],
    file: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from monolane import cli

    path = tmp_path / "file"
    path.write_text(file)
    monkeypatch.setattr(request_log, "set_up", lambda _: None)  # pytest's own log goes on after this test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["monolane", "serve", *(str(path) if word == "FILE" else word for word in words)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code in (2, 3)
    said = capfd.readouterr().err
    assert told in said
    assert "Traceback" not in said
