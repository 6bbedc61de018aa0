"""Time per kind of stage of a decoded token: measured with time stamps, and predicted from the plan."""

from __future__ import annotations

from typing import Any

from monolane.bench.measure.subject import Subject
from monolane.bench.trace import run as trace_run

METHOD = (
    "mean over traced tokens of what each kind of stage adds to the end of the slowest worker, by the device's clock, "
    "with stamps; predicted_us: a walk along one worker's tape (see monolane inspect --device cuda)"
)
TOKENS = 8


def measure(subject: Subject) -> dict[str, Any] | None:
    """None where the target keeps no time stamps."""
    if not isinstance(subject.target, trace_run.Stamping):
        return None
    trace = trace_run.of_target(subject.name, subject.target, subject.prompt(trace_run.PROMPT_TOKENS), TOKENS)
    kinds = trace.kinds()
    return {
        "benchmark": "stages",
        "model": subject.name,
        "dtype": subject.dtype,
        "device": subject.target.name,
        "us_per_token": trace.us_per_token,
        "us_per_token_traced": float(trace.critical.sum(1).mean()),
        "stages_us": {name: float(trace.critical[:, which].sum(1).mean()) for name, which in kinds.items()},
        "predicted_us": _predicted(subject, subject.target.program.lanes),
        "times": {name: int(which.sum()) for name, which in kinds.items()},
        "method": METHOD,
    }


def _predicted(subject: Subject, lanes: int) -> dict[str, float] | None:
    """Predicted µs per kind of stage on a GPU. There is no such prediction for a CPU."""
    if subject.kind != "cuda":
        return None
    from monolane.target.cuda.opening import cuda_plan, required_gpu
    from monolane.target.cuda.predict import predicted_us
    from monolane.target.cuda.projections import least_slot_bytes
    from monolane.target.cuda.shared_memory import shared_memory

    device = required_gpu()
    slot = least_slot_bytes(device.shared_limit)
    plan = cuda_plan(subject.model.config, device.processors, lanes, subject.model.weights.format, slot)
    added: dict[str, float] = {}
    slots = shared_memory(plan, device.shared_limit).slots
    for stage, us in zip(plan.program.stages, predicted_us(plan, slots), strict=True):
        added[stage.name] = added.get(stage.name, 0.0) + us
    return added
