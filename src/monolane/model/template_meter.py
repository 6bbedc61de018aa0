"""Limits the time and memory of a chat template. The meter has a budget of bytes, and every value is paid from it; a
value that may be large is paid for before it is made.

A price is an upper bound of the value's bytes in memory, and nothing is paid back. So all values of a rendering
together never need more memory than the budget.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, MappingView
from contextvars import ContextVar
from itertools import chain
from types import GeneratorType
from typing import Any

from jinja2 import pass_context
from jinja2.environment import Environment
from jinja2.filters import (
    do_capitalize,
    do_dictsort,
    do_lower,
    do_sort,
    do_title,
    do_trim,
    do_truncate,
    do_unique,
    do_upper,
    make_attrgetter,
    sync_do_groupby,
)
from jinja2.runtime import Context
from markupsafe import Markup, escape

MAX_MADE = 256 << 20  # bytes of all values made during one rendering
MAX_SECONDS = 5.0  # a real template takes milliseconds
OBJECT_BYTES = 64  # of any object, including the reference to it
_MAX_NUMBER_BITS = 256
_MAX_INDENT = 16
# The largest factors by which a text may grow: by a change of case ("ΐ" has three letters as a capital), escaped for
# HTML ("&#39;"), as JSON ("\\u0000"), and by repr within a list ("\\U000e0001").
_CASE, _HTML, _JSON, _WRITTEN = 3, 5, 6, 10
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class LimitError(Exception):
    """The template exceeds a limit on time or memory that no real template needs."""


class Meter:
    """The remaining budget of one rendering."""

    def __init__(self) -> None:
        self._left = MAX_MADE
        self._deadline = time.monotonic() + MAX_SECONDS

    def pay(self, size: int) -> None:
        """Take bytes from the budget; raises if it or the time is used up."""
        self._left -= size
        if self._left < 0:
            raise LimitError("it makes too much data")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it runs for more than {MAX_SECONDS:g} seconds")

    def pay_for(self, value: object, times: int = 1) -> None:
        """Pay for a value and everything in it. An object that occurs twice in it counts twice, as when printed."""
        open_parts: list[Iterator[object]] = [iter((value,))]
        while open_parts:
            for part in open_parts[-1]:
                self.pay(times * (OBJECT_BYTES + (text_bytes(part) if isinstance(part, str) else 0)))
                if isinstance(part, dict):
                    open_parts.append(chain(part.keys(), part.values()))
                elif isinstance(part, list | tuple | MappingView):
                    open_parts.append(iter(part))  # type: ignore[arg-type]  # views can be iterated
                else:
                    continue
                break
            else:
                open_parts.pop()


METER: ContextVar[Meter] = ContextVar("meter of the rendering in progress")


def text_bytes(*texts: str) -> int:
    """The bytes of the concatenation of these texts. A character beyond ASCII may make every character 4 bytes wide."""
    return sum(map(len, texts)) * (1 if all(text.isascii() for text in texts) else 4)


def text_of(value: object) -> str:
    """``str(value)``, paid for before it is made."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple | MappingView):
        METER.get().pay_for(value, _WRITTEN)
    return str(value)


def paid_items(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        METER.get().pay_for(item)
        yield item


def paid_list(items: Iterable[Any]) -> list[Any]:
    if isinstance(items, str):  # a list of its characters
        METER.get().pay((OBJECT_BYTES + text_bytes("\u0100")) * len(items))
        return list(items)
    return list(paid_items(items))


def pay_for_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_NUMBER_BITS:
            raise LimitError("it computes with huge numbers")
        return
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str) and isinstance(times, int):
            METER.get().pay(OBJECT_BYTES + max(times, 0) * text_bytes(sequence))
        elif isinstance(sequence, list | tuple) and isinstance(times, int):
            METER.get().pay_for(sequence, max(times, 0))


def pay_for_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        growth = _HTML if isinstance(left, Markup) or isinstance(right, Markup) else 1
        METER.get().pay(OBJECT_BYTES + growth * text_bytes(left, right))
    else:
        METER.get().pay_for((left, right))


