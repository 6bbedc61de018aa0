"""The page ``/docs``: the routes and their fields, from the server's own description. It needs no net."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
summary { cursor: pointer; padding: .3rem 0; }
code, td:first-child { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; margin: .3rem 0 1rem; }
td { padding: .15rem 1.5rem .15rem 0; vertical-align: top; }
"""


def add_reference(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": _POLICY})


def page(description: dict[str, Any]) -> str:
    """An OpenAPI description as a page."""
    info, schemas = description["info"], description.get("components", {}).get("schemas", {})
    parts = [f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"]
    parts.append('<p>The whole description, for programs: <a href="openapi.json">openapi.json</a></p>')
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            parts += _route(method.upper(), path, route, schemas)
    head = f'<meta charset="utf-8"><title>{escape(info["title"])}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _route(method: str, path: str, route: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    title = f"<code>{method} {escape(path)}</code>"
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    schema = schemas.get(_name(body), body)
    rows = [
        f"<tr><td>{escape(field)}</td><td>{escape(_kind(about))}</td><td>{_default(about, field, schema)}</td></tr>"
        for field, about in schema.get("properties", {}).items()
    ]
    if not rows:
        yield f"<p>{title}</p>"
        return
    yield f"<details><summary>{title}</summary><p>{escape(schema.get('description', ''))}</p>"
    yield f"<table>{''.join(rows)}</table></details>"


def _kind(about: dict[str, Any]) -> str:
    """The type of a field, in short."""
    if "anyOf" in about or "oneOf" in about:
        kinds = [_kind(option) for option in about.get("anyOf") or about["oneOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "const" in about or "enum" in about:
        return " or ".join(repr(value) for value in about.get("enum", [about.get("const")]))
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items', {}))}"
    return str(about.get("type") or _name(about) or "anything")


def _default(about: dict[str, Any], field: str, schema: dict[str, Any]) -> str:
    if field in schema.get("required", ()):
        return "required"
    return "" if about.get("default") is None else escape(repr(about["default"]))


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
