"""Real models on a GPU: the accuracy gate, long runs, stop strings, conversations. Skipped where not fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from devices import DEVICE, decode_logits, facts, on_the_gpu, opened, run

from monolane import LLM, SamplingParams
from monolane.model.fetch import describe_models
from monolane.model.load import Model, load_model
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request, Run, Target
from oracle import judge_weights, pass_gate
from real.real_text import TEXT

pytestmark = on_the_gpu

LONG = {"cuda": 2000, "compile": 1, "cpu": 40, "emulated": 4}[DEVICE]  # tokens
CONTEXT = 2560
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True)
class Real:
    model: Model
    target: Target
    tokens: list[int]


def load(name: str) -> Model:
    path = next(entry.path for entry in describe_models() if entry.name == name)
    if path is None:
        pytest.skip(f"{name} is not in the cache (monolane pull {name}; benchmarks/h200/README.md without a network)")
    return load_model(path)


@pytest.fixture(scope="module", params=["smollm2-135m", "qwen2.5-coder-0.5b"])
def real(request: pytest.FixtureRequest) -> Iterator[Real]:
    model = load(request.param)
    with opened(model.config, model.weights, CONTEXT) as target:
        yield Real(model, target, model.tokenizer.encode(TEXT))


def test_the_accuracy_gate(real: Real, record_property: Callable[[str, object], None]) -> None:
    config = real.model.config
    verdict = judge_weights(config, real.model.weights, real.tokens)
    record_property("prefill", pass_gate(verdict, real.target.logits(real.tokens)))
    record_property("decode", pass_gate(verdict, decode_logits(real.target, real.tokens, config.vocab)))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 100, 0.95, seed=5)], ids=["greedy", "drawn"])
def test_long_runs_are_identical(real: Real, sampling: Sampling) -> None:
    request = Request(real.tokens, 0, LONG, frozenset(), sampling, logprobs=1)
    first, finish = run(real.target, request)
    assert finish is Finish.LENGTH
    assert len(first) == LONG
    run(real.target, Request(real.tokens[::-1], 0, 1, frozenset(), sampling))  # overwrites the cache
    assert facts(run(real.target, request)[0]) == facts(first)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    model = load("smollm2-135m")
    if DEVICE in ("emulated", "compile"):
        pytest.skip("there is no such device for users")
    with LLM(model, device=DEVICE, context=2048) as llm:
        yield llm


def test_an_answer_that_is_true(llm: LLM) -> None:
    assert "Paris" in llm.chat(QUESTION, SamplingParams(max_tokens=40)).text


def test_a_stop_string_stops_the_kernel_within_two_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow answer of the host is no failure of the kernel: the middle one of five counts."""
    runs: list[Run] = []
    start = llm.target.run

    def observed(request: Request) -> Run:
        runs.append(start(request))
        return runs[-1]

    monkeypatch.setattr(llm.target, "run", observed)
    beyond = []
    for _ in range(5):
        answer = llm.generate("1 2 3 4 5 6 7", SamplingParams(max_tokens=500, stop="12", ignore_eos=True))
        assert answer.finish_reason == "stop"
        assert "12" not in answer.text
        assert "10" in answer.text
        assert runs[-1].finish is Finish.ABORT
        if DEVICE == "cuda":
            beyond.append(runs[-1]._outcome.made - len(answer.token_ids))  # type: ignore[attr-defined]
    assert DEVICE != "cuda" or sorted(beyond)[2] <= 2, beyond


def test_a_conversation_reads_only_what_is_new(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30)
    first = llm.chat(QUESTION, params)
    more = [
        *QUESTION,
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And of Italy?"},
    ]
    second = llm.chat(more, params)
    assert second.timings.cached_tokens >= first.prompt_tokens + len(first.token_ids) - 1
    assert second.text
