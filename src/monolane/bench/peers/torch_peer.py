"""PyTorch as a peer: the same weights through torch.compile (max-autotune) and a CUDA graph, on the same GPU."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib.util import find_spec

from monolane.bench.peers.peer import PeerMissingError, Wanted

_WARM_UP_STEPS = 3  # before the graph is captured, so that nothing is compiled or allocated during the capture


class TorchPeer:
    """One decode step as a CUDA graph: a token in, the next token out. Prompts are also processed token by token."""

    name = "torch.compile"

    def __init__(self, wanted: Wanted) -> None:
        if wanted.config.experts:
            raise PeerMissingError("its model has no experts")
        if find_spec("torch") is None:
            raise PeerMissingError("PyTorch is not installed")
        import torch
        import torch._inductor.config

        if not torch.cuda.is_available():
            raise PeerMissingError("PyTorch sees no GPU")
        from monolane.bench.peers.torch_model import Decoder, fill

        self.what = (
            f"torch {torch.__version__}, max-autotune, one CUDA graph, a cache of {wanted.context} positions; "
            "reads a prompt token by token, so its first token says nothing"
        )
        if hasattr(torch._inductor.config, "autotune_num_choices_displayed"):  # not in every version
            torch._inductor.config.autotune_num_choices_displayed = 0  # it would print pages of tables
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                model = Decoder(wanted.config, wanted.context).requires_grad_(False)
        finally:
            torch.set_default_dtype(default)
        fill(model, wanted.config, wanted.weights)
        model.compile_parts("max-autotune-no-cudagraphs")
        self._model = model  # keeps the weights alive: the graph has only their addresses
        self._token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        self._position = torch.zeros(1, dtype=torch.long, device="cuda")
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def _capture(self) -> None:
        import torch

        with torch.no_grad():
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                for _ in range(_WARM_UP_STEPS):
                    self._model(self._token, self._position)
            torch.cuda.current_stream().wait_stream(side_stream)
            with torch.cuda.graph(self._graph):
                self._token.copy_(self._model(self._token, self._position))
                self._position.add_(1)

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        import torch

        with torch.no_grad():
            prompt_ids = torch.tensor([prompt], device="cuda")
            self._position.zero_()
            for position in range(len(prompt) + tokens - 1):
                if position < len(prompt):
                    self._token.copy_(prompt_ids[:, position : position + 1])
                self._graph.replay()
            torch.cuda.synchronize()

    def close(self) -> None:
        import torch

        del self._graph, self._model, self._token, self._position
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
