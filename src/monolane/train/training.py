"""A model in training: weights, optimizer, and the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from monolane.errors import UsageError
from monolane.train import checkpoint
from monolane.train.laneformer import Laneformer, Layer
from monolane.train.recipe import Recipe
from monolane.train.tokens import Sequences, TokenData

_VALIDATION_TOKENS = 1 << 20  # at most
_DEVIATION = 0.02  # of random weights
_DECAY = 0.1  # of weights, relative to the learning rate; none of norms
_BETAS = (0.9, 0.95)
_CLIP = 1.0  # the largest norm of a step's gradient
_WEIGHTS, _MEANS, _SQUARES = "weights/", "means/", "squares/"  # in a checkpoint


class Training:
    """On a GPU, arithmetic is bf16 and layers are compiled. On a CPU all is fp32 and nothing is compiled: for tests."""

    def __init__(self, recipe: Recipe, data: TokenData, device: torch.device) -> None:
        if data.vocab > recipe.shape.vocab:
            raise UsageError(
                f"The text has {data.vocab} different tokens, but {recipe.model} only {recipe.shape.vocab}.",
                "Make a smaller vocabulary (python -m monolane.train tokenizer --vocab), or choose another model.",
            )
        self.recipe, self.device, self.step_number = recipe, device, 0
        length = recipe.shape.context
        self._text = Sequences(data.train, length, recipe.seed)
        self._validation = Sequences(data.validation, length, None)
        torch.manual_seed(recipe.seed)
        self.model = Laneformer(recipe.shape, recipe.ladder)
        initialise(self.model)
        self.model.to(device)
        self._loss_of = _loss_of
        if device.type == "cuda":
            self._compile()
        self._parameters = dict(self.model.named_parameters())
        norms = [parameter for name, parameter in self._parameters.items() if _is_norm(name)]
        matrices = [parameter for name, parameter in self._parameters.items() if not _is_norm(name)]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": _DECAY}, {"params": norms, "weight_decay": 0.0}],
            betas=_BETAS,
            fused=True,
        )

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters.values())

    def step(self) -> float:
        """One step; returns its loss in nats per token."""
        recipe = self.recipe
        for group in self._optimizer.param_groups:
            group["lr"] = recipe.rate_at(self.step_number)
        first, losses = self.step_number * recipe.batch, []
        for start in range(first, first + recipe.batch, recipe.micro_batch):
            loss = self._loss(self._text.batch(start, recipe.micro_batch))
            (loss * recipe.micro_batch / recipe.batch).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(self._parameters.values(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step_number += 1
        mean = float(torch.stack(losses).mean())  # waits for the GPU
        if not math.isfinite(mean):
            raise UsageError(f"The loss of step {self.step_number} is {mean}.", "Choose a lower --learning-rate.")
        return mean

    def validation_loss(self) -> float:
        """In nats per token. Gradients are prepared for but never computed: the compiled layers are those of a step."""
        size = self.recipe.micro_batch
        limit = min(self._validation.count, _VALIDATION_TOKENS // self.recipe.shape.context)
        starts = range(0, max(1, limit // size) * size, size)
        return sum(float(self._loss(self._validation.batch(start, size)).detach()) for start in starts) / len(starts)

    def save(self, path: Path, state: dict[str, Any]) -> None:
        checkpoint.save(path, dict(self._stored()), state | {"step": self.step_number})

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        shapes = {
            prefix + name: parameter.shape
            for prefix in (_WEIGHTS, _MEANS, _SQUARES)
            for name, parameter in self._parameters.items()
        }
        tensors = checkpoint.load(path, shapes)
        self.step_number = int(checkpoint.read_state(path)["step"])
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[_WEIGHTS + name])
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.step_number), device=self.device),
                    "exp_avg": tensors[_MEANS + name].to(self.device),
                    "exp_avg_sq": tensors[_SQUARES + name].to(self.device),
                }

    def _loss(self, sequences: Tensor) -> Tensor:
        return self._loss_of(self.model, self.model.model(sequences[:, :-1]), sequences[:, 1:])

    def _compile(self) -> None:
        """Layer by layer: equal layers are compiled once, in seconds, and a second run compiles nothing."""
        torch._dynamo.config.recompile_limit = 256  # kinds of layers in one process: the models of an experiment
        self.model.model.stream_type = torch.bfloat16
        for layer in self.model.model.layers:
            assert isinstance(layer, Layer)
            layer.forward = torch.compile(layer.forward, dynamic=False)  # type: ignore[method-assign]
        self._loss_of = torch.compile(_loss_of, dynamic=False)

    def _stored(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._parameters.items():
            state = self._optimizer.state[parameter]
            yield _WEIGHTS + name, parameter.detach()
            yield _MEANS + name, state["exp_avg"]
            yield _SQUARES + name, state["exp_avg_sq"]


def load_weights(path: Path, model: Laneformer) -> None:
    """The weights of a checkpoint alone."""
    parameters = dict(model.named_parameters())
    tensors = checkpoint.load(path, {_WEIGHTS + name: parameter.shape for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[_WEIGHTS + name])


def initialise(model: Laneformer) -> None:
    """Random weights for training: what modules add to the streams is smaller, the more of them there are."""
    for name, parameter in model.named_parameters():
        if not _is_norm(name):
            adds = name.endswith(("wo.weight", "w2.weight"))
            nn.init.normal_(parameter, std=_DEVIATION / (math.sqrt(2 * model.config.layers) if adds else 1))


def _is_norm(name: str) -> bool:
    return "norm" in name


def _loss_of(model: Laneformer, streams: Tensor, following: Tensor) -> Tensor:
    return cross_entropy(model.logits_of(streams).float().flatten(0, 1), following.flatten())
