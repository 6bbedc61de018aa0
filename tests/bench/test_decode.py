"""Decode speed, first token, throughput and contexts, measured on a fake target and machine with known times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from fake_target import FakeClock, FakeTarget, Faults
from monolane.bench.measure import contexts, decode, queue, timing
from monolane.bench.measure.decode import Lengths
from monolane.bench.measure.shapes import SHAPES
from monolane.bench.measure.subject import Subject, find_model
from monolane.bench.measure.surroundings import Surroundings
from monolane.bench.peers.peer import Peer
from monolane.bench.report import show, tables
from monolane.errors import TargetError, UsageError
from monolane.model.load import Model
from monolane.program.sample import Sampling
from monolane.progress import Silent

LENGTHS = Lengths((128, 1024), 512, 3)
SCHEMA = {
    "benchmark", "model", "dtype", "device", "context", "us_per_token", "bytes_per_token", "ceiling_bytes_per_s",
    "fraction_of_ceiling", "peers", "versions", "method", "rounds", "machine",
}  # fmt: skip


def heard(_: str) -> None: ...


@pytest.fixture(scope="module")
def model() -> Model:
    return find_model(None, "smollm2-135m", Silent())[1]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> FakeTarget:
    made = FakeTarget(
        name="cuda (made up, 132 workers)",
        context=40_000,
        caches=2,
        bytes_per_token=2_400_000_000,
        start_s=0.004,
        prompt_s=0.0002,
        token_s=0.0006,
    )
    monkeypatch.setattr(timing, "perf_counter", made.clock.now_s)
    return made


@pytest.fixture
def subject(target: FakeTarget, model: Model) -> Subject:
    return Subject("smollm2-135m", model, target, real=False)


def around(energies: Iterator[float | None] | None = None, nominal: float | None = 6e12) -> Surroundings:
    spent = energies or iter(lambda: None, 0)
    return Surroundings(
        ceiling=lambda: {"loads": 4.0e12, "copies": 5.0e12},
        nominal_bytes_per_s=nominal,
        energy_j=lambda: next(spent),
        machine={"processor": "P", "gpu": {"name": "H200"}},
        packages=(),
        close=lambda: None,
    )


@dataclass
class MadeUpPeer:
    """It takes its time on the target's clock, with a prompt that costs more than its answers."""

    clock: FakeClock
    token_s: float
    name: str = "slow"
    what: str = "made up"
    closed: bool = False

    def ask(self, prompt: Sequence[int], tokens: int) -> None:
        self.clock.seconds += 3.0 + tokens * self.token_s

    def close(self) -> None:
        self.closed = True


def measured(subject: Subject, around: Surroundings, *others: Peer) -> dict[str, Any]:
    found = decode.measure(subject, around, others, LENGTHS, 3, heard)
    assert found["peers_skipped"] == {}
    whole = found | around.where() | {"accuracy": VERDICT, "peers_skipped": {"vllm": "the package is not installed"}}
    return json.loads(json.dumps(whole))  # type: ignore[no-any-return]


VERDICT = {"verdict": "passed", "divergence": 1e-6, "divergence_of_bf16": 1e-3, "positions": 23, "decoded": 8}


# --- the difference method ---


def test_the_difference_leaves_prompt_start_and_end_out(target: FakeTarget) -> None:
    target.drift = 0.5
    found = timing.decode(target, timing.fixed_length(range(128), 512))
    assert found.us_per_token == pytest.approx(600)
    assert found.us_per_token_device == pytest.approx(300)  # the other clock, and it alone
    assert found.short.seconds == pytest.approx(0.004 + 128 * 0.0002 + 0.004)
    assert found.short.first_ms == pytest.approx(128 * 0.2 / 2)


@pytest.mark.parametrize("at_once", [1, 5, 64, 1000])
def test_jitter_and_chunks_do_not_change_the_difference(target: FakeTarget, at_once: int) -> None:
    dice = np.random.default_rng(1)
    target.jitter_s = [0.0, *dice.exponential(0.001, 300)]  # as long as the answer: every delay is used once
    target.at_once = at_once
    found = timing.decode(target, timing.fixed_length([1, 2, 3], 301))
    expected = 600 + sum(target.jitter_s) / 300 * 1e6
    assert found.us_per_token == pytest.approx(expected)
    assert found.us_per_token_device == pytest.approx(expected, abs=0.01)
    shares = timing.percentiles([found.long.gaps_us])
    gaps = np.sort([600 + 1e6 * late for late in target.jitter_s[1:]])
    assert shares["p50"] == pytest.approx(np.median(gaps), abs=0.01)
    assert shares["p99"] == pytest.approx(np.percentile(gaps, 99), abs=0.01)
    assert shares["max"] == pytest.approx(gaps[-1], abs=0.01)


