"""vLLM and SGLang as peers: each runs as a server in a process of its own and is measured over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from monolane.bench.measure import checkpoint
from monolane.bench.measure.server_client import Client
from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.errors import MonolaneError, UsageError

START_S = 600.0  # deadline for loading, compiling and capturing graphs
STOP_S = 30.0  # from SIGTERM to SIGKILL
MEMORY_SHARE = "0.5"  # of the GPU's memory: Monolane's model is on the same GPU


@dataclass(frozen=True)
class Engine:
    """How a server is started: its module, and the options of its command line."""

    name: str
    module: str
    model: str  # the option for the model
    context: str  # the option for the context length
    others: tuple[str, ...]  # options with values: data type, memory, no prefix caching


VLLM = Engine(
    "vllm",
    "vllm.entrypoints.openai.api_server",
    "--model",
    "--max-model-len",
    ("--dtype", "bfloat16", "--no-enable-prefix-caching", "--gpu-memory-utilization", MEMORY_SHARE),
)
SGLANG = Engine(
    "sglang",
    "sglang.launch_server",
    "--model-path",
    "--context-length",
    ("--dtype", "bfloat16", "--disable-radix-cache", "--mem-fraction-static", MEMORY_SHARE),
)


class ServedPeer:
    """A server process, started by the constructor and stopped by ``close``."""

    def __init__(self, engine: Engine, wanted: Wanted) -> None:
        if find_spec(engine.name) is None:
            raise PeerMissingError(f"the {engine.name} package is not installed")
        if wanted.kind != "cuda":
            raise PeerMissingError("it is measured on a GPU only")
        if wanted.path is not None and not wanted.path.is_dir():
            raise PeerMissingError("it needs a folder of safetensors")
        self.name = engine.name
        self.what = f"{engine.name} {version(engine.name)}, {' '.join(engine.others)}, asked over HTTP"
        self._folder = tempfile.TemporaryDirectory(prefix="monolane-peer-")
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None
        try:
            self._start(engine, wanted)
        except BaseException:
            self.close()
            raise

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        assert self._client is not None
        made = self._client.ask(prompt, tokens).tokens
        if made != tokens:
            raise RuntimeError(f"{self.name} made {made} tokens, not {tokens}")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)  # the whole group: its child processes hold the GPU memory
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._folder.cleanup()

    def _start(self, engine: Engine, wanted: Wanted) -> None:
        model = wanted.path or Path(self._folder.name)
        if wanted.path is None:
            try:
                checkpoint.write(wanted.config, wanted.weights, model)
            except UsageError as error:
                raise PeerMissingError(error.message) from error
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = [engine.model, str(model), engine.context, str(wanted.context), *engine.others]
        command = [sys.executable, "-m", engine.module, *words, "--host", "127.0.0.1", "--port", str(port)]
        log = Path(self._folder.name, "log")
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + START_S
        while True:
            if self._process.poll() is not None:
                raise PeerMissingError(f"it did not start: {_last_line(log)}")
            try:
                self._client = Client(f"http://127.0.0.1:{port}/v1")
                return
            except MonolaneError as error:
                if time.monotonic() > deadline:
                    raise PeerMissingError(f"it was not ready within {START_S:.0f} s") from error
                time.sleep(1.0)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it said nothing"
