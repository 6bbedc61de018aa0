"""llama.cpp on the CPU as a peer, through the xllamacpp package: same number of threads, prompt and lengths."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from monolane.bench.peers.llamacpp_file import gguf_file
from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.errors import pip_install


class LlamaCpp:
    """Runs the model's GGUF file itself, or a copy of it with its matrices converted to bf16; of a shape, a GGUF file
    with the same made-up weights."""

    def __init__(self, wanted: Wanted, widened: bool) -> None:
        if find_spec("xllamacpp") is None:
            raise PeerMissingError(f"the xllamacpp package is not installed: {pip_install('xllamacpp')}")
        import xllamacpp

        self._folder = tempfile.TemporaryDirectory(prefix="monolane-peer-")
        self.name = "llama.cpp, bf16" if widened else "llama.cpp, same file"
        self.what = f"xllamacpp {version('xllamacpp')}, {wanted.threads} threads"
        params = xllamacpp.CommonParams()
        params.model.path = str(gguf_file(wanted, widened, Path(self._folder.name)))
        params.n_ctx = wanted.context
        params.n_parallel = 1
        params.cpuparams.n_threads = wanted.threads
        params.cpuparams_batch.n_threads = wanted.threads
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        request = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0}
        answer = self._server.handle_completions({**request, "ignore_eos": True, "cache_prompt": False})
        answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
        made = answer.get("timings", {}).get("predicted_n")
        if made != tokens:
            raise RuntimeError(f"llama.cpp made {made} tokens, not {tokens}")

    def close(self) -> None:
        del self._server
        self._folder.cleanup()
