"""Every key of a config that the installed transformers reads is read, refused or known to be harmless here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from tiny_models import SIZES, GgufModel, change_config, save_huggingface
from transformers import modeling_rope_utils
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers_reads import keys_read, rope_keys_read

from monolane.errors import MonolaneError, UnsupportedModelError
from monolane.model.families import FAMILIES, family_of_huggingface
from monolane.model.families.keys import GGUF_HARMLESS, HARMLESS, NEUTRAL
from monolane.model.families.rope import read_rope
from monolane.model.gguf_weights import open_gguf
from monolane.model.huggingface import open_folder, read_folder_config
from monolane.model.load import load_config
from monolane.model.settings import Settings
from monolane.progress import Silent
from random_models import LLAMA3_ROPE, MIXTURES, Case, random_model

# Read by the attribute access of configs itself, which nothing can watch.
UNSEEN = {"attribute_map"}

KNOWN = {family.name: family.architecture for family in FAMILIES if family.architecture}  # to transformers
NAMES = list(KNOWN)


class Notes(Silent):
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def small_model(family: str) -> Path:
    """A folder with a model of the family, saved by transformers."""
    name = KNOWN[family].removesuffix("ForCausalLM")
    return random_model(Case(f"{family}-keys", name, 96, 6, 2, 16, 2, 101, 80, False, expert_keys(family))).folder


def expert_keys(family: str) -> dict[str, Any]:
    """What a config of the family must also have."""
    name = KNOWN[family].removesuffix("ForCausalLM")
    return next((case.extra for case in MIXTURES if case.family == name), {})


@pytest.fixture(scope="module")
def read_by_both() -> dict[str, tuple[set[str], set[str]]]:
    """By family: the keys that transformers reads, and those that we do."""
    found = {}
    for family in NAMES:
        folder = small_model(family)
        # With scaling, so that what belongs to it is read as well.
        values = json.loads((folder / "config.json").read_text()) | {"rope_scaling": LLAMA3_ROPE}
        (folder / "config.json").write_text(json.dumps(values))
        settings = Settings(values, "config.json")
        family_of_huggingface(settings).huggingface_config(settings)
        found[family] = keys_read(family, folder), settings.asked
    return found


@pytest.mark.parametrize("family", NAMES)
def test_every_key_that_transformers_reads_is_accounted_for(read_by_both: Any, family: str) -> None:
    """A key in the difference is to be read, refused or declared harmless in the family's file."""
    theirs, ours = read_by_both[family]
    harmless = next(known.harmless for known in FAMILIES if known.name == family)
    assert theirs > {"hidden_size", "rope_theta", "is_causal", "per_layer_config", "sliding_window", "torch_dtype"}
    assert theirs - ours - NEUTRAL.keys() - HARMLESS.keys() - harmless.keys() == set()
    assert ours - theirs == set()
    assert (NEUTRAL.keys() | HARMLESS.keys() | ours) & harmless.keys() == set()
    assert harmless.keys() - theirs == set()


def test_the_tables_hold_nothing_else(read_by_both: Any) -> None:
    theirs = set.union(*(theirs for theirs, _ in read_by_both.values()))
    ours = set.union(*(ours for _, ours in read_by_both.values()))
    public = {key for key in NEUTRAL.keys() | HARMLESS.keys() if not key.startswith("_")}
    assert public - theirs == UNSEEN
    assert NEUTRAL.keys() & HARMLESS.keys() == set()
    assert (NEUTRAL.keys() | HARMLESS.keys()) & ours == set()
    assert all(HARMLESS.values())


def test_every_key_of_rotary_scaling_is_read() -> None:
    mixin = modeling_rope_utils.RotaryEmbeddingConfigMixin
    theirs = rope_keys_read(
        modeling_rope_utils.ROPE_INIT_FUNCTIONS["linear"],
        modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"],
        LlamaRotaryEmbedding.__init__,
        LlamaRotaryEmbedding.compute_default_rope_parameters,
        mixin.convert_rope_params_to_dict,
        mixin.standardize_rope_params,
    )
    scaling = AskedDict(LLAMA3_ROPE)
    read_rope(Settings({"rope_scaling": scaling}, "config.json"), 64, 512)
    assert theirs == scaling.asked > {"rope_theta", "type", "factor"}


