"""The Laneformer in PyTorch: the definition that the engine's program is tested against, and what is trained.

The hidden state is [batch, position, lane, hidden]: every lane has a residual stream of its own. While all lanes would
have the same stream (plain tensor parallelism, Ladder Residual, the embedding), the lane dimension is 1, and ``einsum``
makes one matrix product for all lanes instead of one per lane. Parameters have the names and shapes of the published
files, so that ``state_dict`` is what they contain.

The streams' type decides the type of all arithmetic: matrices are cast to the type of what they multiply. In fp32 the
module is the engine's judge; in bf16 it is trained, and its parameters, which stay fp32, are the master weights.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from monolane.model.config import LaneConfig, ModelConfig

# What a lane adds of a module's outputs: all lanes' at once, its own times the root of the number of lanes, its own
# alone, or its own and the others' of an earlier layer.
Rule = Literal["all", "scaled", "own", "late"]
Outputs = tuple[Tensor, Tensor]  # of attention and MLP in one layer, of every lane


class Laneformer(nn.Module):
    """All lanes of a model in one module.

    ``ladder`` makes it a transformer with Ladder Residual instead, for comparison: there is one stream, and a module
    reads it as it was one module earlier, so that it can run while the outputs of the last one are summed.
    """

    def __init__(self, config: ModelConfig, ladder: bool = False) -> None:
        super().__init__()
        assert config.lanes is not None
        assert not ladder or config.lanes.delay == 0
        self.config, self.lanes = config, config.lanes
        self.model = _Body(config, config.lanes, ladder)
        width = config.hidden * (self.lanes.count if self.lanes.head == "lane" else 1)
        self.lm_head = nn.Linear(width, config.vocab, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.tok_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, position] -> logits [batch, position, vocabulary]"""
        return self.logits_of(self.model(tokens))

    def logits_of(self, streams: Tensor) -> Tensor:
        head = self.lm_head.weight.to(streams.dtype)
        if self.lanes.sums_before_norm:
            return linear(self.model.norm(self._of_every_lane(streams).sum(2)), head)
        normed: Tensor = self.model.norm(streams)
        if self.lanes.head == "replicate":
            return linear(normed.mean(2), head)
        if self.lanes.head == "lane":
            return linear(self._of_every_lane(normed).flatten(2), head)
        # vocab_parallel: each lane makes some of the logits.
        return torch.einsum("btld,lvd->btlv", normed, head.view(self.lanes.count, -1, self.config.hidden)).flatten(2)

    def _of_every_lane(self, streams: Tensor) -> Tensor:
        return streams.expand(-1, -1, self.lanes.count, -1)


class _Body(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig, ladder: bool) -> None:
        super().__init__()
        self.delay, self.ladder = lanes.delay, ladder
        self.stream_type = torch.float32
        self.tok_embeddings = nn.Embedding(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, lanes, number, ladder) for number in range(config.layers))
        self.norm = _Norm(config, lanes)
        rates = torch.from_numpy(config.rope.inverse_frequencies(config.head_dim))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        streams: Tensor = self.tok_embeddings(tokens).to(self.stream_type)[:, :, None]
        before: Tensor | None = streams if self.ladder else None  # the stream one module earlier
        rope = self._rope(tokens.shape[1])
        sent: list[Outputs | None] = []
        for number, layer in enumerate(self.layers):
            late = sent[number - self.delay] if 0 < self.delay <= number else None
            streams, before, outputs = layer(streams, before, late, rope)
            sent.append(outputs)
        return streams

    def _rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position and pair: [position, head / 2] each."""
        rates = self.get_buffer("rates")
        angles = torch.arange(length, device=rates.device, dtype=rates.dtype)[:, None] * rates
        return angles.cos().float(), angles.sin().float()


class Layer(nn.Module):
    """Attention and MLP. Layers of one kind are the same code with the same shapes, so that it is compiled once."""

    def __init__(self, config: ModelConfig, lanes: LaneConfig, number: int, ladder: bool) -> None:
        super().__init__()
        self.lane_count, self.ladder = lanes.count, ladder
        self.rules = tuple(
            rule_of(lanes, number, exchanges) for exchanges in (lanes.exchanges_attention, lanes.exchanges_mlp)
        )
        self.sends = 0 < lanes.delay < config.layers - number  # what the last layers would send, nobody receives
        self.attention_norm, self.ffn_norm = _Norm(config, lanes), _Norm(config, lanes)
        self.attention = _Attention(config, lanes, config.windows[number])
        self.feed_forward = _FeedForward(config, lanes)

    def forward(
        self, streams: Tensor, before: Tensor | None, late: Outputs | None, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None, Outputs | None]:
        """The streams, the streams before the last module (of a ladder), and what the layer sends to a later one."""
        outputs = []
        modules = ((self.attention_norm, self.attention), (self.ffn_norm, self.feed_forward))
        for number, (norm, module) in enumerate(modules):
            output = module(norm(streams if before is None else before), rope, self._sums_at_once(number))
            before = streams if self.ladder else None
            streams = self._plus(streams, number, output, late)
            outputs.append(output)
        return streams, before, (outputs[0], outputs[1]) if self.sends else None

    def _sums_at_once(self, module: int) -> bool:
        """Whether only the sum of the lanes' outputs is needed, which one matrix product can give."""
        return self.rules[module] == "all" and not self.sends

    def _plus(self, streams: Tensor, module: int, output: Tensor, late: Outputs | None) -> Tensor:
        """The streams with what each lane adds of a module's outputs."""
        rule = self.rules[module]
        if rule == "all":
            output = output.sum(2, keepdim=True)
        elif rule == "scaled":
            output = output * math.sqrt(self.lane_count)
        elif rule == "late":
            assert late is not None
            output = output + late[module].sum(2, keepdim=True) - late[module]
        return streams + output


