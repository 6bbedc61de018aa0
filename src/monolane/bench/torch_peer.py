"""PyTorch as a peer: the same shape through torch.compile (max-autotune, CUDA graphs), on the same GPU."""

from __future__ import annotations

import gc
from time import perf_counter

from monolane.model.config import ModelConfig

NAME = "torch.compile"
WARM_UP_STEPS = 4  # the first compiles, the next ones record the CUDA graph


class PeerMissingError(Exception):
    """Why there is nothing to compare with."""


class TorchPeer:
    """A compiled model; each call of ``decode_us`` is one fresh measurement."""

    def __init__(self, config: ModelConfig, prompt_tokens: int, tokens: int) -> None:
        try:
            import torch
            import torch._inductor.config
        except ImportError as error:
            raise PeerMissingError("PyTorch is not installed") from error
        if not torch.cuda.is_available():
            raise PeerMissingError("PyTorch sees no GPU")
        if any(window is not None for window in config.windows):
            raise PeerMissingError("the PyTorch model has no sliding windows")
        from monolane.bench.torch_model import Decoder

        if hasattr(torch._inductor.config, "autotune_num_choices_displayed"):  # not in every version
            torch._inductor.config.autotune_num_choices_displayed = 0  # pages of tables otherwise
        self._prompt_tokens, self._tokens = prompt_tokens, tokens
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                model = Decoder(config, prompt_tokens + tokens).requires_grad_(False)
        finally:
            torch.set_default_dtype(default)
        self._step = torch.compile(model, mode="max-autotune", fullgraph=True, dynamic=False)
        self._steps(WARM_UP_STEPS)

    def decode_us(self) -> float:
        """Microseconds per token after the first, by the host's clock, the queue of the GPU empty before and after."""
        steps = self._tokens - 1
        return self._steps(steps) / steps * 1e6

    def close(self) -> None:
        """Give its memory back."""
        import torch

        del self._step
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()

    def _steps(self, count: int) -> float:
        """Seconds that so many tokens take. What is in the cache does not matter for that; how long it is does."""
        import torch

        with torch.no_grad():
            token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
            position = torch.tensor([self._prompt_tokens], device="cuda")
            torch.cuda.synchronize()
            began = perf_counter()
            for _ in range(count):
                token = self._step(token, position).clone()  # a CUDA graph writes to the same place every time
                position = position + 1
            torch.cuda.synchronize()
            return perf_counter() - began
