"""docs/results.md, the page of all results: goals, every kind of benchmark, machines, commands and methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monolane.bench.ceiling.result import HOST, load, speed
from monolane.bench.report.markdown import NOT_MEASURED, chosen_us, grid, model_name, optional, peer_speed

Result = dict[str, Any]
PEERS = ("torch.compile", "transformers", "llama.cpp, same file", "llama.cpp, bf16", "vllm", "sglang")

CHOICES = {"": "greedy", "sampled_": "sampled", "logprobs_": "logprobs"}
CHOICES_NOTE = (
    "*Sampled* is temperature 0.7 and top-p 0.9, *logprobs* greedy with those of the 20 likeliest tokens; everything "
    "below is greedy."
)

HEAD = """# Results

Everything that was measured, and nothing else: `make report` writes this page and the README's tables from
`benchmarks/results/*.json`, `benchmarks/results/earlier/*.json` and `benchmarks/goals.json`, and a test fails where
they differ. Do not edit it. How each number was measured is [below](#methods); [performance](performance.md) tells what
was tried, [ceiling](ceiling.md) what a machine can give at all."""


def page(found: list[Result], goals: list[Result], earlier: list[Result] | None = None) -> str:
    """The text of the page. Sections without results are left out. ``earlier``: results that have been replaced, but
    which alone have peers beside them."""
    sections = [
        ("Goals", _goals(found, goals)),
        *((title, section(_of(found, kind))) for title, kind, section in SECTIONS),
        ("Peers in earlier runs", _earlier(earlier or [])),
        ("Machines", _machines(found)),
        ("Runs", _runs([*found, *(earlier or [])])),
        ("Methods", _methods(found)),
    ]
    return "\n\n".join([HEAD, *(f"## {title}\n\n{content}" for title, content in sections if content)]) + "\n"


def _of(found: list[Result], benchmark: str) -> list[Result]:
    return [result for result in found if result["benchmark"] == benchmark]


def _goals(found: list[Result], goals: list[Result]) -> str:
    rows = []
    for goal in goals:
        measured = _measured(found, goal)
        aim = "-" if goal["aim"] is None else f"{goal['aim']:,} {goal['unit']}"
        value = NOT_MEASURED if measured is None else f"{_digits(measured)} {goal['unit']}"
        on = goal["on"] or "any machine"
        rows.append((goal["what"], on, f"{goal['must']:,} {goal['unit']}", aim, value, _verdict(measured, goal)))
    return grid(("what", "on", "at most", "hoped for", "measured", ""), rows)


def _digits(measured: float) -> str:
    """The number with enough digits to tell 1.27 from a goal of 1.3."""
    return f"{measured:,.{2 if measured < 10 else 1 if measured < 1000 else 0}f}"


def _measured(found: list[Result], goal: Result) -> float | None:
    """The value that a goal is about, the worst of all results that fit it and have one; None where there is none.

    It is value / over - times * less, where ``over`` and ``less`` are optional.
    """
    values: list[float] = []
    for result in _of(found, goal["benchmark"]):
        where = result["machine"].get("gpu", {}).get("name", result["machine"]["processor"])
        if result["model"] != goal["model"] or goal["on"] not in where or result.get("routing") == "skewed":
            continue
        if "dtypes" in goal and result["dtype"] not in goal["dtypes"]:
            continue
        value, over = _at(result, goal["value"]), _at(result, goal["over"]) if "over" in goal else 1.0
        less = _at(result, goal["less"]) if "less" in goal else 0.0
        if value is not None and over and less is not None:
            values.append(value / over - goal.get("times", 1) * less)
    return max(values, default=None)


def _at(result: Result, path: list[str | int]) -> float | None:
    """The number at the end of a path of keys. In a list of points, a key is the context or the delay of one."""
    value: Any = result
    for key in path:
        if isinstance(value, list):
            value = next((point for point in value if key in (point.get("context"), point.get("delay"))), None)
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def _verdict(measured: float | None, goal: Result) -> str:
    if measured is None:
        return "open"
    return "met" if measured <= goal["must"] else f"missed by {measured / goal['must'] - 1:.1%}"


def _decode(found: list[Result]) -> str:
    speeds = [
        (
            model_name(result),
            _device(result),
            _gaps(result),
            f"{1e6 / result['us_per_token']:,.1f}",
            f"{result['bytes_per_token'] / 1e9:.3f}",
            speed(result["ceiling_bytes_per_s"]),
            f"{result['fraction_of_ceiling']:.1%}",
            optional(result.get("fraction_of_nominal"), ".1%"),
        )
        for result in found
    ]
    columns = ("gaps p50 / p99, µs", "tok/s", "GB/token", "read ceiling", "of ceiling", "of nominal")
    others = [
        (
            model_name(result),
            _device(result),
            _firsts(result),
            optional(result.get("throughput", {}).get("tokens_per_second"), ",.1f", " tok/s"),
            optional(result.get("energy_j_per_token"), ".3f", " J"),
            result.get("accuracy", {}).get("verdict", NOT_MEASURED),
        )
        for result in found
    ]
    parts = [
        _choices(found),
        grid(("model", "device", *columns), speeds),
        grid(("model", "device", "first token", "queue of requests", "energy per token", "accuracy"), others),
        _peers(found),
    ]
    return "\n\n".join(filter(None, parts))


def _choices(found: list[Result]) -> str:
    """Time per token by the way in which tokens are chosen, and by clock."""
    rows = [
        (
            model_name(result),
            result["device"],
            *(chosen_us(result, choice, clock, ",.1f") for clock in ("", "_device") for choice in CHOICES),
        )
        for result in found
    ]
    columns = [f"{before}{choice}" for before in ("µs/token, ", "by the device, ") for choice in CHOICES.values()]
    table = grid(("model", "device", *columns), rows)
    return f"{CHOICES_NOTE}\n\n{table}" if table else ""


def _peers(found: list[Result]) -> str:
    named = dict.fromkeys([*PEERS, *(name for result in found for name in result["peers"])])
    rows = []
    for result in found:
        cells = []
        for name in named:
            faster = result["peers"].get(name, {}).get("ours_is_faster_by")
            cells.append(peer_speed(result, name) + (f" ({faster:.2f} x)" if faster else ""))
        rows.append((model_name(result), _device(result), f"{1e6 / result['us_per_token']:,.1f} tok/s", *cells))
    note = (
        "Peers in the same rounds and with the same lengths, all with 16-bit weights but for *same file*, which reads "
        "the file's own; in brackets how many times faster Monolane was."
    )
    reasons = [
        f"- {model_name(result)}, {_device(result)}: no {name}: {why}"
        for result in found
        for name, why in result.get("peers_skipped", {}).items()
    ]
    parts = [note, grid(("model", "device", "Monolane", *named), rows), "\n".join(reasons)]
    return "\n\n".join(filter(None, parts)) if rows else ""


def _earlier(found: list[Result]) -> str:
    """With the speed that Monolane had then: a ratio is of one run."""
    return f"Monolane has been measured again since, without them.\n\n{_peers(found)}" if found else ""


def _gaps(result: Result) -> str:
    gaps = result.get("token_gaps_us")
    return f"{gaps['p50']:,.0f} / {gaps['p99']:,.0f}" if gaps else NOT_MEASURED


def _firsts(result: Result) -> str:
    firsts = result.get("first_token_ms", {})
    return ", ".join(f"{took['host']:,.1f} ms after {int(n):,}" for n, took in firsts.items()) or NOT_MEASURED


def _context(found: list[Result]) -> str:
    rows = []
    for result in found:
        for point in result["points"]:
            ideal = point["ideal_growth_us"]
            growth = f"{point['growth_us']:,.0f} µs" if ideal else "-"
            ratio = f"{point['growth_us'] / ideal:.2f}" if ideal else "-"
            cells = (f"{point['context']:,}", f"{point['us_per_token']:,.0f}", growth, f"{ideal:,.0f} µs", ratio)
            rows.append((model_name(result), _device(result), *cells))
    columns = ("tokens in the cache", "µs/token", "growth", "reading it at the ceiling", "ratio")
    left_out = [
        f"- {model_name(result)}, {_device(result)}: not {int(length):,}: {why}"
        for result in found
        for length, why in result.get("left_out", {}).items()
    ]
    return "\n\n".join(filter(None, [grid(("model", "device", *columns), rows), "\n".join(left_out)]))


def _stages(found: list[Result]) -> str:
    rows = [
        (model_name(result), _device(result), stage, str(result["times"][stage]), f"{us:,.1f}", f"{us / whole:.0%}")
        for result in found
        for whole in [sum(result["stages_us"].values())]
        for stage, us in result["stages_us"].items()
    ]
    return grid(("model", "device", "stage", "times", "µs of a token", "share"), rows)


def _delays(found: list[Result]) -> str:
    rows = [
        (
            model_name(result),
            _device(result),
            str(point["delay"]),
            *(f"{point[what]:,.1f}" for what in ("us_per_token", "exposed_us", "exposed_in_layers_us", "mean_us")),
            f"{point['exposed_us'] / point['us_per_token']:.1%}",
        )
        for result in found
        for point in result["points"]
    ]
    exposed = ("exposed exchange, µs", "in layers, µs", "waits of a mean lane, µs", "exposed, of the token")
    return grid(("model", "device", "delay, layers", "µs/token", *exposed), rows)


def _load(found: list[Result]) -> str:
    rows = [
        (
            result["model"],
            _device(result),
            *(f"{result[start][what]:.1f} s" for start in ("first", "second") for what in ("load_s", "first_token_s")),
            f"{result['peak_over_tape']:.2f}",
        )
        for result in found
    ]
    columns = ("first start", "to its first token", "second start", "to its first token", "peak memory / tape")
    return grid(("model", "device", *columns), rows)


def _ceiling(found: list[Result]) -> str:
    parts = []
    for result in found:
        best = result["ceiling_bytes_per_s"]
        reads = [
            (read["way"], speed(rate), f"{rate / best:.1%}")
            for read in result["reads"]
            for rate in [read["bytes_per_s"]]
        ]
        waits = [
            (wait["what"], load(wait), f"{wait['us']:.2f} µs", speed(rate) if rate else "-")
            for wait in result["waits"]
            for rate in [wait["bytes_per_s"]]
        ]
        host = [(label, optional(result["host"][key], ".1f", " µs")) for key, label in HOST.items()]
        parts += [
            f"**{result['device']}**: {speed(best)}, by {result['best_way']}.",
            grid(("reading memory", "", "of the best"), reads),
            grid((f"among {result['workers']} workers", f"memory ({result['streaming']})", "", "streaming"), waits),
            grid(("with the host", ""), host),
        ]
    return "\n\n".join(parts)


def _workflow(found: list[Result]) -> str:
    rows = [
        (
            model_name(result),
            _device(result),
            f"{result['tokens']:,}",
            f"{result['wall_s']:,.1f} s",
            f"{result['tokens_per_second']:,.0f}",
            ", ".join(f"{seconds:,.0f} s at {pace}" for pace, seconds in result["wall_s_at"].items()),
            f"{result['cached_tokens'] / max(result['prompt_tokens'], 1):.0%}",
        )
        for result in found
    ]
    return grid(("model", "device", "tokens", "wall time", "tok/s", "for comparison", "prompts from the cache"), rows)


def _server(found: list[Result]) -> str:
    rows = [
        (
            result["model"],
            result["device"],
            f"{result['us_per_token']:,.0f}",
            f"{result['tokens_per_second']:,.1f}",
            _firsts(result),
            f"{result['throughput']['tokens_per_second']:,.1f} tok/s",
        )
        for result in found
    ]
    return grid(("model", "server", "µs/token", "tok/s", "first token", "queue of requests"), rows)


def _serve_speed(found: list[Result]) -> str:
    rows = [
        (name, f"{seen['engine']:,.0f}", f"{seen['client']:,.0f}", f"{round(seen['cost_percent'], 1) + 0:.1f}%")
        for result in found
        for name, seen in result["clients"].items()
    ]
    return grid(("client", "tok/s in the engine", "tok/s at the client", "cost"), rows)


def _conversation(found: list[Result]) -> str:
    rows = [
        (
            result["model"],
            _device(result),
            str(len(result["turns"])),
            f"{last['first_token_s']:.1f} s after {last['prompt_tokens']:,} tokens, {last['cached_tokens']:,} cached",
            f"{result['last_turn_without_cache']['first_token_s']:.1f} s",
            f"{result['free_tokens_per_second']:.1f} / {result['form_tokens_per_second']:.1f}",
        )
        for result in found
        for last in [result["turns"][-1]]
    ]
    columns = ("turns", "first token of the last", "without the cache", "tok/s free / in a JSON schema")
    return grid(("model", "device", *columns), rows)


def _soak(found: list[Result]) -> str:
    rows = [
        (
            f"{result['minutes']:g} min",
            ", ".join(f"{kind}: {count:,}" for kind, count in result["answers"].items()),
            f"{result['growth_from_the_second_fifth_to_the_last']['rss_mib']:.1f} MiB",
            "yes" if result["works_afterwards"] else "no",
        )
        for result in found
    ]
    return grid(("time", "answers", "growth of memory", "works afterwards"), rows)


SECTIONS: list[tuple[str, str, Callable[[list[Result]], str]]] = [
    ("Decode", "decode", _decode),
    ("Context", "context", _context),
    ("Stages", "stages", _stages),
    ("Lanes that wait for each other", "delays", _delays),
    ("Load", "load", _load),
    ("Ceiling", "ceiling", _ceiling),
    ("An agent's work", "workflow", _workflow),
    ("Servers from outside", "server", _server),
    ("What the server costs", "serve speed", _serve_speed),
    ("A conversation", "serve conversation", _conversation),
    ("A soak", "serve soak", _soak),
]


def _machines(found: list[Result]) -> str:
    rows = dict.fromkeys(_machine(result["machine"]) for result in found)
    return grid(("GPU", "processor", "cores", "vectors", "system", "compiler"), list(rows))


def _machine(machine: Result) -> tuple[str, ...]:
    gpu = machine.get("gpu")
    card = f"{gpu['name']}, driver {gpu.get('driver_version') or 'unknown'}" if gpu else "-"
    parts = (machine.get(key) or "-" for key in ("vectors", "system", "compiler"))
    return card, machine["processor"], str(machine["cores"]), *parts


def _runs(found: list[Result]) -> str:
    rows = [
        (
            f"{result['benchmark']}, {result['model']}",
            _device(result),
            ", ".join(f"{name} {version}" for name, version in result["versions"].items() if version),
            f"`{result['command']}`",
        )
        for result in found
    ]
    return grid(("result", "device", "versions", "command"), rows)


def _methods(found: list[Result]) -> str:
    kinds: dict[str, list[str]] = {}
    for result in found:
        kinds.setdefault(result["method"], []).append(result["benchmark"])
    return "\n".join(f"- **{', '.join(dict.fromkeys(names))}**: {method}." for method, names in kinds.items())


def _device(result: Result) -> str:
    gpu = result["machine"].get("gpu")
    return str(gpu["name"] if gpu else result.get("device", "cpu"))
