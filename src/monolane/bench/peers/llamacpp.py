"""llama.cpp as a peer, through the xllamacpp package: same machine, number of threads, prompt and lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec

from monolane.bench.peers.peer import PeerMissingError, Wanted
from monolane.errors import pip_install


class LlamaCpp:
    """Runs the model's GGUF file itself, or a copy of it with its matrices converted to bf16."""

    def __init__(self, wanted: Wanted, widened: bool) -> None:
        if find_spec("xllamacpp") is None:
            raise PeerMissingError(f"the xllamacpp package is not installed: {pip_install('xllamacpp')}")
        if wanted.kind != "cpu":
            raise PeerMissingError("the xllamacpp package computes on the CPU")
        if wanted.path is None or wanted.path.suffix != ".gguf":
            raise PeerMissingError("it needs a GGUF file")
        import xllamacpp

        from monolane.bench.peers.widen import bf16_twin

        self.name = "llama.cpp, bf16" if widened else "llama.cpp, same file"
        self.what = f"xllamacpp {version('xllamacpp')}, {wanted.threads} threads"
        params = xllamacpp.CommonParams()
        params.model.path = str(bf16_twin(wanted.path) if widened else wanted.path)
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
