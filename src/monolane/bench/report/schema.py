"""The schemas of the files in benchmarks/results, one for each kind of benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# A schema is a type or a tuple of types; a list with the schema of its elements, of which there must be at least one;
# or a dict of keys and their schemas. A key that ends in "?" may be missing. "*" stands for all keys that are not
# named; without it a result may have further keys of any content.
Schema = Any
NUMBER = (int, float)
NONE = type(None)

COMMON: dict[str, Schema] = {
    "benchmark": str,
    "model": str,
    "machine": {"processor": str, "cores": int, "system": str, "gpu?": {"name": str}},
    "versions": {"monolane": str, "python": str, "*": (str, NONE)},
    "method": str,
    "command": str,
}
DEVICE: dict[str, Schema] = {"dtype": str, "device": str}
STREAM: dict[str, Schema] = {**DEVICE, "context": int, "bytes_per_token": int, "ceiling_bytes_per_s": NUMBER}
START: dict[str, Schema] = {
    "load_s": NUMBER,
    "first_token_s": NUMBER,
    "tape_bytes": int,
    "peak_bytes": int,
    "peak_anonymous_bytes?": (int, NONE),
}

KINDS: dict[str, Schema] = {
    "decode": {
        **STREAM,
        "us_per_token": NUMBER,
        "fraction_of_ceiling": NUMBER,
        "peers": {"*": {"us_per_token": NUMBER, "ours_is_faster_by": NUMBER, "first_token_ms?": NUMBER}},
        "peers_skipped?": {"*": str},
        "us_per_token_device?": NUMBER,
        "sampled_us_per_token?": NUMBER,
        "sampled_us_per_token_device?": NUMBER,
        "logprobs_us_per_token?": NUMBER,
        "logprobs_us_per_token_device?": NUMBER,
        "token_gaps_us?": {"p50": NUMBER, "p99": NUMBER, "*": NUMBER},
        "first_token_ms?": {"*": {"host": NUMBER, "*": NUMBER}},
        "throughput?": {"tokens_per_second": NUMBER},
        "energy_j_per_token?": (*NUMBER, NONE),
        "fraction_of_nominal?": (*NUMBER, NONE),
        "accuracy?": {"verdict": str},
        "routing?": str,
        "shared_experts?": NUMBER,
        "shared_experts_if_even?": NUMBER,
    },
    "context": {
        **STREAM,
        "points": [{"context": int, "us_per_token": NUMBER, "growth_us": NUMBER, "ideal_growth_us": NUMBER}],
        "left_out?": {"*": str},
    },
    "stages": {**DEVICE, "us_per_token": NUMBER, "stages_us": {"*": NUMBER}, "times": {"*": int}},
    "load": {"first": START, "second": START, "peak_over_tape": NUMBER, "tape_kept?": bool},
    "workflow": {
        **DEVICE,
        "tokens": int,
        "wall_s": NUMBER,
        "tokens_per_second": NUMBER,
        "wall_s_at": {"*": NUMBER},
        "conversations": int,
        "prompt_tokens": int,
        "cached_tokens": int,
    },
    "server": {
        "device": str,
        "us_per_token": NUMBER,
        "tokens_per_second": NUMBER,
        "first_token_ms": {"*": {"host": NUMBER}},
        "throughput": {"tokens_per_second": NUMBER},
    },
    "ceiling": {
        "device": str,
        "workers": int,
        "ceiling_bytes_per_s": NUMBER,
        "best_way": str,
        "reads": [{"way": str, "bytes_per_s": NUMBER}],
        "waits": [{"what": str, "streaming_bytes": int, "us": NUMBER, "bytes_per_s": NUMBER}],
        "exchanges?": [
            {
                "lanes": int,
                "workers": int,
                "values": int,
                "streaming_bytes": int,
                "us": NUMBER,
                "own_us": NUMBER,
                "hops": int,
                "bytes_per_s": NUMBER,
            }
        ],
        "host": {"launch_us": NUMBER, "launch_to_end_us": (*NUMBER, NONE), "round_trip_us": (*NUMBER, NONE)},
        "streaming": str,
    },
    "delays": {
        "device": str,
        "placement": str,
        "lanes": int,
        "points": [
            {
                "delay": int,
                "us_per_token": NUMBER,
                "exposed_us": NUMBER,
                "exposed_in_layers_us": NUMBER,
                "mean_us": NUMBER,
                "of_lanes_us": [NUMBER],
            }
        ],
    },
    "quality": {
        **DEVICE,
        "problems": int,
        "passed": int,
        "pass_at_1_percent": NUMBER,
        "reported_percent": (*NUMBER, NONE),
        "isolated": bool,
        "answers": {"*": {"passed": bool, "error": (str, NONE), "tokens": int, "finish": str}},
    },
    "serve speed": {"clients": {"*": {"client": NUMBER, "engine": NUMBER, "cost_percent": NUMBER}}},
    "serve conversation": {
        "device": str,
        "turns": [{"prompt_tokens": int, "cached_tokens": int, "first_token_s": NUMBER}],
        "last_turn_without_cache": {"first_token_s": NUMBER},
        "free_tokens_per_second": NUMBER,
        "form_tokens_per_second": NUMBER,
    },
    "serve soak": {
        "minutes": NUMBER,
        "answers": {"*": int},
        "growth_from_the_second_fifth_to_the_last": {"*": NUMBER},
        "works_afterwards": bool,
    },
}


def problems(result: object) -> list[str]:
    """What is wrong with a result; an empty list where it fits its schema."""
    found = _check(result, COMMON, "")
    if found or not isinstance(result, dict):
        return found
    kind = KINDS.get(result["benchmark"])
    if kind is None:
        return [f"benchmark: {result['benchmark']!r} is none of {', '.join(KINDS)}"]
    return _check(result, kind, "")


def _check(value: object, schema: Schema, place: str) -> list[str]:
    if isinstance(schema, dict):
        return _check_dict(value, schema, place)
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{place} is not a list of something"]
        return [wrong for index, each in enumerate(value) for wrong in _check(each, schema[0], f"{place}[{index}]")]
    if isinstance(value, bool) and schema is not bool:
        return [f"{place} is {value}"]
    if not isinstance(value, schema):
        return [f"{place} is {value!r:.40}"]
    return [f"{place} is {value}"] if isinstance(value, float) and not math.isfinite(value) else []


def _check_dict(value: object, schema: Mapping[str, Schema], place: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{place or 'it'} is not an object"]
    found = []
    for name, inner in schema.items():
        key = name.removesuffix("?")
        where = f"{place}.{key}".lstrip(".")
        if name == "*":
            rest = [each for each in value if each not in schema]
            found += [wrong for each in rest for wrong in _check(value[each], inner, f"{place}.{each}".lstrip("."))]
        elif key in value:
            found += _check(value[key], inner, where)
        elif key == name:
            found.append(f"{where} is missing")
    return found
