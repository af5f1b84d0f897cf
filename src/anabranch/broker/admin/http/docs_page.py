"""`/docs`: the REST for people. One page generated from `/openapi.json`, without scripts or external resources."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.openapi import Description
from anabranch.broker.admin.http.routes import Routes

STYLE: Final = """
:root { color-scheme: light dark; --ink: light-dark(#1b2430, #e6ebf2); --soft: light-dark(#5b6776, #9aa7b8);
  --line: light-dark(#d9dfe7, #2d3846); --ground: light-dark(#fbfcfd, #141a22); --raised: light-dark(#fff, #1b232d) }
body { margin: 0; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground) }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 6rem }
h1 { margin: 0 } h2 { margin: 2.5rem 0 .5rem; padding-top: .5rem; text-transform: capitalize }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0 }
a { color: light-dark(#0b5cad, #7cb7f5) } p { margin: .5rem 0 }
details { border: 1px solid var(--line); border-radius: 6px; margin: .3rem 0; background: var(--raised) }
summary { display: flex; gap: .75rem; align-items: baseline; padding: .35rem .6rem; cursor: pointer; list-style: none }
summary::-webkit-details-marker { display: none }
details > div { padding: 0 .8rem .8rem; border-top: 1px solid var(--line) }
code, pre, .path { font: 13px/1.5 ui-monospace, monospace } .path { overflow-wrap: anywhere }
.says { margin-left: auto; color: var(--soft); text-align: right }
.method { flex: none; width: 4.2rem; font-weight: 600; font-size: 12px }
.get { color: light-dark(#0a6b3d, #63cf95) } .put, .post { color: light-dark(#8a5a00, #e2b04f) }
.delete { color: light-dark(#b3261e, #f2938c) }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top } th { color: var(--soft); font-weight: 500 }
pre { overflow-x: auto; background: var(--ground); border: 1px solid var(--line); border-radius: 6px; padding: .5rem }
"""
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
Schemas = Mapping[str, Any]


def docs_routes(description: Description) -> Routes:
    routes = Routes("", needs=Needs.NOTHING, is_described=False)

    @routes.get("/docs")
    async def docs() -> HttpAnswer:
        made = await description.form("page", lambda described: page(described).encode())
        return HttpAnswer(made, "text/html; charset=utf-8", headers=HEADERS)

    return routes


def page(described: Mapping[str, Any]) -> str:
    by_tag: dict[str, list[str]] = {}
    schemas = described["components"]["schemas"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            shown = _operation(method, path, operation, schemas)
            by_tag.setdefault((operation.get("tags") or ["others"])[0], []).append(shown)
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in by_tag)
    parts = "".join(
        f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{"".join(ops)}' for tag, ops in by_tag.items()
    )
    info = described["info"]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])}</title><style>{STYLE}</style><main><h1>{escape(info['title'])}</h1>"
        f"<p>{escape(info['description'])} Version {escape(info['version'])}. "
        'The same for machines: <a href="/openapi.json">openapi.json</a>.</p>'
        "<p>What cannot be done is answered with a status of 400 and above and a body of "
        '<code>{"reason": "…"}</code> that says why.</p>'
        f"<nav>{links}</nav>{parts}</main></html>"
    )


def _anchor(tag: str) -> str:
    return tag.replace(" ", "-")


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Schemas) -> str:
    text = str(operation.get("description", ""))
    first, _, rest = text.partition("\n\n")
    rows = "".join(_parameters(operation, schemas))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    example = "" if body is None else json.dumps(_example(body, schemas, 0), indent=1)
    return (
        f'<details><summary><span class="method {method}">{method.upper()}</span>'
        f'<span class="path">{escape(path)}</span>'
        f'<span class="says">{escape(_brief(operation, first))}</span></summary>'
        f"<div>{_paragraphs(first, rest)}"
        + (f"<table><tr><th>Parameter<th>In<th>Type<th>Default</tr>{rows}</table>" if rows else "")
        + (f"<p>Body, for instance:</p><pre>{escape(example)}</pre>" if body is not None else "")
        + f"<pre>{escape(_curl(method, path, body is not None))}</pre></div></details>"
    )


def _brief(operation: Mapping[str, Any], first: str) -> str:
    return str(operation.get("summary", "")) if not first else first.partition(".")[0][:70]


def _paragraphs(first: str, rest: str) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in (first, *rest.split("\n\n")) if text.strip())


def _parameters(operation: Mapping[str, Any], schemas: Schemas) -> Iterator[str]:
    for one in operation.get("parameters", ()):
        schema = one.get("schema", {})
        default = "" if "default" not in schema else json.dumps(schema["default"])
        yield (
            f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}<td>{escape(_kind(schema, schemas))}"
            f"<td><code>{escape(default)}</code></tr>"
        )


def _kind(schema: Mapping[str, Any], schemas: Schemas) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "$ref" in schema:
        return _kind(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return " or ".join(_kind(one, schemas) for one in schema["anyOf"])
    return str(schema.get("type", "any"))


def _example(schema: Mapping[str, Any], schemas: Schemas, depth: int) -> Any:
    """An example of that schema, with defaults where it has them."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if one.get("type") != "null"]
        return _example(kinds[-1], schemas, depth) if kinds else None
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        parts = schema.get("properties", {}) if depth < 2 else {}
        return {name: _example(part, schemas, depth + 1) for name, part in parts.items()}
    if schema.get("default") is not None:
        return schema["default"]
    return {"integer": 1, "number": 1.0, "boolean": True, "string": "text", "array": []}.get(
        schema.get("type", "")
    )


def _curl(method: str, path: str, has_body: bool) -> str:
    verb = "" if method == "get" else f"-X {method.upper()} "
    data = "-H 'Content-Type: application/json' -d '…' " if has_body else ""
    return f"curl {verb}{data}http://localhost:8080{path}"