class AskedDict(dict[str, Any]):
    """A dictionary that remembers the keys it was asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


OTHER_VALUES = [False, True, None, 0, 1, 3, "x", ["x"], {"0": {"intermediate_size": 16}}]


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("key", NEUTRAL)
def test_a_value_that_changes_the_numbers_is_refused(tmp_path: Path, family: str, key: str) -> None:
    values = SIZES | {"model_type": family, "head_dim": 16} | expert_keys(family)

    def read(value: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(values | {key: value}))
        read_folder_config(tmp_path)

    for value in NEUTRAL[key]:
        read(value)
    for value in OTHER_VALUES:
        if not any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL[key]):
            with pytest.raises(UnsupportedModelError, match=f"{key} is ") as caught:
                read(value)
            assert repr(value)[:60] in caught.value.message
            assert caught.value.hint


def test_what_transformers_makes_of_is_causal(tmp_path: Path) -> None:
    """Why null is refused too, and why true is not."""

    def judged() -> torch.Tensor:
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        logits: torch.Tensor = model(torch.arange(8)[None]).logits
        return logits

    save_huggingface(tmp_path)
    plain = judged()
    for value, same in ((True, True), (False, False), (None, False)):
        change_config(tmp_path, is_causal=value)
        assert torch.equal(judged(), plain) == same
        if same:
            open_folder(tmp_path)
        else:
            with pytest.raises(UnsupportedModelError, match="is_causal"):
                open_folder(tmp_path)


def test_a_key_that_nobody_reads_is_noted(tmp_path: Path) -> None:
    save_huggingface(tmp_path)
    notes = Notes()
    load_config(tmp_path, notes)
    assert notes.texts == []
    change_config(tmp_path, rope_interleaved=False, **{f"another_{index}": index for index in range(10)})
    load_config(tmp_path, notes)
    (text,) = notes.texts
    assert "config.json: nothing reads 'another_0', " in text
    assert "and 3 more; ignored." in text
    (tmp_path / "model.safetensors").unlink()
    load_config(tmp_path, notes)
    assert notes.texts == [text, text]


@pytest.mark.parametrize("family", NAMES)
def test_configs_as_transformers_saves_them_need_no_note(family: str) -> None:
    notes = Notes()
    load_config(small_model(family), notes)
    assert notes.texts == []


# --- GGUF ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("attention.scale", 0.5),
        ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("attention.sliding_window_pattern", [True, False]),
        ("attention.temperature_scale", 0.1),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.0625),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.22),
        ("use_parallel_residual", True),
        ("expert_used_count", 2),
        ("rope.dimension_sections", [16, 24, 24, 0]),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.attn_factor", 0.0),
        ("rope.scaling.yarn_ext_factor", 1.0),
        ("ssm.state_size", 16),
    ],
)
def test_metadata_that_changes_the_numbers_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    model = GgufModel()
    model.metadata[key] = value
    with pytest.raises(UnsupportedModelError, match=f"llama.{key} is ") as caught:
        open_gguf(model.write(tmp_path / "model.gguf"))
    assert caught.value.hint


def test_metadata_that_changes_nothing_is_read_without_a_word(tmp_path: Path) -> None:
    model = GgufModel()
    model.metadata |= dict.fromkeys(GGUF_HARMLESS, 1)
    model.metadata |= {"expert_count": 0, "expert_used_count": 0, "attention.causal": True, "attention.scale": 0.0}
    model.metadata |= {"logit_scale": 1.0, "rope.scaling.attn_factor": 1.0, "rope.dimension_sections": [0, 0, 0, 0]}
    notes = Notes()
    open_gguf(model.write(tmp_path / "model.gguf"), notes)
    assert notes.texts == []
    model.metadata["made_up"] = 1
    open_gguf(model.write(tmp_path / "model.gguf"), notes)
    assert notes.texts == [f"{tmp_path / 'model.gguf'}: nothing reads 'llama.made_up'; ignored."]


def test_no_key_that_the_gguf_package_knows_is_ignored(tmp_path: Path) -> None:
    """Whatever it is: refused, read (and then of the wrong type), or harmless."""

    def names(group: type) -> set[str]:
        values = list(vars(group).values())
        own = {v.removeprefix("{arch}.") for v in values if isinstance(v, str) and v.startswith("{arch}.")}
        return own.union(*(names(value) for value in values if isinstance(value, type)))

    known = names(gguf.constants.Keys)
    assert len(known) > 90
    for name in sorted(known - GGUF_HARMLESS.keys()):
        model = GgufModel()
        model.metadata[name] = "made up"
        with pytest.raises(MonolaneError, match=f"llama.{name}|expert_count|rotary scaling of type 'made up'"):
            open_gguf(model.write(tmp_path / "model.gguf"))
