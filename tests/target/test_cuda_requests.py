"""The life of a request on the CUDA target: streamed, aborted, stopped, continued, stuck. In the emulation everywhere,
and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from devices import DEVICE, dry, facts, on_the_gpu, opened, run, set_deadline
from stuck import DEADLINE_S, STALL_S, Report, expected_reports, stage_index

from monolane.bench.measure.shapes import SHAPES, MadeUpWeights
from monolane.errors import TargetError
from monolane.program.build import build_program
from monolane.program.sample import Sampling
from monolane.target.base import Finish, Request, Target
from monolane.target.cuda.opening import cuda_plan
from random_models import CASES, HALVED, RandomModel, random_model
from thorough import seldom

SMALL = CASES[3]  # the emulation must be quick
DEVICES = ["emulated", pytest.param(DEVICE, marks=on_the_gpu)]
WHERE = (
    r"A worker got stuck: worker (?P<worker>\d+) waited too long for (?P<waited_for>[a-z ]+) "
    r"at stage '(?P<stage>\w+)' of layer (?P<layer>\d+)\."
)
GREEDY = Sampling()


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return random_model(SMALL)


@pytest.fixture(scope="module", params=DEVICES)
def target(request: pytest.FixtureRequest, model: RandomModel) -> Iterator[Target]:
    with opened(model.config, model.weights, 160, device=request.param) as target:
        yield target


def asked(model: RandomModel, prompt: int = 20, max_tokens: int = 30) -> Request:
    return Request(model.tokens[:prompt], 0, max_tokens, frozenset(), GREEDY, logprobs=2)


def test_tokens_arrive_while_the_kernel_runs(target: Target, model: RandomModel) -> None:
    started = target.run(asked(model))
    batches = iter(started)
    first = next(batches)
    assert started.finish is None
    tokens = [*first, *(token for batch in batches for token in batch)]
    assert started.finish is Finish.LENGTH
    assert len(tokens) == 30
    assert len(first) < 30
    times = [token.time_ns for token in tokens]
    assert started.start_ns < times[0]
    assert times == sorted(times)


def test_one_request_at_a_time(target: Target, model: RandomModel) -> None:
    started = target.run(asked(model))
    with pytest.raises(TargetError, match="still running"):
        target.run(asked(model))
    started.abort()
    for _ in started:
        pass
    assert run(target, asked(model))[1] is Finish.LENGTH


def test_a_request_begins_behind_memory_that_is_still_being_cleared(target: Target, model: RandomModel) -> None:
    """What is on the stream before is no request: with stamps, memory is cleared before one."""
    context = target.launcher.context  # type: ignore[attr-defined]
    size = min(context.free_memory() // 4, 2 << 30)
    place = context.allocate(size)
    for _ in range(32):
        context.clear(place, size)
    assert run(target, asked(model))[1] is Finish.LENGTH


def test_an_aborted_request_is_the_beginning_of_the_whole_one(target: Target, model: RandomModel) -> None:
    whole, _ = run(target, asked(model))
    for seen_before in (0, 1, 5):
        started = target.run(asked(model))
        tokens = []
        if seen_before == 0:
            started.abort()
        for batch in started:
            tokens += batch
            if len(tokens) >= seen_before:
                started.abort()
        assert facts(tokens) == facts(whole[: len(tokens)])
        assert started.finish is (Finish.LENGTH if len(tokens) == len(whole) else Finish.ABORT)
        started.abort()  # after the end: nothing
    assert facts(run(target, asked(model))[0]) == facts(whole)


def test_a_stop_token_ends_the_request_on_the_device(target: Target, model: RandomModel) -> None:
    whole = [token.id for token in run(target, asked(model))[0]]
    unseen = next(i for i in range(SMALL.vocab) if i not in whole)
    for stop in (whole[0], whole[7]):
        stopped, finish = run(target, replace(asked(model), stop_tokens=frozenset({stop, unseen})))
        assert finish is Finish.STOP
        assert [token.id for token in stopped] == whole[: whole.index(stop) + 1]


def test_a_conversation_continues_from_its_cache(target: Target, model: RandomModel) -> None:
    """The same bits as without the interruption: what is cached is not computed again, nor differently."""
    whole, _ = run(target, asked(model))
    request = asked(model, max_tokens=12)
    first, _ = run(target, request)
    said = [*request.tokens, *(token.id for token in first)]
    rest, _ = run(target, replace(request, tokens=said, cached=len(said) - 1, max_tokens=18))
    assert facts([*first, *rest]) == facts(whole)


def test_a_longer_turn_is_read_in_wide_passes_behind_the_cache(target: Target, model: RandomModel) -> None:
    tokens = model.tokens
    run(target, asked(model, prompt=30, max_tokens=1))
    turn = Request(tokens[:75], 30, 8, frozenset(), GREEDY)
    continued, _ = run(target, turn)
    afresh, _ = run(target, replace(turn, cached=0))
    assert [token.id for token in continued] == [token.id for token in afresh]


def test_a_closed_target_refuses(model: RandomModel) -> None:
    with opened(model.config, model.weights, 64, device="emulated") as target:
        target.close()
        with pytest.raises(TargetError, match="closed"):
            target.run(asked(model, max_tokens=2))


# Every kind of stage; the first worker, which also draws tokens, and one that has little to do.
STALLS = [("qkv", 0), ("attend", 0), ("o", 1), ("down", 0), ("head", 2), ("sample", 0)]


@pytest.mark.parametrize(
    ("device", "stage", "worker"),
    [seldom("emulated", "o", 1), *(pytest.param(DEVICE, *stall, marks=on_the_gpu) for stall in STALLS)],
)
def test_a_stuck_worker_ends_as_an_error_that_says_where(device: str, stage: str, worker: int) -> None:
    model = random_model(HALVED)
    at = stage_index(build_program(model.config), stage)
    stall = (worker, at, STALL_S)
    with opened(model.config, model.weights, 160, device=device, stall=stall, deadline_s=DEADLINE_S) as target:
        plan = cuda_plan(model.config, target.lane_workers)  # type: ignore[attr-defined]
        for prompt in (20, 1, 20):  # prefill, decode, and again: nothing of the first is left behind
            with pytest.raises(TargetError) as failure:
                run(target, asked(model, prompt, 2))
            told = re.fullmatch(WHERE, failure.value.message)
            assert told, failure.value.message
            report = Report(told["stage"], int(told["layer"]), told["waited_for"])
            assert report in expected_reports(plan, worker, at, int(told["worker"]), prefill=prompt > 1)
            assert failure.value.hint
        # With more patience the same target finds the token, late.
        set_deadline(target, 60.0)
        (late,), finish = run(target, asked(model, 1, 1))
        assert finish is Finish.LENGTH
    with opened(model.config, model.weights, 160, device=device) as target:
        (token,), _ = run(target, asked(model, 1, 1))
        assert facts([late]) == facts([token])


def test_a_kernel_that_shows_no_life_is_given_up(model: RandomModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if its own watch had failed, too. Nothing waits for it, not even closing."""
    end = threading.Event()
    with opened(model.config, model.weights, 64, device="emulated") as target:
        context = target.launcher.context  # type: ignore[attr-defined]
        monkeypatch.setattr(context, "launch", lambda *_, **__: context.start(end.wait))
        monkeypatch.setattr(target, "silent_s", 0.05)
        with pytest.raises(TargetError, match=r"no sign of life for 0\.05 s"):
            run(target, asked(model, max_tokens=2))
        assert context.running()
        told_to_end = ctypes.c_uint32.from_address(target.launcher.launch.abort).value  # type: ignore[attr-defined]
        assert told_to_end == 1  # should it only have been slow
        with pytest.raises(TargetError, match="got stuck"):
            target.run(asked(model, max_tokens=2))
    assert context.running()
    end.set()


