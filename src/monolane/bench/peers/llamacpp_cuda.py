"""llama.cpp's CUDA back end as a peer: a program of ours around its library, in a process of its own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from monolane.bench.peers import llamacpp_build
from monolane.bench.peers.llamacpp_file import gguf_file
from monolane.bench.peers.peer import PeerMissingError, Wanted

STOP_S = 30.0  # until a program that was told to end is killed


class LlamaCppCuda:
    """Runs the model's GGUF file itself, or a copy of it with its matrices converted to bf16; of a shape, a GGUF file
    with the same made-up weights."""

    def __init__(self, wanted: Wanted, widened: bool) -> None:
        from monolane.target.cuda.opening import required_gpu

        program = llamacpp_build.built(llamacpp_build.source(), required_gpu().capability)
        self._folder = tempfile.TemporaryDirectory(prefix="monolane-peer-")
        self._process: subprocess.Popen[str] | None = None
        try:
            file = gguf_file(wanted, widened, Path(self._folder.name))
            self._start([str(program), str(file), str(wanted.context)])
        except BaseException:
            self.close()
            raise
        self.name = "llama.cpp, bf16" if widened else "llama.cpp, same file"
        self.what = f"llama.cpp built from {llamacpp_build.source().name} for this GPU, all layers on it, greedy"

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, (tokens, *prompt))) + "\n")
        self._process.stdin.flush()
        made = len(self._line().split())
        if made != tokens:
            raise RuntimeError(f"llama.cpp made {made} tokens, not {tokens}")

    def close(self) -> None:
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()  # it ends with its input
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def _start(self, words: list[str]) -> None:
        log = Path(self._folder.name, "log")
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        if not self._line().startswith("ready"):
            lines = log.read_text(errors="replace").strip().splitlines()
            raise PeerMissingError(f"it did not start: {lines[-1][:200] if lines else 'it said nothing'}")

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline()
