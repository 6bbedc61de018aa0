"""Replicas on Ray Serve. With MONOLANE_TEST=all, on a cluster of two nodes of which one loses its replica."""

from __future__ import annotations

import os
import re
import signal
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from ray_front import ENGINE, REPLICA, Fronted, environment, fronted
from running import until

from thorough import seldom

pytest.importorskip("ray.serve", reason="needs Ray: pip install '.[ray]'")

HI: Any = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("replicas", [1, seldom(2)])
def test_a_conversation_is_answered_by_one_replica_whose_cache_is_used(replicas: int, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    behaviour = {"answer": "Hello there.<eos>", "context": 256}
    with fronted(behaviour, replicas, replicas, mark, tmp_path) as server:
        until(lambda: len(server.metrics("monolane:engine_ready")) == replicas)
        ask = server.client.chat.completions.create
        first = ask(model="fake", messages=[HI])
        answer: Any = {"role": "assistant", "content": first.choices[0].message.content}
        chunks = list(ask(model="fake", messages=[HI, answer, HI], stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there."
        usage = chunks[-1].usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens  # type: ignore[union-attr,operator]
        with pytest.raises(openai.NotFoundError, match="no model 'other'"):
            ask(model="other", messages=[HI])
        log = server.stop()
    answers = [line for line in log.splitlines() if "/v1/chat/completions status=200" in line]
    assert len(answers) == 2
    assert len({line.split("replica=")[1].split()[0] for line in answers}) == 1
    assert all("finish=stop" in line for line in answers)
    assert "Traceback" not in log
    until(lambda: not server.processes())


CLIENTS, REQUESTS = 8, 50
TEXT = "The quick brown fox jumps over the lazy dog."


class Client(threading.Thread):
    """Asks one question after another, in turn as a stream and as a whole; every answer repeats its own question."""

    def __init__(self, server: Fronted, number: int, outcomes: Counter[str], progress: threading.Semaphore) -> None:
        super().__init__()
        self._server, self._number, self._outcomes, self._progress = server, number, outcomes, progress
        self.wrong: list[str] = []

    def run(self) -> None:
        client = self._server.client
        for number in range(REQUESTS):
            prompt = f"Client {self._number}, question {number}: "
            got, outcome = "", "answered"
            try:
                if number % 2:
                    ask: Any = {"model": "fake", "prompt": prompt, "echo": True, "max_tokens": 100}
                    for chunk in client.completions.create(**ask, stream=True):
                        got += chunk.choices[0].text
                        finished = chunk.choices[0].finish_reason
                else:
                    whole = client.completions.create(model="fake", prompt=prompt, echo=True, max_tokens=100)
                    got, finished = whole.choices[0].text, whole.choices[0].finish_reason
                if (got, finished) != (prompt + TEXT, "stop"):
                    outcome = "wrong"
            except openai.APIError as error:
                # Only a stream that has begun may break, and it must say why.
                has_begun = len(got) > len(prompt) and (prompt + TEXT).startswith(got)
                is_told = re.search("was lost|was killed", str(error))
                outcome = "broken" if has_begun and is_told else f"lost: {error!r}"
            if outcome not in ("answered", "broken"):
                self.wrong.append(f"{prompt}{outcome}: {got}")
            self._outcomes[outcome] += 1
            self._progress.release()


@pytest.mark.parametrize("victim", [seldom(REPLICA), seldom(ENGINE)], ids=["replica", "engine"])
def test_eight_clients_ask_two_nodes_while_one_is_struck(
    victim: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ray.cluster_utils import Cluster

    mark = uuid.uuid4().hex
    for name, value in environment(mark).items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        behaviour = {"answer": TEXT + "<eos>", "tokens_per_second": 250, "context": 256}
        with fronted(behaviour, 2, 2, mark, tmp_path, RAY_ADDRESS=cluster.address) as server:
            until(lambda: len(server.metrics("monolane:engine_ready")) == 2)
            before = set(server.metrics("monolane:engine_ready"))
            outcomes: Counter[str] = Counter()
            progress = threading.Semaphore(0)
            clients = [Client(server, number, outcomes, progress) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            for _ in range(CLIENTS * REQUESTS // 4):
                progress.acquire()
            os.kill(server.processes(victim)[0], signal.SIGKILL)
            for client in clients:
                client.join(300)
            retried = server.total("monolane:requests_retried_total")
            print(dict(outcomes), "retried:", retried)
            assert [wrong for client in clients for wrong in client.wrong] == []
            assert sum(outcomes.values()) == CLIENTS * REQUESTS
            assert 1 <= outcomes["broken"] + retried <= 2 * CLIENTS
            # Another one has taken its place, and answers.
            until(lambda: list(server.metrics("monolane:engine_ready").values()) == [1, 1])
            assert len(before & set(server.metrics("monolane:engine_ready"))) == (1 if victim == REPLICA else 2)
            with ThreadPoolExecutor(8) as pool:
                ask = lambda number: server.client.completions.create(model="fake", prompt=str(number))  # noqa: E731
                list(pool.map(ask, range(16)))
            assert min(server.metrics("vllm:prompt_tokens_total").values()) > 0
            assert "Traceback" not in server.stop()
    finally:
        cluster.shutdown()
