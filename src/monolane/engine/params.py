"""The sampling parameters of one request, as users give them. Every value is checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from monolane.errors import UsageError
from monolane.program.sample import Sampling

if TYPE_CHECKING:
    from monolane.model.load import Model

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_BIASES = 1024
MAX_LOGPROBS = 20
LOWEST_TEMPERATURE = 1e-6  # lower ones act the same, and the inverse of the lowest would not be finite


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters of one request. The defaults are greedy: the likeliest token, every time.

    max_tokens          the most tokens to generate; None: until the context is full
    temperature         0 is greedy; 1 is the model's own distribution; higher values flatten it
    top_k, top_p, min_p keep the k likeliest tokens (0: all), the smallest set that holds probability p (1: all),
                        the tokens at least min_p times as likely as the likeliest (0: all); equally likely tokens stay
                        together
    seed                None: a new one is drawn, and reported in the result
    stop                one or several strings that end the answer; they are not part of it
    stop_token_ids      tokens that end the answer, besides the model's own end tokens
    ignore_eos          go on past the model's end tokens
    repetition_penalty  divides the positive logits of tokens in prompt or answer, and multiplies negative ones; 1: off
    presence_penalty    subtracted from the logit of every token in the answer so far
    frequency_penalty   the same, once per occurrence
    logit_bias          token id -> number added to its logit
    logprobs            None: none; n: the log probability of each token and of the n likeliest ones
    """

    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1)
        _number("temperature", self.temperature, 0, 100)
        _whole("top_k", self.top_k, 0)
        _number("top_p", self.top_p, 0, 1, above_low=True)
        _number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**64 - 1)
        _check_stops(self.stop)
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 10)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _check_biases(self.logit_bias)
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)

    @classmethod
    def suggested(cls, model: Model) -> SamplingParams:
        """What the model's makers suggest (``generation_config.json``), or what suits most models."""
        return cls(**asdict(model.sampling))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def check_ids(self, vocab: int) -> None:
        """UsageError where a token id in the parameters is not in the model's vocabulary."""
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab)
        check_token_ids("logit_bias", self.logit_bias, vocab)

    def sampling(self, seed: int, vocab: int) -> Sampling:
        """The parameters as the target takes them. A ``top_k`` of the whole vocabulary or more is off."""
        return Sampling(
            temperature=max(float(self.temperature), LOWEST_TEMPERATURE) if self.temperature else 0.0,
            top_k=self.top_k if self.top_k < vocab else 0,
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            seed=seed,
            repetition_penalty=float(self.repetition_penalty),
            presence_penalty=float(self.presence_penalty),
            frequency_penalty=float(self.frequency_penalty),
            logit_bias=tuple(sorted((token, float(bias)) for token, bias in self.logit_bias.items())),
        )


def check_token_ids(name: str, ids: Iterable[int], vocab: int) -> None:
    """UsageError where an id is not an integer from 0 to ``vocab`` - 1."""
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab:
            raise UsageError(
                f"{name} has {token!r}, which is not a token of this model.",
                f"Token ids are whole numbers from 0 to {vocab - 1}.",
            )


def _whole(name: str, value: object, low: int, high: int | None = None) -> None:
    if type(value) is not int or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UsageError(f"{name} is {value!r}.", f"Give a whole number {limits}.")


def _number(name: str, value: object, low: float, high: float, above_low: bool = False) -> None:
    sound = type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    if not sound or not low <= value <= high or (above_low and value == low):  # type: ignore[operator]
        limits = f"above {low} and at most {high}" if above_low else f"from {low} to {high}"
        raise UsageError(f"{name} is {value!r}.", f"Give a number {limits}.")


def _check_stops(stop: object) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(text, str) for text in stops):
        raise UsageError("stop is neither a string nor a list of strings.", 'Give text, such as stop=["\\n\\n"].')
    if len(stops) > MAX_STOPS or any(not 0 < len(text) <= MAX_STOP_CHARS for text in stops):
        raise UsageError(
            "stop has too many strings, or one that is empty or too long.",
            f"Give at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters.",
        )


def _check_biases(biases: object) -> None:
    if not isinstance(biases, Mapping) or len(biases) > MAX_BIASES:
        raise UsageError(
            "logit_bias is not a mapping, or has too many entries.",
            f"Give at most {MAX_BIASES} token ids with a number from -100 to 100 each.",
        )
    for token, bias in biases.items():
        _whole("a token id in logit_bias", token, 0)
        _number(f"logit_bias of token {token}", bias, -100, 100)