def pay_for_call(text: str, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """Pay for the result of a string method that may be larger than its input. Returns the arguments, with a list in
    place of an iterator."""
    meter, growth = METER.get(), _HTML if isinstance(text, Markup) else 1
    match method, args:
        case "replace", (str(old), str(new), *_):
            meter.pay(text_bytes(text) + growth * text.count(old) * text_bytes(new) * (1 if text.isascii() else 4))
            if not new.isascii():
                meter.pay(4 * len(text))
        case "join", (items,):
            texts = paid_list(items)
            meter.pay(growth * text_bytes(*(item for item in texts if isinstance(item, str))))
            meter.pay(growth * len(texts) * 4 * len(text))
            return (texts,)
        case "splitlines", _:
            meter.pay(OBJECT_BYTES * sum(text.count(end) for end in _LINE_ENDS))
        case (("split" | "rsplit"), _):
            separator = args[0] if args else options.get("sep")
            parts = text.count(separator) if isinstance(separator, str) and separator else len(text) // 2
            meter.pay(OBJECT_BYTES * parts)
        case (("upper" | "lower" | "title" | "capitalize" | "swapcase" | "casefold"), _):
            meter.pay(_CASE * text_bytes(text))
    return args


# All filters take the context, although most do not need it: Jinja then does not evaluate them at compile time, when no
# meter is active.


@pass_context
def paid(_: Context, value: Any) -> Any:
    if isinstance(value, GeneratorType):
        return paid_items(value)
    METER.get().pay_for(value)
    return value


@pass_context
def printed(_: Context, value: Any) -> str:
    text = text_of(value)
    METER.get().pay_for(text)
    return text


@pass_context
def paid_steps(_: Context, items: Iterable[Any], price: int) -> Iterator[Any]:
    for item in items:
        METER.get().pay(price)
        yield item


@pass_context
def concatenated(_: Context, parts: list[Any]) -> str:
    """The operator ``~``."""
    texts = [text_of(part) for part in parts]
    METER.get().pay(OBJECT_BYTES * len(texts) + text_bytes(*texts))
    return "".join(texts)


@pass_context
def _replace(_: Context, text: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = text_of(text), text_of(old), text_of(new)
    pay_for_call(text, "replace", (old, new), {})
    return text.replace(old, new, -1 if count is None else count)


@pass_context
def _join(context: Context, items: Iterable[Any], d: object = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    between = text_of(d)
    (texts,) = pay_for_call(between, "join", (items if isinstance(items, str) else map(text_of, items),), {})
    return between.join(texts)


@pass_context
def _tojson(
    _: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter: a model reads it, not a browser."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise LimitError(f"it indents by {indent}")
    METER.get().pay_for(value, _JSON)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(paid_items(encoder.iterencode(value)))


def _of_text(make: Callable[..., Any], growth: int = 1) -> Callable[..., Any]:
    """A filter from text to text; the result has at most ``growth`` times the bytes."""

    @pass_context
    def paying(_: Context, value: object, *args: Any, **options: Any) -> Any:
        text = text_of(value)
        METER.get().pay(growth * text_bytes(text))
        return make(text, *args, **options)

    return paying


def _of_items(make: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that orders items by one or several keys, for which it makes copies of texts in lower case."""

    @pass_context
    def paying(context: Context, items: Iterable[Any], *args: Any, **options: Any) -> Any:
        held = items if isinstance(items, dict) else paid_list(items)
        keys = max(text.count(",") for text in ("", *args, *options.values()) if isinstance(text, str)) + 1
        METER.get().pay_for(held, _CASE)
        METER.get().pay(OBJECT_BYTES * (len(held) * keys))
        return make(context.environment, held, *args, **options)

    return paying


def _dictsort(_: Environment, value: dict[Any, Any], *args: Any, **options: Any) -> list[tuple[Any, Any]]:
    return do_dictsort(value, *args, **options)


@pass_context
def _truncate(context: Context, value: object, *args: Any, **options: Any) -> str:
    return do_truncate(context.environment, text_of(value), *args, **options)


PRICED_FILTERS: dict[str, Callable[..., Any]] = {
    "capitalize": _of_text(do_capitalize, _CASE),
    "dictsort": _of_items(_dictsort),
    "e": _of_text(escape, _HTML),
    "escape": _of_text(escape, _HTML),
    "groupby": _of_items(sync_do_groupby),
    "join": _join,
    "list": pass_context(lambda _, items: paid_list(items)),
    "lower": _of_text(do_lower, _CASE),
    "replace": _replace,
    "safe": _of_text(Markup),
    "sort": _of_items(do_sort),
    "string": _of_text(lambda text: text),
    "title": _of_text(do_title, OBJECT_BYTES),  # it makes a list of words
    "tojson": _tojson,
    "trim": _of_text(do_trim),
    "truncate": _truncate,
    "unique": _of_items(do_unique),
    "upper": _of_text(do_upper, _CASE),
}
