"""The engine process dies, is killed or hangs during an answer: clients get an error, and later requests are served."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from running import ENDLESS, Running, openai_client, running, until

HI: Any = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
PATHS: dict[str, Any] = {
    CHAT: {"messages": HI},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 1000},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 1000},
}


def served_again(server: Running) -> None:
    server.ready()
    assert server.post(CHAT, {"messages": HI, "max_tokens": 2})[0] == 200


@pytest.mark.parametrize("fault", ["crash@5", "error@5", "stall@5", "freeze@5"])
def test_a_crash_an_error_a_stalled_worker_and_a_frozen_process_are_survived(fault: str, tmp_path: Path) -> None:
    with running(answer="a", context=ENDLESS, faults=fault, only_once=str(tmp_path / "once")) as server:
        stream = openai_client(server).chat.completions.create(model="fake", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match=r"engine|stuck|step|life"):
            list(stream)
        served_again(server)


def test_kill_9_of_the_engine_mid_token_is_an_error_in_every_dialect() -> None:
    with running(answer="a", tokens_per_second=100, context=ENDLESS) as server:
        for path, body in PATHS.items():
            server.ready()
            with server.open(path, json.dumps(body | {"stream": True}).encode()) as response:
                until(lambda: len(server.answers[-1]._transcript.tokens) > 3)
                pid = server.engine.state.core_pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                told = response.read().decode()
            assert "error" in told
            assert "killed" in told
        served_again(server)


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_request_that_waits_for_the_whole_answer_gets_a_500(path: str) -> None:
    with running(answer="a", context=ENDLESS, faults="crash@5") as server:
        status, body = server.post(path, PATHS[path])
        assert status == 500
        assert "engine" in body["error"]["message"]


def test_while_it_restarts_the_server_says_so_and_who_waits_is_served(tmp_path: Path) -> None:
    with running(
        answer="a", tokens_per_second=100, context=ENDLESS, load_s=0.6, faults="crash@30", only_once=str(tmp_path / "x")
    ) as server:
        results: list[tuple[int, Any]] = []
        threads = []
        for number in range(2):
            ask = lambda: results.append(server.post(CHAT, {"messages": HI, "max_tokens": 40}))  # noqa: E731
            threads.append(threading.Thread(target=ask))
            threads[-1].start()
            until(lambda: len(server.answers) > number)  # noqa: B023
        until(lambda: server.engine.state.status == "restarting")
        status, body = server.get("/health")
        assert (status, body["status"]) == (503, "restarting")
        status, body = server.post(CHAT, {"messages": HI})
        assert status == 503
        for thread in threads:
            thread.join(30)
        assert sorted(status for status, _ in results) == [200, 500]
        served_again(server)
