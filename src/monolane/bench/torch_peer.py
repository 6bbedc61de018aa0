"""PyTorch as a peer: the same weights through torch.compile (max-autotune, CUDA graphs), on the same GPU."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from importlib.util import find_spec

from monolane.bench.peers import PeerMissingError, Wanted


class TorchPeer:
    """A compiled step: one token in, one token out. A prompt goes through it token by token."""

    name = "torch.compile"

    def __init__(self, wanted: Wanted) -> None:
        if find_spec("torch") is None:
            raise PeerMissingError("PyTorch is not installed")
        import torch
        import torch._inductor.config

        if not torch.cuda.is_available():
            raise PeerMissingError("PyTorch sees no GPU")
        from monolane.bench.torch_model import Decoder, fill

        how = f"max-autotune, CUDA graphs, a cache of {wanted.context} positions, prompts token by token"
        self.what = f"torch {torch.__version__}, {how}"
        if hasattr(torch._inductor.config, "autotune_num_choices_displayed"):  # not in every version
            torch._inductor.config.autotune_num_choices_displayed = 0  # pages of tables otherwise
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                model = Decoder(wanted.config, wanted.context).requires_grad_(False)
        finally:
            torch.set_default_dtype(default)
        fill(model, wanted.config, wanted.weights)
        self._step = torch.compile(model, mode="max-autotune", fullgraph=True, dynamic=False)

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        import torch

        with torch.no_grad():
            # Tensors of their own: pieces of a longer one have other strides, for which it would compile again.
            given = [torch.tensor([[token]], device="cuda") for token in prompt]
            position = torch.zeros(1, dtype=torch.long, device="cuda")
            token = given[0]
            for place in range(len(prompt) + tokens - 1):
                token = given[place] if place < len(prompt) else token
                token = self._step(token, position).clone()  # a CUDA graph writes to the same place every time
                position = position + 1
            torch.cuda.synchronize()

    def close(self) -> None:
        import torch

        del self._step
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
