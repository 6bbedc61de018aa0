"""The planner counts exactly the parameters that transformers creates from the same config."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from monolane.errors import FetchError, ModelFileError, MonolaneError, UnsupportedModelError, UsageError
from monolane.model.hub import Hub, HubFile, Repository
from monolane.model.settings import Settings
from monolane.planner.catalogue import CATALOGUE, Entry
from monolane.planner.config_reader import FAMILIES, language_part, read_shape
from monolane.planner.footprint import footprint
from monolane.planner.latency import Lanes, Latencies, steps, token_time
from monolane.planner.parts import Part
from monolane.planner.precision import published
from monolane.planner.shape import Shape
from monolane.planner.source import describe, from_entry
from monolane.progress import Progress

SEEDS = range(3)


def random_config(family: str, seed: int) -> dict[str, Any]:
    """Sizes of no particular beauty; only what a family needs to be even is even."""
    draw = random.Random(f"{family} {seed}")
    kv_heads, layers = draw.randint(1, 4), draw.randint(2, 6)
    heads = kv_heads * draw.randint(1, 4)
    config: dict[str, Any] = {
        "hidden_size": heads * 4 * draw.randint(2, 12),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 4 * draw.randint(1, 8),
        "intermediate_size": draw.randint(8, 200),
        "vocab_size": draw.randint(30, 500),
        "tie_word_embeddings": draw.random() < 0.5,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    experts = draw.randint(4, 9)
    chosen = {"num_experts_per_tok": draw.randint(1, 4), "moe_intermediate_size": draw.randint(4, 60)}
    extra: dict[str, dict[str, Any]] = {
        "llama": {"attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5},
        "qwen3": {"attention_bias": draw.random() < 0.5},
        "mixtral": {"num_local_experts": experts, "num_experts_per_tok": 2},
        "gpt_oss": {"num_local_experts": experts, "num_experts_per_tok": 2, "attention_bias": draw.random() < 0.5},
        "qwen3_moe": {"num_experts": experts, **chosen, "mlp_only_layers": [0], "decoder_sparse_step": 1 + seed % 2},
        "qwen3_next": {
            "num_experts": experts,
            **chosen,
            "shared_expert_intermediate_size": draw.randint(4, 60),
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
            "linear_conv_kernel_dim": 3,
            "layer_types": [draw.choice(["linear_attention", "full_attention"]) for _ in range(layers)],
        },
        "deepseek_v3": {
            "n_routed_experts": experts,
            **chosen,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": draw.randint(1, 2),
            "first_k_dense_replace": draw.randint(0, 1),
            "q_lora_rank": draw.choice([None, 24]),
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 12,
        },
        "deepseek_v4": {
            "n_routed_experts": experts,
            **chosen,
            "num_key_value_heads": 1,
            "hidden_size": 4 * draw.randint(4, 40),
            "num_attention_heads": 4,
            "o_groups": 2,
            "o_lora_rank": 12,
            "q_lora_rank": 20,
            "head_dim": 16,
            "index_n_heads": 3,
            "index_head_dim": 8,
            "index_topk": 8,
            "hc_mult": 1 + draw.randint(1, 3),
            "compress_ratios": [draw.choice([0, 4, 128]) for _ in range(layers)],
        },
    }
    return config | extra.get(family, {})


def shape_of_config(config: dict[str, Any]) -> Shape:
    return read_shape(Settings(config, "a test"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"laneformer_tp", "kimi_k2"}))
def test_parameters_are_those_transformers_builds(family: str, seed: int) -> None:
    config = AutoConfig.for_model(family, **random_config(family, seed))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    built = sum(parameter.numel() for parameter in model.parameters())
    assert shape_of_config(config.to_dict()).parameters == built


@pytest.mark.parametrize(
    ("changes", "window"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 512}, 512)]
)
def test_a_mistral_config_without_the_key_has_the_window_of_transformers(
    changes: dict[str, Any], window: int | None
) -> None:
    config = AutoConfig.for_model("mistral", **random_config("mistral", 0), **changes)
    assert config.sliding_window == window
    written = config.to_dict()
    del written["sliding_window"]
    shape = shape_of_config(written | changes)
    assert {layer.mixer.window for layer in shape.layers} == {window}


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("smollm2-135m", 134.5e6, 134.5e6),
        ("qwen2.5-coder-0.5b", 494e6, 494e6),
        ("llama-3.2-1b", 1.236e9, 1.236e9),
        ("qwen2.5-coder-1.5b", 1.544e9, 1.544e9),
        ("qwen3-1.7b", 1.72e9, 1.72e9),
        ("laneformer-2b", 2.32e9, 2.22e9),
        ("llama-2-7b", 6.74e9, 6.61e9),
        ("llama-3.1-8b", 8.03e9, 7.5e9),
        ("qwen3-14b", 14.8e9, 14.0e9),
        ("qwen3-30b-a3b", 30.5e9, 3.04e9),
        ("qwen3-coder-next", 80e9, 3.56e9),
        ("gpt-oss-20b", 20.9e9, 3.6e9),
        ("gpt-oss-120b", 116.8e9, 5.13e9),
        ("deepseek-v4-flash", 284e9, 13.2e9),
        ("kimi-k2.6", 1.03e12, 32e9),
        ("deepseek-v4-pro", 1.6e12, 49e9),
    ],
)
def test_models_of_the_catalogue_have_the_sizes_their_makers_publish(name: str, total: float, active: float) -> None:
    shape = from_entry(CATALOGUE[name]).shape
    assert shape.parameters == pytest.approx(total, rel=0.02)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)


def test_every_model_of_the_catalogue_is_tested() -> None:
    [sizes] = test_models_of_the_catalogue_have_the_sizes_their_makers_publish.pytestmark  # type: ignore[attr-defined]
    assert {name for name, *_ in sizes.args[1]} == set(CATALOGUE)


def test_a_config_of_a_model_that_also_sees_is_read_for_its_language_part() -> None:
    entry = CATALOGUE["kimi-k2.6"]
    text = {key: value for key, value in entry.config.items() if key != "quantization_config"}
    outer = {"text_config": text, "vision_config": {}, "quantization_config": entry.config["quantization_config"]}
    part = language_part(Settings({"model_type": "kimi_k25", **outer}, "a test"))
    assert read_shape(part) == from_entry(entry).shape
    assert published(part) == from_entry(entry).as_published()


@pytest.mark.parametrize(
    ("changes", "bits"),
    [
        ({}, {Part.ATTENTION: 16, Part.ROUTED: 16, Part.HEAD: 16}),
        ({"torch_dtype": "float32"}, {Part.ATTENTION: 32, Part.HEAD: 32}),
        ({"quantization_config": {"quant_method": "mxfp4"}}, {Part.ATTENTION: 16, Part.ROUTED: 4.25, Part.SHARED: 16}),
        ({"quantization_config": {"quant_method": "fp8"}}, {Part.ATTENTION: 8, Part.ROUTED: 8, Part.HEAD: 16}),
        (
            {"quantization_config": {"quant_method": "fp8"}, "expert_dtype": "fp4"},
            {Part.ATTENTION: 8, Part.ROUTED: 4.25, Part.SHARED: 8, Part.ROUTER: 16},
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
            {Part.ATTENTION: 4.125, Part.DENSE: 4.125, Part.HEAD: 16},
        ),
    ],
)
def test_the_published_precision_is_read_part_by_part(changes: dict[str, Any], bits: dict[Part, float]) -> None:
    precision = published(Settings(changes, "a test"))
    assert {part: precision.bits.get(part, precision.rest) for part in bits} == bits


def test_only_the_experts_of_kimi_are_short() -> None:
    precision = from_entry(CATALOGUE["kimi-k2.6"]).as_published()
    assert dict(precision.bits) == {Part.ROUTED: 4.5}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model_type": "mamba"}, UnsupportedModelError, "'mamba'"),
        ({"hidden_size": None}, ModelFileError, "hidden_size is missing"),
        ({"num_hidden_layers": 10**9}, ModelFileError, "num_hidden_layers"),
        ({"num_experts_per_tok": 129}, ModelFileError, "from 1 to 128"),
        ({"mlp_only_layers": 3}, ModelFileError, "mlp_only_layers"),
        ({"model_type": "gpt_oss", "sliding_window": 8, "layer_types": ["x"] * 48}, ModelFileError, "layer_types"),
    ],
)
def test_a_config_that_says_too_little_or_too_much_is_refused(
    changes: dict[str, Any], error: type[MonolaneError], says: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CATALOGUE["qwen3-30b-a3b"].config, **changes}))
    with pytest.raises(error, match=says) as caught:
        describe(str(tmp_path))
    assert caught.value.hint


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**12) | st.floats() | st.text(max_size=5) | st.just("fp8"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(CATALOGUE.values())), st.data())
def test_no_config_breaks_the_planner(entry: Entry, data: st.DataObject) -> None:
    """Whatever stands under its keys: it is planned with finite numbers, or refused in words."""
    keys = data.draw(st.lists(st.sampled_from([*entry.config, "layer_types", "quantization_config"]), max_size=3))
    config = Settings({**entry.config, **{key: data.draw(JUNK) for key in keys}}, "a test")
    try:
        shape, precision = read_shape(language_part(config)), published(config)
        time = token_time(steps(shape, precision, 100, Lanes(3)), 1e12, Latencies(2.0, 0.5, 1.0, 1.0, 3.0, 1.0), 3.0)
        held = footprint(shape, precision, 100, 3).total.lane_held
    except MonolaneError:
        return
    assert 0 < time.us < math.inf
    assert 0 < held < math.inf


def test_weights_of_unknown_size_need_a_dtype(tmp_path: Path) -> None:
    config = {**CATALOGUE["llama-3.1-8b"].config, "quantization_config": {"quant_method": "unheard-of"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    described = describe(str(tmp_path))
    with pytest.raises(UnsupportedModelError, match="unheard-of") as caught:
        described.precision("published")
    assert "--weights" in caught.value.hint
    assert described.precision("fp8").name == "fp8"


class OneConfig(Hub):
    """A hub with one repository, which notes what is downloaded from it."""

    def __init__(self, *files: HubFile, content: bytes = b"") -> None:
        self.files, self.content, self.downloaded = files, content, list[str]()

    def open(self, repo: str) -> Repository:
        return Repository(repo, "c0ffee", self.files)

    def download(self, repository: Repository, file: HubFile, path: Path, progress: Progress) -> None:
        self.downloaded.append(file.name)
        path.write_bytes(self.content)


def test_of_a_hub_id_the_config_alone_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    content = json.dumps(dict(CATALOGUE["gpt-oss-120b"].config)).encode()
    hub = OneConfig(
        HubFile("model.safetensors", 10**11, None), HubFile("config.json", len(content), None), content=content
    )
    described = describe("some/model", hub)
    assert described.shape == from_entry(CATALOGUE["gpt-oss-120b"]).shape
    assert hub.downloaded == ["config.json"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files", [(), (HubFile("config.json", 10**9, None),)])
def test_a_hub_id_without_a_sane_config_is_refused(
    files: tuple[HubFile, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", str(tmp_path))
    hub = OneConfig(*files)
    with pytest.raises(FetchError, match="some/model"):
        describe("some/model", hub)
    assert hub.downloaded == []


def test_names_that_are_nearly_right_are_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        describe("kimi-k2")
    assert "kimi-k2.6" in caught.value.hint


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ModelFileError):
            describe(str(path))