def test_percentiles_are_over_all_answers() -> None:
    found = timing.percentiles([np.arange(0, 50.0), np.arange(50, 101.0)])
    assert found == {"p50": 50, "p90": 90, "p99": 99, "max": 100}


def test_a_short_answer_is_no_measurement(target: FakeTarget) -> None:
    target.faults = Faults("end@3")
    with pytest.raises(TargetError, match="3 tokens were made, not 4"):
        timing.ask(target, timing.fixed_length([1, 2], 4))


# --- three numbers ---


def test_speed_first_token_and_throughput_are_three_numbers(subject: Subject) -> None:
    result = measured(subject, around())
    assert result.keys() >= SCHEMA
    assert result["us_per_token"] == pytest.approx(600)
    assert result["us_per_token_device"] == pytest.approx(600)
    assert result["first_token_ms"]["128"]["host"] == pytest.approx(8 + 128 * 0.2)
    assert result["first_token_ms"]["1024"]["device"] == pytest.approx(1024 * 0.2)
    whole_s = 0.008 + 128 * 0.0002 + 511 * 0.0006
    assert result["throughput"]["tokens_per_second"] == pytest.approx(512 / whole_s)
    assert result["token_gaps_us"]["p99"] == pytest.approx(600)
    assert result["same_tokens_in_all_rounds"] is True
    assert len(result["rounds"]) == 3


def test_greedy_sampled_and_with_logprobs_are_measured_in_every_round(subject: Subject, target: FakeTarget) -> None:
    target.sampling_s, target.logprobs_s, target.drift = 20e-6, 50e-6, 0.5
    result = measured(subject, around())
    for choice, us in (("", 600), ("sampled_", 620), ("logprobs_", 650)):
        assert result[f"{choice}us_per_token"] == pytest.approx(us)
        assert result[f"{choice}us_per_token_device"] == pytest.approx(us / 2)
        assert [row[f"{choice}us_per_token"] for row in result["rounds"]] == pytest.approx([us] * 3)
    sampled = {request.sampling for request in target.requests if request.sampling.temperature}
    assert sampled == {Sampling(temperature=0.7, top_p=0.9, seed=1)}
    assert {request.logprobs for request in target.requests} == {None, 20}
    shown = show.text([result])
    assert "sampled               620.0 µs/token, 1,612.9 tok/s; 310.0 µs/token by the device's clock" in shown
    assert "logprobs              650.0 µs/token, 1,538.5 tok/s; 325.0 µs/token by the device's clock" in shown


def test_the_best_way_to_read_is_the_ceiling_and_nominal_is_beside_it(subject: Subject) -> None:
    result = measured(subject, around())
    assert result["ceiling_bytes_per_s"] == 5.0e12
    assert result["fraction_of_ceiling"] == pytest.approx(2.4e9 / 600e-6 / 5.0e12)
    assert result["fraction_of_nominal"] == pytest.approx(2.4e9 / 600e-6 / 6e12)
    assert measured(subject, around(nominal=None))["fraction_of_nominal"] is None


def test_energy_is_that_of_the_queues(subject: Subject) -> None:
    readings = (float(10 * number) for number in count())  # ten joules between two looks
    assert measured(subject, around(readings))["energy_j_per_token"] == pytest.approx(10 / (3 * 512))
    assert measured(subject, around())["energy_j_per_token"] is None


def test_peers_are_measured_by_the_same_difference(subject: Subject, target: FakeTarget) -> None:
    result = measured(subject, around(), MadeUpPeer(target.clock, 0.0015))
    assert result["peers"]["slow"]["us_per_token"] == pytest.approx(1500)
    assert result["peers"]["slow"]["first_token_ms"] == pytest.approx(3001.5)  # with its prompt, as ours
    assert result["peers"]["slow"]["ours_is_faster_by"] == pytest.approx(2.5)


def test_a_peer_that_fails_in_the_middle_is_left_out_and_the_rest_stays(subject: Subject, target: FakeTarget) -> None:
    class Tired(MadeUpPeer):
        def ask(self, prompt: Sequence[int], tokens: int) -> None:
            super().ask(prompt, tokens)
            if self.clock.seconds > 10:
                raise ValueError("it is tired")

    found = decode.measure(
        subject, around(), [Tired(target.clock, 0.001, "tired"), MadeUpPeer(target.clock, 0.001)], LENGTHS, 3, heard
    )
    assert found["peers"].keys() == {"slow"}
    assert found["peers_skipped"] == {"tired": "ValueError: it is tired"}


