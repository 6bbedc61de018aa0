"""Run a chat template, which is a program from a file nobody vouches for, without being hurt by it.

Jinja's immutable sandbox keeps a template away from Python's internals and from our data. It does not keep it from
running for ever or from filling the memory, so this adds a meter: every step looks at the clock, every value made is
paid for by its size, and operations that could make a huge value at one stroke are paid in advance or absent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from types import GeneratorType
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20  # characters of a template
MAX_OUTPUT = 16 << 20  # characters of a prompt
MAX_MADE = 256 << 20  # characters in all values made during one rendering
MAX_SECONDS = 5.0  # a real template takes milliseconds
_OBJECT_SIZE = 16  # what a number, a list or a key costs, in characters
_MAX_NUMBER_BITS = 256
_MAX_INDENT = 16

# What templates use and what cannot make much out of little. Absent on purpose: center, indent, format, batch, slice, …
_FILTERS = """abs attr capitalize count d default dictsort e escape first float groupby int items join last length list
lower map max min reject rejectattr replace reverse safe select selectattr sort string title tojson trim truncate unique
upper""".split()  # noqa: SIM905
_STRING_METHODS = frozenset(
    """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip
    split splitlines startswith strip swapcase title upper""".split()  # noqa: SIM905
)


class LimitError(Exception):
    """The template asked for more time or memory than any real one needs."""


class RefusedError(TemplateError):
    """The template called ``raise_exception``: it does not accept this conversation."""


class _Meter:
    """What one rendering may still use."""

    def __init__(self) -> None:
        self._left = MAX_MADE
        self._deadline = time.monotonic() + MAX_SECONDS

    def pay(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise LimitError("it makes too much data")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it runs for more than {MAX_SECONDS:g} seconds")

    def pay_for(self, value: object) -> None:
        """Pay for a value and everything in it; what occurs twice in it counts twice, as it would when printed."""
        pending = [value]
        while pending:
            part = pending.pop()
            self.pay(_OBJECT_SIZE + (len(part) if isinstance(part, str) else 0))
            if isinstance(part, dict):
                pending += part.keys()
                pending += part.values()
            elif isinstance(part, list | tuple):
                pending += part


_METER: ContextVar[_Meter] = ContextVar("meter of the rendering in progress")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates are written for (that of Hugging Face transformers), metered."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=_paid)
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters |= {
            "tojson": _tojson,
            "replace": _replace,
            "join": _join,
            "paid": _paid,
            "paid_steps": _paid_steps,
        }
        self.globals = {name: self.globals[name] for name in ("range", "dict")}
        self.globals |= {
            "namespace": _PlainNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def load(self, source: str) -> Template:
        """Compile a template so that it pays for what it does."""
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it is {len(source)} characters long")
        tree: nodes.Template = _Metering().visit(self.parse(source))
        return self.from_string(tree)

    def render(self, template: Template, variables: Mapping[str, object]) -> str:
        """The text of a template made by ``load``."""
        token = _METER.set(_Meter())
        try:
            pieces, length = [], 0
            for piece in template.generate(variables):
                length += len(piece)
                if length > MAX_OUTPUT:
                    raise LimitError(f"its text is longer than {MAX_OUTPUT} characters")
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _METER.reset(token)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        return None  # no special treatment: str.format is not among the methods allowed

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, for "self=" in templates
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _paid_in_advance(owner, __obj.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"the operator {operator} is not allowed here")
        if operator == "*":
            _check_product(left, right)
        result = super().call_binop(context, operator, left, right)
        _METER.get().pay_for(result)
        return result


class _Metering(NodeTransformer):
    """Rewrites a template: every loop pays for its steps, and every expression that makes a value pays for it."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        literal_text = sum(len(leaf.data) for leaf in node.find_all(nodes.TemplateData))
        node.iter = _filtered(node.iter, "paid_steps", nodes.Const(_OBJECT_SIZE + literal_text))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        call = node.call
        self.generic_visit(node)
        node.call = call  # must stay a plain call; what it returns is paid for when it is put out
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        return self._paying(node) if node.ctx == "load" else node

    def _paying(self, node: nodes.Expr) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, "paid")

    visit_Call = visit_Filter = visit_Concat = visit_List = visit_Dict = _paying  # noqa: N815


class _Generation(Extension):
    """``{% generation %}`` marks the model's own words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace that cannot pretend to have Python's internal attributes, and does not show its content as text."""

    def __init__(self, /, *args: Any, **attributes: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **attributes).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise SecurityError(f"a namespace cannot have the attribute {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "namespace"


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


# Filters take the context, though they do not need it: it keeps Jinja from running them while it compiles, unmetered.


@pass_context
def _paid(_: Context, value: Any) -> Any:
    if isinstance(value, GeneratorType):
        return _paid_items(value)
    _METER.get().pay_for(value)
    return value


def _paid_items(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _METER.get().pay_for(item)
        yield item


@pass_context
def _paid_steps(_: Context, items: Iterable[Any], price: int) -> Iterator[Any]:
    for item in items:
        _METER.get().pay(price)
        yield item


def _paid_in_advance(text: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Pay for a call of the two string methods that multiply lengths. Returns the arguments, no longer lazy."""
    match method, args:
        case "replace", (str(old), str(new), *_):
            _METER.get().pay(text.count(old) * len(new))
        case "join", (items,):
            items = list(items)
            _METER.get().pay(sum(len(item) + len(text) for item in items if isinstance(item, str)))
            return (items,)
    return args


@pass_context
def _replace(_: Context, text: object, old: object, new: object, count: int | None = None) -> str:
    _paid_in_advance(str(text), "replace", (str(old), str(new)))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@pass_context
def _join(context: Context, items: Iterable[Any], d: object = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    (texts,) = _paid_in_advance(str(d), "join", ((str(item) for item in items),))
    return str(d).join(texts)


@pass_context
def _tojson(
    _: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a model to read, so without the HTML escapes of Jinja's own filter."""
    if indent is not None and not 0 <= indent <= _MAX_INDENT:
        raise LimitError(f"it indents by {indent}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join(_paid_items(encoder.iterencode(value)))


def _check_product(left: Any, right: Any) -> None:
    """Refuse a product that would not fit before it is made."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > _MAX_NUMBER_BITS:
            raise LimitError("it computes with huge numbers")
        return
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            _METER.get().pay(len(sequence) * max(times, 0))


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
