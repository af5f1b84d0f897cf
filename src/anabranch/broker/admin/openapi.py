"""The description of the REST at `/openapi.json`: what bodies look like, and how a refusal looks.

Bodies are read by `params.body`, which FastAPI cannot see into; each route says with `takes` what it reads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from anabranch.broker.admin.needs import Needs, needs

_NAMES = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"
# Filled by `takes` while the routes are being made.
_components: dict[str, Any] = {
    "Refusal": {
        "type": "object",
        "required": ["reason"],
        "properties": {
            "reason": {"type": "string", "description": "What is wrong, and what to do about it."}
        },
    }
}
_REFUSED = {
    "description": "Refused; the body says why.",
    "content": {"application/json": {"schema": {"$ref": _REF.format(name="Refusal")}}},
}


def takes(kind: Any, *, parameter: str | None = None, is_required: bool = False) -> dict[str, Any]:
    """What a route adds to its description: it reads a body of this type, or a parameter instead of it."""
    (schema,), found = msgspec.json.schema_components([kind], ref_template=_REF)
    _components.update(found)
    extra: dict[str, Any] = {
        "requestBody": {"required": is_required, "content": {"application/json": {"schema": schema}}}
    }
    if parameter is not None:
        extra["parameters"] = [{"name": parameter, "in": "query", "required": False, "schema": schema}]
    return extra


def _name_all(path: str, operation: dict[str, Any]) -> None:
    """Routes that refuse whatever they are asked read no names; their path has them all the same."""
    known = {one["name"] for one in operation.get("parameters", ())}
    missing = [name for name in _NAMES.findall(path) if name not in known]
    operation["parameters"] = [
        *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in missing),
        *operation.get("parameters", ()),
    ]


router = APIRouter()


class Description:
    """The description in both its forms. Each is made at its first request, beside the event loop, and kept."""

    def __init__(self, describe: Callable[[], dict[str, Any]]) -> None:
        self._describe = describe
        self._made: dict[str, bytes] = {}
        self._making = asyncio.Lock()

    async def form(self, name: str, made_of: Callable[[dict[str, Any]], bytes]) -> bytes:
        async with self._making:
            if name not in self._made:
                # Hundreds of routes take a fifth of a second.
                self._made[name] = await asyncio.to_thread(lambda: made_of(self._describe()))
            return self._made[name]


@router.get("/openapi.json")
@needs(Needs.NOTHING)
async def description(request: Request) -> Response:
    data = await request.app.state.description.form("json", msgspec.json.encode)
    return Response(data, media_type="application/json")


def install(app: FastAPI) -> None:
    """Serves the description with the bodies' types in it."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            described.setdefault("components", {}).setdefault("schemas", {}).update(_components)
            for path, operations in described["paths"].items():
                for operation in operations.values():
                    _name_all(path, operation)
                    # FastAPI promises its own form of a refusal; ours has one for all of them.
                    operation["responses"].pop("422", None)
                    operation["responses"]["4XX"] = _REFUSED
            for unused in ("HTTPValidationError", "ValidationError"):
                described["components"]["schemas"].pop(unused, None)
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = describe  # type: ignore[method-assign]  # FastAPI's own way to replace it.
    app.state.description = Description(describe)
