"""Imports point one way: each package imports only from those below it, and there are no import cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# The lowest first; rooms of one line do not know each other.
FLOORS = (
    ("errors",),
    ("progress",),
    ("cache",),
    ("model",),
    ("program", "train"),
    ("lanes",),
    ("target",),
    ("engine",),
    ("bench", "serve"),
    ("planner", "cluster"),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


def imported(path: Path, when_loaded: bool) -> Iterator[str]:
    """Modules of ours that a file imports; ``when_loaded``: without those of functions and of type checkers."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (when_loaded and (typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
            todo += ast.iter_child_nodes(node)


@pytest.mark.parametrize("room", FLOOR)
def test_a_room_imports_from_those_below_it(room: str) -> None:
    for module, path in MODULES.items():
        if module.split(".")[1:2] != [room]:
            continue
        for other in imported(path, when_loaded=False):
            parts = other.split(".")
            if parts[0] == "monolane" and len(parts) > 1 and parts[1] != room:
                assert FLOOR[parts[1]] < FLOOR[room], f"{module} imports {other}"


def test_who_may_import_torch() -> None:
    for module, path in MODULES.items():
        if not module.startswith(("monolane.bench.peers", "monolane.train")):
            others = {other.split(".")[0] for other in imported(path, when_loaded=False)}
            assert not others & {"torch", "transformers"}, f"{module} imports them"


def test_no_circle_of_imports() -> None:
    graph = {
        module: {other for other in imported(path, when_loaded=True) if other in MODULES and other != module}
        for module, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' → '.join(error.args[1])}")
