"""The keys of a config that our readers do not read: which of them change what a model computes, and which do not.

Every key that transformers reads from a ``config.json`` is in one of three places:

- ``Settings.asked``: our readers read it;
- NEUTRAL, with the values that change nothing; any other value is refused;
- HARMLESS, or ``Family.harmless`` for keys of one family, with the reason why no value changes what a model computes.

``tests/model/test_config_keys.py`` finds the keys that the installed transformers reads, and fails for a key that is in
none of the three. A key of a file that is in none of them is not read by transformers either: it is ignored, and a note
says so.

For GGUF files the default is to refuse. The gguf package lists the keys of all architectures; one of these that is
neither read nor harmless is refused, unless its value means "none".
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from monolane.errors import UnsupportedModelError
from monolane.model.settings import Settings, shown

_NAMED = 8  # unread keys that one note names

NEUTRAL: dict[str, tuple[object, ...]] = {
    "is_causal": (True,),  # false and null both turn the causal mask off
    "is_encoder_decoder": (False, None),
    "per_layer_config": ({}, None),  # would give layers different shapes, or leave parts out
    "attention_chunk_size": (None,),
    "kv_sharing_modes": (None,),  # layers would read the keys and values of others
    "number_of_conv_states": (1, None),
    "default_rope_type": ("default",),
    "attribute_map": ({},),  # would read one key in place of another
    "transformers_weights": (None,),  # would name another file than model.safetensors
    # Nested configs, one of which would be read instead of the outer one.
    "text_config": (None,),
    "text_encoder": (None,),
    "decoder": (None,),
    "generator": (None,),
}

TRAINING = "training only"
_CLASSIFIER = "for classifiers; a model that is one has other architectures, which are refused"
_EXECUTION = "changes how the numbers are computed or returned, not their values"
_ORIGIN = "where the files come from"
_CHECKED = "only checked for being well-formed"
_VISION = "for vision models"

HARMLESS: dict[str, str] = {
    "attention_dropout": TRAINING,
    "initializer_range": TRAINING,
    "gradient_checkpointing": TRAINING,
    "pretraining_tp": TRAINING,
    "id2label": _CLASSIFIER,
    "label2id": _CLASSIFIER,
    "num_labels": _CLASSIFIER,
    "problem_type": _CLASSIFIER,
    "use_cache": _EXECUTION,
    "return_dict": _EXECUTION,
    "output_attentions": _EXECUTION,
    "output_hidden_states": _EXECUTION,
    "tie_last_hidden_states": _EXECUTION,
    "chunk_size_feed_forward": _EXECUTION,
    "attn_implementation": _EXECUTION,
    "experts_implementation": _EXECUTION,
    "fusion_config": _EXECUTION,
    "base_model_tp_plan": _EXECUTION,
    "base_model_pp_plan": _EXECUTION,
    "base_model_ep_plan": _EXECUTION,
    "base_model_fsdp_plan": _EXECUTION,
    "dtype": "matrices are bf16 here and sums fp32, whatever type the files have",
    "torch_dtype": "the older name of dtype",
    "bos_token_id": "the tokenizer adds the BOS token",
    "eos_token_id": "the tokens that end an answer; load.py reads them",
    "pad_token_id": "a single request has no padding",
    "name_or_path": _ORIGIN,
    "_name_or_path": _ORIGIN,
    "_commit_hash": _ORIGIN,
    "transformers_version": _ORIGIN,
    "auto_map": "code from a model's folder, which is never run",
    "num_heads": _CHECKED,
    "embed_dim": _CHECKED,
    "mlp_layer_types": _CHECKED,
    "mtp_layer_types": "additional layers for multi-token prediction",
    "default_theta": "replaced by rope_theta before it is read",
    "ignore_keys_at_rope_validation": _CHECKED,
    "sub_configs_defaults": "for nested configs",
    "vision_aspect_ratio": _VISION,
    "vision_feature_layer": _VISION,
    "vision_feature_select_strategy": _VISION,
}

_GGUF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "expert_weights_scale": (0.0, 1.0),
}

_YARN = "for the scaling named yarn; elsewhere it is not read"

GGUF_HARMLESS: dict[str, str] = {
    "vocab_size": "the vocabulary's size is the number of rows of the embedding",
    "tensor_data_layout": "a remark of the converter",
    "pooling_type": "for embedding models",
    "attention.layer_norm_epsilon": "for norms that subtract the mean, which none of the families has",
    "rope.scaling.finetuned": "a remark about the training",
    "rope.scaling.original_context_length": _YARN,
    "rope.scaling.yarn_beta_fast": _YARN,
    "rope.scaling.yarn_beta_slow": _YARN,
}


def refuse_unsupported_keys(settings: Settings) -> None:
    """Refuse a ``config.json`` in which a key that is not read has a value that changes the numbers."""
    for key, values in NEUTRAL.items():
        if key in settings.values and not _is_one_of(settings.values[key], values):
            raise _refused(settings, key)


def refuse_unsupported_gguf_keys(settings: Settings) -> None:
    """The same for the metadata of a GGUF file. Called after everything else has been read from ``settings``."""
    for key in settings.values:
        name = key.removeprefix(settings.prefix)
        if key in settings.asked or name == key or name in GGUF_HARMLESS or name not in _gguf_names():
            continue
        value = settings.values[key]
        neutral = _GGUF_NEUTRAL.get(name)
        if not (_says_none(value) if neutral is None else _is_one_of(value, neutral)):
            raise _refused(settings, key)


def note_on_unread_keys(settings: Settings, harmless: Iterable[str] = ()) -> str | None:
    """A line that names the keys that are ignored; None where there are none. ``harmless`` are the family's own."""
    known = settings.asked | NEUTRAL.keys() | HARMLESS.keys() | set(harmless)
    if settings.prefix:
        known = settings.asked | {settings.prefix + name for name in _gguf_names()}
    unread = sorted(key for key in settings.values if key.startswith(settings.prefix) and key not in known)
    if not unread:
        return None
    names = ", ".join(shown(key) for key in unread[:_NAMED])
    more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    return f"{settings.source}: nothing reads {names}{more}; ignored."


def _refused(settings: Settings, key: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{settings.source}: {key} is {shown(settings.values[key])}, which changes what the model computes "
        "and is not supported.",
        "Use another model; or remove the key, if the model was trained without it.",
    )


def _is_one_of(value: object, values: tuple[object, ...]) -> bool:
    """Whether type and value are those of one of ``values``; in Python 1 == True."""
    return any(type(value) is type(other) and value == other for other in values)


def _says_none(value: object) -> bool:
    return not any(value) if isinstance(value, list) else not value


@functools.cache
def _gguf_names() -> frozenset[str]:
    """Every key of an architecture that the gguf package knows, without the prefix of the architecture's name."""
    from gguf.constants import Keys

    def names(group: type) -> Iterator[str]:
        for value in vars(group).values():
            if isinstance(value, type):
                yield from names(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                yield value.removeprefix("{arch}.")

    return frozenset(names(Keys)) | GGUF_HARMLESS.keys() | _GGUF_NEUTRAL.keys()
