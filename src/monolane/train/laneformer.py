"""The Laneformer in PyTorch: the definition that the engine's program is tested against, and what is trained.

The hidden state is [batch, position, lane, hidden]: every lane has a residual stream of its own. Parameters have the
names and shapes of the published files, so that ``state_dict`` is what they contain.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from monolane.model.config import LaneConfig, ModelConfig


class Laneformer(nn.Module):
    """All lanes of a model in one module."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.lanes is not None
        self.config, self.lanes = config, config.lanes
        self.model = _Body(config, config.lanes)
        width = config.hidden * (self.lanes.count if self.lanes.head == "lane" else 1)
        self.lm_head = nn.Linear(width, config.vocab, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.tok_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, position] -> logits [batch, position, vocabulary]"""
        streams: Tensor = self.model(tokens)
        if self.lanes.sums_before_norm:
            return self.lm_head(self.model.norm(streams.sum(2)))  # type: ignore[no-any-return]
        normed: Tensor = self.model.norm(streams)
        if self.lanes.head == "replicate":
            return self.lm_head(normed.mean(2))  # type: ignore[no-any-return]
        if self.lanes.head == "lane":
            return self.lm_head(normed.flatten(2))  # type: ignore[no-any-return]
        # vocab_parallel: each lane makes some of the logits.
        shares = self.lm_head.weight.view(self.lanes.count, -1, self.config.hidden)
        return torch.einsum("btld,lvd->btlv", normed, shares).flatten(2)


class _Body(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig) -> None:
        super().__init__()
        self.lanes = lanes
        self.tok_embeddings = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(_Layer(config, lanes, window) for window in config.windows)
        self.norm = _Norm(config, lanes)

    def forward(self, tokens: Tensor) -> Tensor:
        streams: Tensor = self.tok_embeddings(tokens)[:, :, None].expand(-1, -1, self.lanes.count, -1)
        made: list[tuple[Tensor, Tensor]] = []  # the outputs of attention and MLP in every layer
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            outputs = []
            for number, (module, exchanges) in enumerate(layer.modules_in_order()):
                output = module(streams)
                outputs.append(output)
                late = made[index - self.lanes.delay][number] if 0 < self.lanes.delay <= index else None
                streams = streams + self._added(index, output, late, exchanges)
            made.append((outputs[0], outputs[1]))
        return streams

    def _added(self, layer: int, output: Tensor, late: Tensor | None, exchanges: bool) -> Tensor:
        """What each lane adds to its stream: [batch, position, lane, hidden]."""
        lanes = self.lanes
        if exchanges and (lanes.delay == 0 or (layer < lanes.delay and lanes.early_sums)):
            return output.sum(2, keepdim=True).expand_as(output)
        if not exchanges or layer < lanes.delay:
            return output * math.sqrt(lanes.count)
        if late is None or (layer < 2 * lanes.delay and not lanes.early_sends):
            return output
        return output + late.sum(2, keepdim=True) - late


class _Layer(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig, window: int | None) -> None:
        super().__init__()
        self.lanes = lanes
        self.attention_norm, self.ffn_norm = _Norm(config, lanes), _Norm(config, lanes)
        self.attention = _Attention(config, lanes, window)
        self.feed_forward = _FeedForward(config, lanes)

    def modules_in_order(self) -> tuple[tuple[nn.Module, bool], ...]:
        """The two modules behind their norms, and whether their outputs are exchanged."""
        return (
            (nn.Sequential(self.attention_norm, self.attention), self.lanes.exchanges_attention),
            (nn.Sequential(self.ffn_norm, self.feed_forward), self.lanes.exchanges_mlp),
        )


class _Norm(nn.Module):
    """RMS norm of every lane's stream, with weights of its own or the same for all."""

    def __init__(self, config: ModelConfig, lanes: LaneConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        shape = (config.hidden,) if lanes.shares_norms else (lanes.count, config.hidden)
        self.register_parameter("weight" if lanes.shares_norms else "scale", nn.Parameter(torch.ones(shape)))

    def forward(self, x: Tensor) -> Tensor:
        (scale,) = self.parameters()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * scale


class _PerLane(nn.Module):
    """A matrix of every lane: [lane, out, in]."""

    def __init__(self, lanes: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(lanes, outputs, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("btli,loi->btlo", x, self.weight)


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig, window: int | None) -> None:
        super().__init__()
        self.config, self.window = config, window
        q, kv = config.q_size // lanes.count, config.kv_size // lanes.count
        self.wq, self.wk, self.wv = (_PerLane(lanes.count, size, config.hidden) for size in (q, kv, kv))
        self.wo = _PerLane(lanes.count, config.hidden, q)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, lanes, _ = x.shape
        # [batch, position, lane, heads of the lane x head] -> [batch, heads of all lanes, position, head]
        q, k, v = (w(x).reshape(batch, length, -1, self.config.head_dim).transpose(1, 2) for w in self._in())
        q, k = self._rotated(q), self._rotated(k)
        position = torch.arange(length, device=x.device)
        behind = position[:, None] - position
        mask = (behind >= 0) & (behind < (self.window or length))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        made: Tensor = self.wo(out.transpose(1, 2).reshape(batch, length, lanes, -1))
        return made

    def _in(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.wq, self.wk, self.wv

    def _rotated(self, x: Tensor) -> Tensor:
        """RoPE over neighbouring pairs."""
        rates = torch.from_numpy(self.config.rope.inverse_frequencies(self.config.head_dim)).to(x.device)
        angles = torch.arange(x.shape[2], device=x.device, dtype=torch.float64)[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


class _FeedForward(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig) -> None:
        super().__init__()
        share = config.ffn // lanes.count
        self.w1, self.w3 = (_PerLane(lanes.count, share, config.hidden) for _ in range(2))
        self.w2 = _PerLane(lanes.count, config.hidden, share)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.w2(silu(self.w1(x)) * self.w3(x))
        return made
