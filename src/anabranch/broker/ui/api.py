"""`/ui`: the page's files, and what it asks for under `/ui/api`.

Anybody may load the files: they say nothing about any topic. Everything under `/ui/api` asks for the same rights as the
admin REST; splits, merges and policies are changed there, with its own routes. Each answer forbids the page to load or
send anything anywhere else.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse

from anabranch.broker.admin.dispatch import include
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, NamespaceDep, RoleDep, decoded_once
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.broker import Broker
from anabranch.broker.ui.overview import Names, overview_json
from anabranch.broker.ui.river import classic_json, topic_json
from anabranch.controller.ports import NotLeader
from anabranch.model.names import Domain, TopicName

router = APIRouter()
home = APIRouter()

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
SINCE_MAX: Final = 2**53

Since = Annotated[int, Query(ge=0, le=SINCE_MAX)]


def install(app: FastAPI) -> None:
    app.state.ui_names = Names()
    include(app, router, prefix="/ui", tags=["page"], in_schema=False)
    include(app, home, prefix="", tags=["page"], in_schema=False)


@home.get("/")
@needs(Needs.NOTHING)
async def _home() -> RedirectResponse:
    return RedirectResponse("/ui", headers=HEADERS)


# -- what the page asks for


@router.get("/api/overview")
@needs(Needs.ROUTE)
async def overview(
    request: Request,
    broker: BrokerDep,
    role: RoleDep,
    response: Response,
    since: Since = 0,
    q: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any]:
    _guard(response)
    return await overview_json(broker, request.app.state.ui_names, role, since, q.strip())


@router.get("/api/topics/{tenant}/{namespace}/{topic:path}")
@needs(Needs.ROUTE)
async def topic(
    broker: BrokerDep,
    role: RoleDep,
    namespace: NamespaceDep,
    topic: str,
    response: Response,
    since: Since = 0,
    layout: Annotated[str, Query(max_length=64)] = "",
) -> dict[str, Any]:
    """For those who administer the topic. Splits and merges are for super users, as in the admin REST."""
    name = TopicName(Domain.TOPIC, namespace, decoded_once(topic))
    await broker.rights.administer(role, name)
    _guard(response)
    if broker.scalable is None:
        return await classic_json(broker, name, since)
    try:
        found = await topic_json(broker, name, since, layout)
    except NotLeader as elsewhere:
        # A redirect would lead the page away from its own origin, which it may not follow: it shows a link instead.
        web_url = await broker.registry.web_url(elsewhere.leader) if elsewhere.leader else ""
        if not web_url:
            raise
        return {"now": broker.now_ms(), "topic": str(name), "kind": "elsewhere", "url": f"{web_url}/ui"}
    return found | {"may": await _may_change(broker, role)}


async def _may_change(broker: Broker, role: str) -> dict[str, Any]:
    try:
        await broker.rights.super_user(role)
    except NotAuthorizedError:
        return {"change": False, "because": "splits and merges are for super users"}
    return {"change": True, "because": ""}


def _guard(response: Response) -> None:
    response.headers.update(HEADERS | {"Cache-Control": "no-store"})


# -- files


@lru_cache(maxsize=64)
def static_file(path: str) -> tuple[bytes, str] | None:
    """The bytes and their tag; None if there is none. Only plain names below the folder of files are looked at."""
    parts = path.split("/")
    suffix = path.rpartition(".")[2]
    if suffix not in TYPES or not all(p.replace("_", "").replace(".", "", 1).isalnum() for p in parts):
        return None
    found = resources.files("anabranch.broker.ui").joinpath("static", *parts)
    if not found.is_file():
        return None
    data = found.read_bytes()
    return data, f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'


@router.get("")
@needs(Needs.NOTHING)
async def page(request: Request) -> Response:
    return await file(request, "index.html")


@router.get("/{path:path}")
@needs(Needs.NOTHING)
async def file(request: Request, path: str) -> Response:
    found = None if path.startswith("api/") else static_file(path)
    if found is None:
        raise RestError(404, f"The page has no file {path}")
    data, tag = found
    # Asked for each time, and sent only when it changed: a new version of the broker is a new page at once.
    headers = HEADERS | {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=TYPES[path.rpartition(".")[2]], headers=headers)
