from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from running import Running, post, running, until

from fake_llm import fake_llm
from monolane import ModelFileError, ResourceError, UsageError
from monolane.serve.run import address, listen, serve


def health(server: Running) -> tuple[int, dict[str, str]]:
    try:
        with urlopen(f"{server.url}/health", timeout=20) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def test_health_tells_whether_the_model_has_loaded() -> None:
    with running(loaded=False) as server:
        until(lambda: health(server) == (503, {"status": "loading"}))
        status, body = post(server, b'{"messages": [{"role": "user", "content": "Hi"}]}')
        assert status == 503
        assert "loading" in body["error"]["message"]
        server.service.llm, _ = fake_llm("x<eos>")
        assert health(server) == (200, {"status": "ok"})


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
    def broken() -> None:
        raise ModelFileError("The file is truncated.")

    with pytest.raises(ModelFileError, match="truncated"):
        serve(broken, "fake", "127.0.0.1", 0, lambda _: None)  # type: ignore[arg-type]


PROGRAM = """
import sys
from fake_llm import fake_llm
from monolane import cli
cli._open = lambda *_: fake_llm("Hello.<eos>")[0]
sys.argv = ["monolane", "serve", "fake", "--port", "0"]
cli.main()
"""


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs POSIX signals")
def test_the_command_says_its_address_and_ends_with_ctrl_c() -> None:
    tests = str(Path(__file__).parents[1])
    paths = os.pathsep.join([tests, *(path for path in sys.path if path)])
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        found = re.search(r"ready on fake: (http://127\.0\.0\.1:\d+)/v1", lines[1])
        assert found, lines
        with urlopen(f"{found[1]}/health", timeout=20) as response:
            assert json.load(response) == {"status": "ok"}
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
        assert process.returncode in (0, 130)  # 0 where the shell has told its children to ignore the signal
        assert "Traceback" not in rest
    finally:
        process.kill()
