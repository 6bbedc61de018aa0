"""llama.cpp as a peer, through the xllamacpp package: same machine, same threads, same prompt, same lengths."""

from __future__ import annotations

import json
from pathlib import Path


class LlamaCpp:
    """A loaded model; each call of ``decode_us`` is one fresh measurement."""

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_parallel = 1
        params.cpuparams.n_threads = threads
        params.cpuparams_batch.n_threads = threads
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def decode_us(self, prompt: str, tokens: int) -> float:
        """Microseconds per decoded token, by its own clock."""
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = self._server.handle_completions(asked)
        answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
        timings = answer["timings"]
        if timings["predicted_n"] != tokens:
            raise RuntimeError(f"llama.cpp made {timings['predicted_n']} tokens, not {tokens}")
        return float(timings["predicted_per_token_ms"]) * 1000
