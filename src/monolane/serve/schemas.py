"""JSON schemas of strangers, made into schemas that a grammar can follow: checked, closed, and without what grammars
cannot enforce.

Every answer that follows the result follows the client's schema too, but for the keywords that ``left_out`` names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monolane.errors import UsageError

MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
MORE_KEYS = 16  # of an open object besides those that its schema lists, so that it comes to an end

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

# Keywords whose values are schemas, by how the schemas lie in them.
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "additionalItems")

_NOT_ENFORCED = (
    "uniqueItems", "contains", "minContains", "maxContains", "propertyNames", "dependentRequired", "dependentSchemas",
    "dependencies", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LOOKS = re.compile(r"\(\?<?[=!]|\\[1-9]")  # look-around and back references: no regular language

# Options of llguidance. A model that writes white space without end would never come to its answer.
_OPTIONS = {"coerce_one_of": True, "whitespace_pattern": r"[ \t\r\n]{0,64}"}


@dataclass
class Followable:
    """A schema that a grammar can follow, and the keywords of the client's schema that are not enforced."""

    schema: dict[str, Any]
    left_out: list[str] = field(default_factory=list)


def followable(schema: object, name: str, strict: bool = False) -> Followable:
    """``name`` is the field of the request that has the schema. ``strict``: objects have no keys but those that they
    list. UsageError for what is not a schema, is too large, or contradicts itself."""
    check_schema(schema, name)
    assert isinstance(schema, dict)
    made = _Maker(schema, name, strict)
    result = made.schema(schema)
    assert isinstance(result, dict)
    return Followable(result | {"x-guidance": _OPTIONS}, list(dict.fromkeys(made.left_out)))


def check_schema(schema: object, name: str) -> None:
    """UsageError for a schema that is not a JSON object, or is too large or nested too deeply."""
    if not isinstance(schema, dict):
        raise UsageError(f"{name} is not a schema.", "Give a JSON object.")
    if depth_of(schema) > MAX_SCHEMA_DEPTH:
        raise UsageError(f"{name} is nested too deeply.", f"{MAX_SCHEMA_DEPTH} levels are the most.")
    size = len(json.dumps(schema))
    if size > MAX_SCHEMA_BYTES:
        raise UsageError(f"{name} has {size} bytes.", f"{MAX_SCHEMA_BYTES} are the most.")


def depth_of(value: object) -> int:
    """Levels of objects and lists. It does not recurse, because a hostile value may be nested without limit."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


class _Maker:
    def __init__(self, root: Mapping[str, Any], name: str, strict: bool) -> None:
        self._root, self._name, self._strict = root, name, strict
        # The parts of an allOf hold for one object together: were each closed, none of the others' keys could come.
        self._may_close = not any(len(parts) > 1 for parts in _values_of("allOf", root) if isinstance(parts, list))
        self.left_out: list[str] = []

    def schema(self, given: Any) -> Any:
        if not isinstance(given, dict):  # true and false are schemas
            return given
        made = {key: value for key, value in given.items() if key != "x-guidance"}
        for key in _NOT_ENFORCED:
            if made.pop(key, None) not in (None, False):
                self._leave_out(key)
        self._check(made)
        self._negation(made)
        self._texts(made)
        for key in _MAPS:
            self._replace(made, key, dict, lambda found: {name: self.schema(part) for name, part in found.items()})
        for key in _LISTS:
            self._replace(made, key, list, lambda found: [self.schema(part) for part in found])
        for key in _SINGLE:
            self._replace(made, key, dict, self.schema)
        if isinstance(made.get("properties"), dict):
            self._object(made)
        return made

    def _object(self, made: dict[str, Any]) -> None:
        """Objects come to an end: they are closed, or have their required keys first and a few others at most."""
        listed = made["properties"]
        required = [key for key in made.get("required", ()) if key in listed]
        optional = [key for key in listed if key not in required]
        if optional and (given := {"minProperties", "maxProperties"} & made.keys()):
            for key in sorted(given):
                del made[key]
                self._leave_out(key)
        more = made.get("additionalProperties")
        joined = {"allOf", "anyOf", "oneOf", "$ref", "patternProperties"} & made.keys()
        if self._may_close and not joined and (more is None or self._strict):
            made["additionalProperties"] = False
        elif more is not False:
            made["properties"] = {key: listed[key] for key in listed if key in required} | listed
            if not optional:
                made.setdefault("maxProperties", len(listed) + MORE_KEYS)

    def _check(self, made: dict[str, Any]) -> None:
        kinds = made.get("type", [])
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            if kind not in TYPES:
                raise UsageError(f"{self._name} has the type {kind!r}.", f"There are {', '.join(TYPES)}.")
        reference = made.get("$ref")
        if reference is not None and not self._leads_somewhere(reference):
            raise UsageError(f"{self._name} has the $ref {reference!r}, which leads nowhere in it.", "Put it in $defs.")

    def _leads_somewhere(self, reference: object) -> bool:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return False
        found: Any = self._root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return False
        return True

    def _negation(self, made: dict[str, Any]) -> None:
        """``not`` is enforced where it names types, or some of the values of an enumeration."""
        match made.pop("not", None):
            case None:
                pass
            case {"type": str(kind), **others} if not others and "type" not in made:
                ruled_out = {kind, "integer"} if kind == "number" else {kind}
                made["type"] = [other for other in TYPES if other not in ruled_out]
            case {"const": value, **others} if not others and "enum" in made:
                made["enum"] = [other for other in made["enum"] if other != value]
            case {"enum": list(values), **others} if not others and "enum" in made:
                made["enum"] = [other for other in made["enum"] if other not in values]
            case _:
                self._leave_out("not")

    def _texts(self, made: dict[str, Any]) -> None:
        pattern, form = made.get("pattern"), made.get("format")
        if isinstance(pattern, str) and _LOOKS.search(pattern):
            del made["pattern"]
            self._leave_out("a pattern with look-around or a back reference")
        if form is not None and form not in FORMATS:
            del made["format"]
            self._leave_out(f"the format {form}")

    def _replace(self, made: dict[str, Any], key: str, kind: type, change: Callable[[Any], Any]) -> None:
        if isinstance(made.get(key), kind):
            made[key] = change(made[key])

    def _leave_out(self, what: str) -> None:
        self.left_out.append(f"{self._name}: {what[:60]} is not enforced")


def _values_of(key: str, value: Any) -> list[Any]:
    """The values of a key, wherever it is."""
    if isinstance(value, dict):
        own = [value[key]] if key in value else []
        return own + [found for child in value.values() for found in _values_of(key, child)]
    return [found for child in value for found in _values_of(key, child)] if isinstance(value, list) else []
