"""Generates C++ for what host and kernel share: structs, enums and constants are defined once, in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from ctypes import Array, Structure, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import TypeVar

_NAMES: Mapping[object, str] = {
    c_int32: "int32_t",
    c_int64: "int64_t",
    c_uint32: "uint32_t",
    c_uint64: "uint64_t",
    c_double: "double",
}


S = TypeVar("S", bound=type[Structure])
_POINTERS: dict[type[Structure], Mapping[str, str]] = {}


def pointers(**types: str) -> Callable[[S], S]:
    """Decorator of a struct: the C++ types of its fields that are pointers."""

    def note(kind: S) -> S:
        _POINTERS[kind] = types
        return kind

    return note


def struct(kind: type[Structure], name: str | None = None) -> list[str]:
    """The C++ definition of a struct, by default under its Python name. The compiler of the kernel checks its size."""
    name = name or kind.__name__
    return [
        f"struct {name} {{",
        *(f"  {_declaration(kind, field, type_)};" for field, type_, *_ in kind._fields_),
        "};",
        f'static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name} differs from the host\'s");',
    ]


def launch_struct(kind: type[Structure]) -> list[str]:
    """The struct as Launch, and the constant ``monolane_launch``, which the host fills in before every launch."""
    return [
        "namespace monolane {",
        *struct(kind, "Launch"),
        "}  // namespace monolane",
        'extern "C" {',
        "MONOLANE_LAUNCH monolane::Launch monolane_launch;",
        "}",
    ]


def _declaration(kind: type[Structure], name: str, field: type) -> str:
    if field is c_void_p:
        return f"{_POINTERS[kind][name]} {name}"
    if issubclass(field, Array):
        return f"{_NAMES[field._type_]} {name}[{field._length_}]"
    return f"{field.__name__ if issubclass(field, Structure) else _NAMES[field]} {name}"


def enum(kind: type[IntEnum]) -> str:
    """The C++ definition of an unscoped enum; NOT_A_NUMBER becomes kNotANumber."""
    members = (f"{constant_name(member.name)} = {member.value}" for member in kind)
    return f"enum {kind.__name__} : int32_t {braces(members)};"


def constant_name(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.lower().split("_"))


def integer_constants(values: Mapping[str, int]) -> list[str]:
    """C++ definitions of integers. ``values``: C++ name to value."""
    return [f"constexpr int {name} = {value};" for name, value in values.items()]


def braces(values: Iterable[str]) -> str:
    return "{" + ", ".join(values) + "}"