def test_a_difference_that_noise_has_swallowed_is_no_speed() -> None:
    with pytest.raises(UsageError, match=r"16 tokens took no longer than one[\s\S]*--tokens"):
        timing.difference_us(0.5, 0.5, 16)


def test_requests_of_a_queue_find_nothing_in_the_cache(subject: Subject, target: FakeTarget) -> None:
    assert queue.drain(subject, 3, 128, 16).tokens == 48
    assert queue.drain(subject, 3, 128, 16).tokens == 48  # and neither does the next queue
    assert {request.cached for request in target.requests} == {0}


def test_results_are_shown_as_text_and_as_a_table(subject: Subject, target: FakeTarget) -> None:
    result = measured(subject, around(), MadeUpPeer(target.clock, 0.0015, "torch.compile"))
    shown = show.text([result])
    for words in ("600.0 µs/token, 1,666.7 tok/s", "p99 600.0", "80.0% of the measured ceiling", "66.7% of nominal"):
        assert words in shown
    assert "vllm                  skipped: the package is not installed" in shown
    ours, theirs = (
        next(line.split() for line in shown.splitlines() if line.startswith(f"  {name} "))
        for name in ("Monolane", "torch.compile")
    )
    assert ours == ["Monolane", "600.0", "1,666.7", "33.60"]
    assert theirs == ["torch.compile", "1,500.0", "666.7", "3,001.50", "2.50", "x", "as", "fast"]
    assert shown.index("accuracy") < shown.index("decode")
    assert "| smollm2-135m bf16 | H200 | 600 | 600 | 1,667 | 1,667 |" in tables.table([result])


# --- contexts ---


def test_growth_with_the_context_is_held_against_the_bytes_of_the_cache(subject: Subject, target: FakeTarget) -> None:
    target.position_s, target.checks_cache = 2e-9, False  # every context is decoded over what the longest left
    lengths = (0, 128, 8192, 32768)
    result = contexts.measure(subject, around(), lengths, 128, 2, heard)
    points = result["points"]
    assert [point["context"] for point in points] == list(lengths)
    assert points[0]["growth_us"] == points[0]["ideal_growth_us"] == 0
    assert points[3]["growth_us"] - points[1]["growth_us"] == pytest.approx((32768 - 128) * 2e-3)
    # 30 layers, 3 heads of 64, keys and values, two bytes each
    assert points[3]["ideal_growth_us"] == pytest.approx(32768 * 30 * 3 * 64 * 2 * 2 / 5.0e12 * 1e6)
    assert points[0]["fraction_of_ceiling"] == pytest.approx(2.4e9 / 600e-6 / 5.0e12, rel=1e-3)
    # The cache is filled once; from then on everything but the last token is in it.
    computed = [len(request.tokens) - request.cached for request in target.requests]
    assert [more for more in computed if more > 1] == [32768]
    assert "32,768" in show.text([result])


def test_growth_is_formed_within_a_round(subject: Subject, target: FakeTarget) -> None:
    """A machine that is slower in every round does not make contexts look longer."""
    target.position_s, target.checks_cache = 1e-8, False
    looks = count()

    def slower() -> dict[str, float]:
        target.token_s = 0.0006 * 1.1 ** next(looks)
        return {"copies": 5.0e12}

    result = contexts.measure(subject, replace(around(), ceiling=slower), (0, 4096), 128, 3, heard)
    assert result["points"][1]["growth_us"] == pytest.approx(4095 * 1e-2)


def test_contexts_a_model_was_not_made_for_are_left_out() -> None:
    fit, left_out = contexts.fitting(contexts.USUAL, 128, SHAPES["smollm2-135m"])
    assert fit == (0, 1024, 4096)
    assert left_out.keys() == {"8192", "16384", "32768"}
    assert "8,192 tokens" in left_out["16384"]


def test_windows_bound_the_bytes_of_the_cache() -> None:
    config = replace(SHAPES["llama-3.2-1b"], windows=(None, 100, *(100,) * 14))
    assert contexts.cache_bytes(config, 1000) == (1000 + 15 * 100) * 8 * 64 * 2 * 2


def test_contexts_beyond_the_model_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="context of 131072 tokens"):
        contexts.check([128, 131072], 128, SHAPES["llama-3.2-1b"])
