"""The supported families of models, and how the family of a file is found."""

from __future__ import annotations

from importlib import import_module

from monolane.errors import UnsupportedModelError
from monolane.model.families.shared import Family
from monolane.model.settings import Settings

# One line per family: the name of its file, which defines FAMILY.
_FILES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "mixtral",
    "gpt_oss",
    "qwen2_moe",
    "qwen3_moe",
    "laneformer",
)

FAMILIES: tuple[Family, ...] = tuple(import_module(f"{__name__}.{name}").FAMILY for name in _FILES)

_HINT = "Use a text generation model of a supported family: " + ", ".join(family.name for family in FAMILIES) + "."


def family_of_huggingface(settings: Settings) -> Family:
    """The family a ``config.json`` belongs to."""
    kind = settings.text("model_type")
    architectures = settings.get("architectures")
    for family in FAMILIES:
        if family.name == kind:
            # Classifiers and models without a head have the same model_type, but other tensors.
            wanted = family.architecture
            if wanted and isinstance(architectures, list) and architectures and wanted not in architectures:
                raise UnsupportedModelError(
                    f"{settings.source}: {architectures[0]!r} is not supported, only {wanted}.",
                    _HINT,
                )
            return family
    raise UnsupportedModelError(f"{settings.source}: the family {kind!r} (model_type) is not supported.", _HINT)


def family_of_gguf(architecture: str, source: str) -> Family:
    """The family of a GGUF file's ``general.architecture``."""
    for family in FAMILIES:
        if family.gguf_architecture == architecture:
            return family
    raise UnsupportedModelError(f"{source}: the architecture {architecture!r} is not supported.", _HINT)
