"""Runs chat templates, which are programs from untrusted files, in a sandbox with limits on time and memory.

Jinja's immutable sandbox keeps a template from Python's internals and from changing our data. It does not keep it from
running forever or from using up memory. So this module adds a meter (``template_meter.py``): every step of a loop
checks the deadline, every value is paid for by its size, and filters and methods that templates do not need are absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from monolane.model import template_meter
from monolane.model.template_meter import METER, LimitError, Meter

MAX_SOURCE = 1 << 20  # characters of a template
MAX_WORDS = 1 << 15  # tokens of its source: each needs some 4 kB to compile; real templates have thousands
MAX_OUTPUT = 16 << 20  # characters of a prompt
_MAX_DATE = 256  # characters of the format of a date

# The filters that templates use, and none that makes a large result from a small input without paying for it. Absent on
# purpose: center, indent, format, batch, slice, …
_FILTERS = """abs attr capitalize count d default dictsort e escape first float groupby int items join last length list
lower map max min reject rejectattr replace reverse safe select selectattr sort string title tojson trim truncate unique
upper""".split()  # noqa: SIM905
_STRING_METHODS = frozenset(
    """capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace
    istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip
    split splitlines startswith strip swapcase title upper""".split()  # noqa: SIM905
)


class RefusedError(TemplateError):
    """The template called ``raise_exception``: it does not accept this conversation."""


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of Hugging Face transformers, for which chat templates are written, with a meter."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        extensions = [loopcontrols, _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=template_meter.printed)
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.filters |= template_meter.PRICED_FILTERS
        self.filters |= {
            "paid": template_meter.paid,
            "paid_steps": template_meter.paid_steps,
            "concatenated": template_meter.concatenated,
        }
        self.globals = {name: self.globals[name] for name in ("range", "dict")}
        self.globals |= {
            "namespace": _PlainNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def load(self, source: str) -> Template:
        """Compile a template, with calls of the meter added."""
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it is {len(source)} characters long")
        words = (kind for _, kind, _ in self.lex(source) if kind != "whitespace")
        if next(islice(words, MAX_WORDS, None), None) is not None:
            raise LimitError(f"it has more than {MAX_WORDS} words")
        tree: nodes.Template = _Metering().visit(self.parse(source))
        return self.from_string(tree)

    def render(self, template: Template, variables: Mapping[str, object]) -> str:
        """The output of a template that ``load`` has compiled."""
        token = METER.set(Meter())
        try:
            pieces, length = [], 0
            for piece in template.generate(variables):
                length += len(piece)
                if length > MAX_OUTPUT:
                    raise LimitError(f"its text is longer than {MAX_OUTPUT} characters")
                pieces.append(piece)
            return "".join(pieces)
        finally:
            METER.reset(token)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _STRING_METHODS:
            return False
        if isinstance(obj, int | float):  # such as (1).to_bytes(1000000000); no template needs methods of numbers
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        return None  # no special treatment: str.format is not among the methods allowed

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, for "self=" in templates
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = template_meter.pay_for_call(owner, __obj.__name__, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"the operator {operator} is not allowed here")
        if operator == "*":
            template_meter.pay_for_product(left, right)
        elif operator == "+":
            template_meter.pay_for_sum(left, right)
        return super().call_binop(context, operator, left, right)


class _Metering(NodeTransformer):
    """Rewrites a template's syntax tree: loops pay for every step, and expressions that make a value pay for it."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        literal_text = sum(len(leaf.data) for leaf in node.find_all(nodes.TemplateData))
        node.iter = _filtered(node.iter, "paid_steps", nodes.Const(template_meter.OBJECT_BYTES + literal_text))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        call = node.call
        self.generic_visit(node)
        node.call = call  # must stay a plain call; its result is paid for when it is printed
        return node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        return self._paying(node) if node.ctx == "load" else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "concatenated")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):  # a copy
            return self._paying(node)
        self.generic_visit(node)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:  # noqa: N802
        raise SecurityError("a prompt is plain text: it cannot be escaped for HTML throughout")

    def _paying(self, node: nodes.Expr) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, "paid")

    visit_Call = visit_Filter = visit_List = visit_Dict = _paying  # noqa: N815


class _Generation(Extension):
    """``{% generation %}`` marks the model's answers for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PlainNamespace(Namespace):
    """A namespace that cannot have attributes that begin with an underscore, and does not print its content."""

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


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_DATE:
        raise LimitError(f"it writes a date in {len(format)} characters")
    return datetime.now().strftime(format)