def rule_of(lanes: LaneConfig, layer: int, exchanges: bool) -> Rule:
    """What a lane adds in this layer of the outputs of a module that is exchanged, or is not."""
    if exchanges and (lanes.delay == 0 or (layer < lanes.delay and lanes.early_sums)):
        return "all"
    if not exchanges or layer < lanes.delay:
        return "scaled"
    return "own" if layer < 2 * lanes.delay and not lanes.early_sends else "late"


class _Norm(nn.Module):
    """RMS norm of every lane's stream, with weights of its own or the same for all; computed in fp32."""

    def __init__(self, config: ModelConfig, lanes: LaneConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        shape = (config.hidden,) if lanes.shares_norms else (lanes.count, config.hidden)
        self.register_parameter("weight" if lanes.shares_norms else "scale", nn.Parameter(torch.ones(shape)))

    def forward(self, x: Tensor) -> Tensor:
        (scale,) = self.parameters()
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps) * scale).to(x.dtype)


class _PerLane(nn.Module):
    """A matrix of every lane: [lane, out, in]."""

    def __init__(self, lanes: int, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(lanes, outputs, inputs) / math.sqrt(inputs))


def _in_lanes(x: Tensor, *matrices: nn.Module) -> tuple[Tensor, ...]:
    """Every lane's products of its stream with several of its matrices, made as one product."""
    weights = [matrix.get_parameter("weight").to(x.dtype) for matrix in matrices]
    made = torch.einsum("btli,loi->btlo", x, torch.cat(weights, 1))
    return torch.split_with_sizes(made, [weight.shape[1] for weight in weights], -1)


def _out_of_lanes(x: Tensor, matrix: nn.Module, summed: bool) -> Tensor:
    """Every lane's output, or their sum alone."""
    weight = matrix.get_parameter("weight").to(x.dtype)
    if summed:
        return torch.einsum("btli,loi->bto", x, weight)[:, :, None]
    return torch.einsum("btli,loi->btlo", x, weight)


class _Attention(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig, window: int | None) -> None:
        super().__init__()
        self.head_dim, self.window, self.lane_count = config.head_dim, window, lanes.count
        self.groups = config.heads != config.kv_heads
        q, kv = config.q_size // lanes.count, config.kv_size // lanes.count
        self.wq, self.wk, self.wv = (_PerLane(lanes.count, size, config.hidden) for size in (q, kv, kv))
        self.wo = _PerLane(lanes.count, config.hidden, q)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], summed: bool) -> Tensor:
        batch, length = x.shape[:2]
        # [batch, position, lane, heads of the lane x head] -> [batch, heads of all lanes, position, head]
        q, k, v = (
            made.reshape(batch, length, -1, self.head_dim).transpose(1, 2)
            for made in _in_lanes(x, self.wq, self.wk, self.wv)
        )
        q, k = _rotated(q, rope), _rotated(k, rope)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=self._mask(length, x.device), is_causal=not self._cuts(length), enable_gqa=self.groups
        )
        return _out_of_lanes(out.transpose(1, 2).reshape(batch, length, self.lane_count, -1), self.wo, summed)

    def _cuts(self, length: int) -> bool:
        """Whether the window is shorter than the text. Otherwise the mask is the causal one, which is fastest."""
        return self.window is not None and self.window < length

    def _mask(self, length: int, device: torch.device) -> Tensor | None:
        if self.window is None or not self._cuts(length):
            return None
        position = torch.arange(length, device=device)
        behind = position[:, None] - position
        return (behind >= 0) & (behind < self.window)


def _rotated(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE over neighbouring pairs, computed in fp32."""
    cos, sin = rope
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2).to(x.dtype)


class _FeedForward(nn.Module):
    def __init__(self, config: ModelConfig, lanes: LaneConfig) -> None:
        super().__init__()
        share = config.ffn // lanes.count
        self.w1, self.w3 = (_PerLane(lanes.count, share, config.hidden) for _ in range(2))
        self.w2 = _PerLane(lanes.count, config.hidden, share)

    def forward(self, x: Tensor, _rope: tuple[Tensor, Tensor], summed: bool) -> Tensor:
        gate, up = _in_lanes(x, self.w1, self.w3)
        return _out_of_lanes(silu(gate) * up, self.w2, summed)
