"""Finds the config keys that the installed transformers reads for a family, in its source and by observing reads."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from transformers.configuration_utils import PreTrainedConfig

# What every family's code calls with its config.
_SHARED = ("modeling_rope_utils", "masking_utils", "cache_utils", "utils.generic", "utils.output_capturing")
# Where keys of a file are taken that are no fields: old names, and what only a few models have.
_CONFIG = ("configuration_utils", "modeling_rope_utils")
_TAKES_KEYS = ("__post_init__", "convert_rope_params_to_dict")
# Collects keys that configs must not have any more; reads none for itself.
_GENERATION = "_get_generation_parameters"


def keys_read(family: str, folder: Path) -> set[str]:
    """Every key, private names aside. ``folder`` has a small model of the family."""
    config_class = type(transformers.AutoConfig.from_pretrained(folder))
    found = {field.name for field in dataclasses.fields(config_class)}
    for module in (f"models.{family}.modeling_{family}", *_SHARED):
        found |= set(_attributes(_source(module), "config"))
    for module in (f"models.{family}.configuration_{family}", *_CONFIG):
        found |= set(_named(_source(module)))
    found |= _watched(folder)
    return {key for key in found if not key.startswith("_") and not _is_code(config_class, key)}


def rope_keys_read(*functions: Any) -> set[str]:
    """Keys of ``rope_parameters`` that functions read."""
    found = set()
    for function in functions:
        for node in ast.walk(ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                owner, key = ast.unparse(node.value), _constant(node.slice)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".get", ".setdefault")):
                owner, key = ast.unparse(node.func), _constant(node.args[0])
            else:
                continue
            if key and "rope_parameters" in owner:
                found.add(key)
    return found


def _source(module: str) -> ast.Module:
    found: ModuleType = import_module(f"transformers.{module}")
    return ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8"))


def _attributes(tree: ast.AST, name: str) -> Iterator[str]:
    """``config.KEY``, ``self.config.KEY``, ``layer_config.KEY``, ``getattr(config, "KEY")``, ``hasattr``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _tail(node.value).endswith(name):
            yield node.attr
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("getattr", "hasattr")
            and _tail(node.args[0]).endswith(name)
            and (key := _constant(node.args[1]))
        ):
            yield key


def _named(tree: ast.AST) -> Iterator[str]:
    """``getattr(self, "KEY")`` and ``hasattr``; where ``kwargs`` are the keys of a file, ``kwargs.pop("KEY")``,
    ``kwargs.get("KEY")`` and ``"KEY" in kwargs`` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            if ast.unparse(node.args[0]) == "self" and (key := _constant(node.args[1])):
                yield key
        elif isinstance(node, ast.FunctionDef) and node.name in _TAKES_KEYS:
            yield from _taken(node)


def _taken(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        key = None
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("kwargs.pop", "kwargs.get"):
            key = _constant(node.args[0])
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "kwargs":
            key = _constant(node.left)
        if key:
            yield key


def _tail(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _watched(folder: Path) -> set[str]:
    """The attributes that loading a model, a forward pass and generation ask of its config, whether they are there."""
    found: set[str] = set()
    original = PreTrainedConfig.__getattribute__

    def watch(self: PreTrainedConfig, key: str) -> Any:
        if sys._getframe(1).f_code.co_name != _GENERATION:
            found.add(key)
        return original(self, key)

    PreTrainedConfig.__getattribute__ = watch
    try:
        # Experts one after the other: other implementations want sizes that are multiples of 8.
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager").eval()
        model.config.get_text_config()
        model(torch.arange(5)[None])
        model.generate(torch.arange(5)[None], max_new_tokens=3, do_sample=False)
    finally:
        PreTrainedConfig.__getattribute__ = original
    return found


def _is_code(config_class: type, key: str) -> bool:
    """A method, or a property that no key of a file can set."""
    value = inspect.getattr_static(config_class, key, None)
    is_field = key in {field.name for field in dataclasses.fields(config_class)}
    fixed = isinstance(value, property) and value.fset is None
    return not is_field and (fixed or isinstance(value, classmethod | staticmethod) or callable(value))
