"""The description of the REST at `/openapi.json`, generated from the table of routes."""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

import anabranch
from anabranch.broker.admin.http.answer import JSON, HttpAnswer
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Parameter, asked_by
from anabranch.broker.admin.http.routes import Route, Routes
from anabranch.model.names import Domain

_REF: Final = "#/components/schemas/{name}"
_NAME: Final = re.compile(r"\{(\w+)(?::path)?\}")
_REFUSED: Final = {
    "description": "Refused; the body says why.",
    "content": {JSON: {"schema": {"$ref": _REF.format(name="Refusal")}}},
}
_REFUSAL: Final = {
    "type": "object",
    "required": ["reason"],
    "properties": {"reason": {"type": "string", "description": "What is wrong, and what to do about it."}},
}


class Description:
    """The description in both its forms. Each is generated at its first request, in a thread, and kept."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._made: dict[str, bytes] = {}
        self._making = asyncio.Lock()

    async def form(self, name: str, made_of: Callable[[dict[str, Any]], bytes]) -> bytes:
        async with self._making:
            if name not in self._made:
                # Hundreds of routes take a while.
                self._made[name] = await asyncio.to_thread(lambda: made_of(described(self._routes)))
            return self._made[name]


def description_routes(description: Description) -> Routes:
    routes = Routes("", needs=Needs.NOTHING, is_described=False)

    @routes.get("/openapi.json")
    async def openapi() -> HttpAnswer:
        return HttpAnswer(await description.form("json", msgspec.json.encode), JSON)

    return routes


def described(routes: Iterable[Route]) -> dict[str, Any]:
    components: dict[str, Any] = {"Refusal": _REFUSAL}
    paths: dict[str, Any] = {}
    for route in routes:
        if route.is_described:
            operation = _operation(route, components)
            for path, word in route.paths():
                path = _NAME.sub(r"{\1}", path)
                one = {**operation, "operationId": _operation_id(route, path, word)}
                if word:
                    one["summary"] = f"{word} {route.summary}"
                paths.setdefault(path, {}).setdefault(route.method.lower(), one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Anabranch admin",
            "description": "Pulsar's v2 admin REST, as far as this broker serves it.",
            "version": anabranch.__version__,
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation_id(route: Route, path: str, word: str) -> str:
    name = f"{route.method.lower()}_{word}" if word else route.name
    return re.sub(r"\W", "_", f"{name}{path}_{route.method.lower()}")


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.summary or route.name.replace("_", " ").title(),
        "parameters": list(_parameters(route, components)),
        "responses": {str(route.status): _answered(route, components), "4XX": _REFUSED},
    }
    if text := inspect.getdoc(route.handler):
        operation["description"] = text
    if route.body is not None:
        schema = _schema(route.body, components)
        operation["requestBody"] = {"required": False, "content": {JSON: {"schema": schema}}}
    return operation


def _parameters(route: Route, components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    asked = [one for one in asked_by(route).values() if isinstance(one, Parameter)]
    kinds = {"domain": Domain} | {one.name: one.kind for one in asked if one.in_path}
    for name in _NAME.findall(route.path):
        if name != route.word_name:
            schema = _schema(kinds.get(name, str), components)
            yield {"name": name, "in": "path", "required": True, "schema": schema}
    for one in asked:
        if not one.in_path:
            schema = _schema(one.kind, components)
            if not one.is_required and one.default is not None:
                schema = {**schema, "default": one.default}
            yield {"name": one.name, "in": "query", "required": one.is_required, "schema": schema}
    if route.parameter is not None:
        schema = _schema(route.body, components)
        yield {"name": route.parameter, "in": "query", "required": False, "schema": schema}


def _answered(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    said = {"description": "Successful Response"}
    if route.status == 204:
        return said
    if route.is_text:
        return {**said, "content": {"text/plain": {"schema": {"type": "string"}}}}
    kind = route.answers or typing.get_type_hints(route.handler).get("return")
    is_open = kind in (None, type(None), HttpAnswer) or HttpAnswer in typing.get_args(kind)
    return {**said, "content": {JSON: {"schema": {} if is_open else _schema(kind, components)}}}


def _schema(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    (schema,), found = msgspec.json.schema_components([kind], ref_template=_REF)
    components.update(found)
    return dict(schema)