def test_closing_does_not_wait_for_a_kernel_that_does_not_end(
    model: RandomModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    with opened(model.config, model.weights, 64, device="emulated") as target:
        context = target.launcher.context  # type: ignore[attr-defined]
        monkeypatch.setattr(context, "launch", lambda *_, **__: context.start(end.wait))
        monkeypatch.setattr(target, "silent_s", 0.05)
        target.run(asked(model, max_tokens=2))
        target.close()
        assert context.running()
        end.set()
        with pytest.raises(TargetError, match="closed"):
            target.run(asked(model, max_tokens=2))


@pytest.mark.parametrize("device", [pytest.param(DEVICE, marks=on_the_gpu)])
def test_an_abort_is_seen_within_two_tokens(device: str) -> None:
    """At a real size, where a token takes as long as the host needs to answer. One slow answer of the host is no
    failure of the kernel: the middle one of nine counts."""
    config = dry(SHAPES["llama-3.2-1b"])
    beyond = []
    with opened(config, MadeUpWeights(config), 512, device=device) as target:
        for attempt in range(9):
            started = target.run(Request([attempt + 1], 0, 400, frozenset(), GREEDY))
            seen = made = 0
            for batch in started:
                made += len(batch)
                if not seen and made >= 20:
                    seen = made
                    started.abort()
            assert started.finish is Finish.ABORT
            beyond.append(made - seen)
    assert sorted(beyond)[4] <= 2, beyond
