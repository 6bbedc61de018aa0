"""Keys of a config that are not read: which of them change a model's numbers, and which do not.

Every key that transformers reads of a ``config.json`` is either asked for by our readers (``Settings.asked``), or here:
in NEUTRAL with the values at which it changes nothing, any other being refused; or in HARMLESS (for one family alone:
``Family.harmless``) with the reason why no value matters. ``tests/model/test_config_keys.py`` computes what the
installed transformers reads, and fails for a key that is nowhere. A key of a file that is nowhere is read by nobody: it
is noted, and ignored.

GGUF files are the other way round. The gguf package lists every key there is for any architecture; one of them that is
neither asked for nor harmless is refused, unless its value says "none".
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from monolane.errors import UnsupportedModelError
from monolane.model.settings import Settings, shown

_NAMED = 8  # unread keys in one note

NEUTRAL: dict[str, tuple[object, ...]] = {
    "is_causal": (True,),  # null too would let every token see those after it
    "is_encoder_decoder": (False, None),
    "per_layer_config": ({}, None),  # layers of different shapes, or with parts left out
    "attention_chunk_size": (None,),
    "num_kv_shared_layers": (0, None),
    "number_of_conv_states": (1, None),
    "default_rope_type": ("default",),
    "attribute_map": ({},),  # one key read in the place of another
    "transformers_weights": (None,),  # another file than model.safetensors
    # Configs inside the config, of which one would be read instead of the whole.
    "text_config": (None,),
    "text_encoder": (None,),
    "decoder": (None,),
    "generator": (None,),
}

TRAINING = "training only"
_CLASSIFIER = "for classifiers; a model that is one has other architectures, which are refused"
_HOW = "how the numbers are computed or handed on, not which"
_ORIGIN = "where the files come from"
_CHECKED = "only checked for being well-formed"
_SEEING = "for models that see"

HARMLESS: dict[str, str] = {
    "attention_dropout": TRAINING,
    "initializer_range": TRAINING,
    "gradient_checkpointing": TRAINING,
    "pretraining_tp": TRAINING,
    "id2label": _CLASSIFIER,
    "label2id": _CLASSIFIER,
    "num_labels": _CLASSIFIER,
    "problem_type": _CLASSIFIER,
    "use_cache": _HOW,
    "return_dict": _HOW,
    "output_attentions": _HOW,
    "output_hidden_states": _HOW,
    "tie_last_hidden_states": _HOW,
    "chunk_size_feed_forward": _HOW,
    "attn_implementation": _HOW,
    "experts_implementation": _HOW,
    "fusion_config": _HOW,
    "base_model_tp_plan": _HOW,
    "base_model_pp_plan": _HOW,
    "base_model_ep_plan": _HOW,
    "base_model_fsdp_plan": _HOW,
    "dtype": "matrices are bf16 here and sums fp32, whatever type the files have",
    "torch_dtype": "the older name of dtype",
    "bos_token_id": "the tokenizer knows with which token a text begins",
    "eos_token_id": "where answers end; read with the whole model (load.py)",
    "pad_token_id": "a single request has no padding",
    "name_or_path": _ORIGIN,
    "_name_or_path": _ORIGIN,
    "_commit_hash": _ORIGIN,
    "transformers_version": _ORIGIN,
    "auto_map": "code from a model's folder, which is never run",
    "num_heads": _CHECKED,
    "embed_dim": _CHECKED,
    "mlp_layer_types": _CHECKED,
    "mtp_layer_types": "layers that draft tokens, beside the model itself",
    "default_theta": "replaced by rope_theta before it is read",
    "ignore_keys_at_rope_validation": _CHECKED,
    "sub_configs_defaults": "for configs inside the config",
    "vision_aspect_ratio": _SEEING,
    "vision_feature_layer": _SEEING,
    "vision_feature_select_strategy": _SEEING,
}

_GGUF_NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
}

_YARN = "for the scaling named yarn, which is refused"

GGUF_HARMLESS: dict[str, str] = {
    "vocab_size": "the embedding has as many rows",
    "tensor_data_layout": "a remark of the converter",
    "pooling_type": "for models that embed texts",
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
    """The same for a GGUF file's metadata, once all that is read of it was asked for."""
    for key in settings.values:
        name = key.removeprefix(settings.prefix)
        if key in settings.asked or name == key or name in GGUF_HARMLESS or name not in _gguf_names():
            continue
        value = settings.values[key]
        neutral = _GGUF_NEUTRAL.get(name)
        if not (_says_none(value) if neutral is None else _is_one_of(value, neutral)):
            raise _refused(settings, key)


def note_on_unread_keys(settings: Settings, harmless: Iterable[str] = ()) -> str | None:
    """One line that names the keys nobody reads; None where there are none. ``harmless`` are the family's own."""
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
    """By type too: for Python, 1 equals True."""
    return any(type(value) is type(other) and value == other for other in values)


def _says_none(value: object) -> bool:
    return not any(value) if isinstance(value, list) else not value


@functools.cache
def _gguf_names() -> frozenset[str]:
    """Every key of an architecture that the gguf package knows, without the architecture's name before it."""
    from gguf.constants import Keys

    def names(group: type) -> Iterator[str]:
        for value in vars(group).values():
            if isinstance(value, type):
                yield from names(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                yield value.removeprefix("{arch}.")

    return frozenset(names(Keys)) | GGUF_HARMLESS.keys() | _GGUF_NEUTRAL.keys()
