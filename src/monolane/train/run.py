"""One run from its first step, or from its checkpoint, to its last step or to a time limit."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from monolane.cache import atomic_write
from monolane.errors import UsageError
from monolane.train.checkpoint import read_state
from monolane.train.recipe import Recipe
from monolane.train.speed import utilisation
from monolane.train.tokens import TokenData
from monolane.train.training import Training

_POINTS = 50  # of the loss curve
_VALIDATED = 5  # every so many points have a validation loss as well
_SAVED_EVERY_S = 120
_FIRST_STEPS = 3  # of every sitting are not timed: layers are compiled, memory is allocated

Result = dict[str, Any]
Say = Callable[[str], None]


def device_named(name: str) -> torch.device:
    """``auto``: a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch finds no NVIDIA GPU.", "Choose --device cpu, which is for small models alone.")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def train(recipe: Recipe, data: TokenData, device: torch.device, file: Path, minutes: float, say: Say) -> Result:
    """Train until the recipe's tokens or the minutes are used up, but one step at least; the result says whether it is
    ``finished``.

    ``file`` is the checkpoint, from which the run goes on if it is there."""
    return _Run(recipe, data, device, file, say).until(time.monotonic() + 60 * minutes)


class _Run:
    def __init__(self, recipe: Recipe, data: TokenData, device: torch.device, file: Path, say: Say) -> None:
        self._recipe, self._data, self._device, self._file, self._say = recipe, data, device, file, say
        if device.type == "cuda":  # the memory of the run before, if there was one
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._training = Training(recipe, data, device)
        self._curve: list[dict[str, Any]] = []
        self._losses: list[float] = []  # since the last point of the curve
        self._trained_s = 0.0  # in all sittings, validation and checkpoints left out
        self._step_s: list[float] = []  # in this sitting
        self._point_steps = max(1, recipe.steps // _POINTS)
        # Everything that must be the same in the next sitting.
        self._identity = json.loads(json.dumps({"recipe": recipe.as_json(), "data": data.sha256}))
        if file.exists():
            self._restore()

    def until(self, deadline: float) -> Result:
        training, recipe = self._training, self._recipe
        saved = time.monotonic()
        while training.step_number < recipe.steps:
            begun = time.monotonic()
            self._losses.append(training.step())
            now = time.monotonic()
            self._step_s.append(now - begun)
            self._trained_s += now - begun
            if training.step_number % self._point_steps == 0 or training.step_number == recipe.steps:
                self._add_point()
            if now >= deadline:
                break
            if now - saved > _SAVED_EVERY_S:
                self._save()
                saved = now
        self._save()
        return self._result()

    def _add_point(self) -> None:
        training = self._training
        last = training.step_number == self._recipe.steps
        validates = last or training.step_number % (_VALIDATED * self._point_steps) == 0
        point = {
            "step": training.step_number,
            "tokens": training.step_number * self._recipe.step_tokens,
            "training_loss": round(fmean(self._losses), 4),
            "validation_loss": round(training.validation_loss(), 4) if validates else None,
        }
        self._losses.clear()
        self._curve.append(point)
        self._say(self._line(point))

    def _line(self, point: dict[str, Any]) -> str:
        speed = self._tokens_per_second()
        parts = [
            f"{self._recipe.model} seed {self._recipe.seed}: step {point['step']}/{self._recipe.steps}",
            f"loss {point['training_loss']:.3f}",
        ]
        if point["validation_loss"] is not None:
            parts.append(f"validation {point['validation_loss']:.3f}")
        if speed:
            left = (self._recipe.steps - point["step"]) * self._recipe.step_tokens / speed
            parts.append(f"{speed / 1e3:,.0f}k tok/s")
            parts.append(f"{left:.0f} s left")
        return ", ".join(parts)

    def _tokens_per_second(self) -> float | None:
        timed = self._step_s[_FIRST_STEPS:]
        return self._recipe.step_tokens / median(timed) if timed else None

    def _save(self) -> None:
        self._training.save(
            self._file,
            self._identity | {"curve": self._curve, "losses": self._losses, "trained_s": self._trained_s},
        )

    def _restore(self) -> None:
        state = read_state(self._file)
        if any(state.get(key) != value for key, value in self._identity.items()):
            raise UsageError(
                f"{self._file} is the checkpoint of another run: model, options or data differ.",
                "Choose another --out, or delete the checkpoint.",
            )
        self._training.restore(self._file)
        self._curve, self._losses, self._trained_s = state["curve"], state["losses"], state["trained_s"]
        self._say(f"{self._recipe.model} seed {self._recipe.seed}: goes on from step {self._training.step_number}")

    def _result(self) -> Result:
        recipe, training = self._recipe, self._training
        gpu = torch.cuda.get_device_name() if self._device.type == "cuda" else None
        speed = self._tokens_per_second()
        tokens = training.step_number * recipe.step_tokens
        return {
            **recipe.as_json(),
            "parameters": training.parameter_count,
            "finished": training.step_number == recipe.steps,
            "tokens_trained": tokens,
            "passes": round(tokens / self._data.train.numel(), 3),
            "validation_loss": self._curve[-1]["validation_loss"] if self._curve else None,
            "tokens_per_second": speed and round(speed),
            "mfu": speed and utilisation(recipe.shape, speed, gpu),
            "seconds": round(self._trained_s, 1),
            "first_step_s": round(self._step_s[0], 1) if self._step_s else None,
            "memory_bytes": torch.cuda.max_memory_allocated() if gpu else None,
            "machine": {"gpu": gpu, "python": platform.python_version(), "torch": torch.__version__},
            "data": {
                "training_tokens": self._data.train.numel(),
                "validation_tokens": self._data.validation.numel(),
                "sha256": self._data.sha256,
            },
            "curve": self._curve,
        }


def write_result(path: Path, result: Result) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(result, indent=1).encode())


def summary(result: Result) -> str:
    """One line about a run that has ended or was interrupted."""
    parts = [f"{result['model']} seed {result['seed']}: {result['tokens_trained'] / 1e6:,.1f} M tokens"]
    if result["validation_loss"] is not None:
        parts.append(f"validation loss {result['validation_loss']:.4f}")
    if result["tokens_per_second"] is not None:
        parts.append(f"{result['tokens_per_second'] / 1e3:,.0f}k tok/s")
    if result["mfu"] is not None:
        parts.append(f"MFU {100 * result['mfu']:.1f}%")
    if result["memory_bytes"] is not None:
        parts.append(f"{result['memory_bytes'] / 1e9:.1f} GB")
    if result["first_step_s"] is not None:
        parts.append(f"first step {result['first_step_s']:.0f} s")
    return ", ".join(parts) + ("" if result["finished"] else "; not finished: run the same command again")
