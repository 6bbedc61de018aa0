"""Results as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from monolane.bench.report.markdown import model_name

Result = dict[str, Any]


def text(results: Sequence[Result]) -> str:
    """A paragraph for each result, with an empty line between two."""
    writers = {
        "decode": _decode,
        "context": _context,
        "stages": _stages,
        "workflow": _workflow,
        "server": _server,
        "delays": _delays,
    }
    return "\n\n".join("\n".join(writers[result["benchmark"]](result)) for result in results)


def _decode(result: Result) -> Iterator[str]:
    yield f"{model_name(result)}, {result['device']}, weights {result['weights']}"
    yield from _accuracy(result)
    if "routing" in result:
        shared = f"two tokens have {result['shared_experts']:.2f} experts in common"
        yield _line("routing", f"{result['routing']}: {shared}, {result['shared_experts_if_even']:.2f} if evenly used")
    gaps = result["token_gaps_us"]
    yield _line("decode", f"{_speed(result['us_per_token'])} by the host's clock")
    spread = ", ".join(f"{share} {us:,.1f}" for share, us in gaps.items())
    yield _line("", f"{result['us_per_token_device']:,.1f} µs/token by the device's; between two tokens: {spread} µs")
    for choice, words in (("sampled", "temperature 0.7, top-p 0.9"), ("logprobs", "greedy, the 20 likeliest")):
        us, by_device = result[f"{choice}_us_per_token"], result[f"{choice}_us_per_token_device"]
        yield _line(choice, f"{_speed(us)}; {by_device:,.1f} µs/token by the device's clock ({words})")
    for prompt, found in result["first_token_ms"].items():
        times = f"{found['host']:,.2f} ms by the host, {found['device']:,.2f} by the device"
        yield _line("first token", f"{times}, after {int(prompt):,} tokens")
    queue = result["throughput"]
    yield _line(
        "throughput",
        f"{queue['tokens_per_second']:,.1f} tok/s over {queue['requests']} requests of "
        f"{queue['prompt_tokens']} + {queue['tokens_per_request']} tokens, one after another",
    )
    nominal = result["fraction_of_nominal"]
    yield _line(
        "memory",
        f"{result['bytes_per_token'] / 1e9:.3f} GB/token, {result['fraction_of_ceiling']:.1%} of the measured ceiling "
        f"({result['ceiling_bytes_per_s'] / 1e9:,.1f} GB/s)" + (f", {nominal:.1%} of nominal" if nominal else ""),
    )
    energy = result["energy_j_per_token"]
    yield _line("energy", "not known here" if energy is None else f"{energy * 1e3:,.1f} mJ/token over the queue")
    if result["peers"]:
        yield from _beside(result)
    for name, reason in result["peers_skipped"].items():
        yield _line(name, f"skipped: {reason}")


def _delays(result: Result) -> Iterator[str]:
    yield f"{model_name(result)}, {result['device']}, weights made up"
    exposed = f"{'exposed exchange, µs':>23}{'of the token':>15}{'in layers, µs':>16}{'mean lane, µs':>16}"
    yield f"  {'delay':>5}{'µs/token':>12}{exposed}"
    for point in result["points"]:
        us, waited, in_layers = (point[name] for name in ("us_per_token", "exposed_us", "exposed_in_layers_us"))
        numbers = f"{us:12,.1f}{waited:23,.1f}{waited / us:15.1%}{in_layers:16,.1f}{point['mean_us']:16,.1f}"
        yield f"  {point['delay']:5}{numbers}"


def _beside(result: Result) -> Iterator[str]:
    """A table of Monolane and its peers."""
    first = next(iter(result["first_token_ms"].values()))
    ours = {"us_per_token": result["us_per_token"], "first_token_ms": first["host"]}
    yield f"  {'in the same rounds':22}{'µs/token':>12}{'tok/s':>10}{'first token, ms':>17}{'Monolane is':>16}"
    for name, found in {"Monolane": ours, **result["peers"]}.items():
        us, faster = found["us_per_token"], found.get("ours_is_faster_by")
        times = f"{faster:.2f} x as fast" if faster else ""
        yield f"  {name:22}{us:12,.1f}{1e6 / us:10,.1f}{found['first_token_ms']:17,.2f}{times:>16}".rstrip()


def _context(result: Result) -> Iterator[str]:
    yield f"{model_name(result)}, {result['device']}"
    speeds = f"{'µs/token':>12}{'by the device':>15}{'tok/s':>10}{'of ceiling':>12}"
    yield f"{'tokens in the cache':>20}{speeds}{'growth, µs':>12}{'reading it, µs':>16}"
    for point in result["points"]:
        yield (
            f"{point['context']:20,}{point['us_per_token']:12,.1f}{point['us_per_token_device']:15,.1f}"
            f"{1e6 / point['us_per_token']:10,.1f}{point['fraction_of_ceiling']:12.1%}"
            f"{point['growth_us']:12,.1f}{point['ideal_growth_us']:16,.1f}"
        )
    for length, why in result.get("left_out", {}).items():
        yield f"{int(length):20,} left out: {why}"


def _stages(result: Result) -> Iterator[str]:
    predicted = result["predicted_us"] or {}
    yield f"{'stage':>20}{'times':>12}{'adds, µs':>15}{'design allows':>15}"
    for name, us in result["stages_us"].items():
        allowed = f"{predicted[name]:,.1f}" if name in predicted else "-"
        yield f"{name:>20}{result['times'][name]:12}{us:15,.1f}{allowed:>15}"
    total, all_allowed = sum(result["stages_us"].values()), f"{sum(predicted.values()):,.1f}" if predicted else "-"
    yield f"{'a token':>20}{sum(result['times'].values()):12}{total:15,.1f}{all_allowed:>15}"
    cost = total - result["us_per_token"]
    yield f"{'':>20} with stamps; {result['us_per_token']:,.1f} µs without: the stamps cost {cost:,.1f} µs"


def _workflow(result: Result) -> Iterator[str]:
    yield f"{model_name(result)}, {result['device']}: an agent's loop of {result['tokens']:,} tokens"
    yield from _accuracy(result)
    beside = ", ".join(f"{seconds:,.1f} s at {speed}" for speed, seconds in result["wall_s_at"].items())
    yield _line("wall time", f"{result['wall_s']:,.1f} s ({result['tokens_per_second']:,.1f} tok/s); {beside}")
    share = result["cached_tokens"] / max(result["prompt_tokens"], 1)
    yield _line(
        "prompts",
        f"{result['prompt_tokens']:,} tokens, {result['cached_tokens']:,} ({share:.1%}) from the cache, in "
        f"{len(result['turns'])} turns of {result['conversations']} conversations",
    )


def _server(result: Result) -> Iterator[str]:
    yield f"{result['model']}, {result['device']}"
    found = result["accuracy"]
    begins = "it does" if found["consistent"] else "it does NOT"
    yield _line("accuracy", f"{found['verdict']}: {found['why']}: {begins}")
    yield _line("decode", f"{_speed(result['us_per_token'])}, answers of {result['tokens']:,.0f} tokens")
    for found in result["first_token_ms"].values():
        yield _line("first token", f"{found['host']:,.2f} ms, after {result['prompt_tokens']:,.0f} tokens")
    queue = result["throughput"]
    yield _line("throughput", f"{queue['tokens_per_second']:,.1f} tok/s over {queue['requests']} requests")
    for point in result["points"]:
        yield _line("context", f"{_speed(point['us_per_token'])} with {point['context']:,} tokens in the cache")


def _accuracy(result: Result) -> Iterator[str]:
    found = result["accuracy"]
    yield _line(
        "accuracy",
        f"{found['verdict']}: {found['divergence']:.1e} nats from fp32 (bf16: {found['divergence_of_bf16']:.1e}), "
        f"{found['positions']} positions, {found['decoded']} decoded",
    )


def _speed(us: float) -> str:
    return f"{us:,.1f} µs/token, {1e6 / us:,.1f} tok/s"


def _line(name: str, words: str) -> str:
    return f"  {name:22}{words}"
