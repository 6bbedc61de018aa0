"""How much of a GPU's arithmetic training uses: model FLOP/s utilisation (MFU)."""

from __future__ import annotations

from monolane.model.config import ModelConfig

# Dense bf16 FLOP/s of the data sheet, by a part of the GPU's name.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def flops_per_token(config: ModelConfig) -> int:
    """Forward and backward: two and four FLOPs per weight of a matrix, and causal attention over a whole context."""
    in_layer = 2 * config.hidden * (config.q_size + config.kv_size) + 3 * config.hidden * config.ffn
    attention = 2 * config.context * config.q_size  # scores and values, of which the causal mask leaves half
    return 6 * (config.layers * in_layer + config.vocab * config.hidden) + 3 * config.layers * attention


def utilisation(config: ModelConfig, tokens_per_second: float, gpu: str | None) -> float | None:
    """The share of the peak; None where the peak is not known."""
    for name, peak in _PEAKS.items():
        if gpu and name in gpu:
            return tokens_per_second * flops_per_token(config) / peak
    return None
