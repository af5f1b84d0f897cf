"""`/ui`: the page's files, and the data that it requests under `/ui/api`.

The files need no right: they contain nothing about any topic. Everything under `/ui/api` needs the same rights as in
the admin REST; the page changes splits, merges and policies with the routes of the admin REST. Each answer forbids the
page to load or send anything anywhere else.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any, Final

import msgspec

from anabranch.broker.admin.across.owner_calls import MEDIA
from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.security.rights import NotAuthorizedError, Rights
from anabranch.broker.ui.browse import SHOWN_MAX, Look, messages_json
from anabranch.broker.ui.cluster import Traffic, cluster_json, cluster_part
from anabranch.broker.ui.joined import from_leader, joined, river_part
from anabranch.broker.ui.overview import Names, overview_json, overview_part
from anabranch.broker.ui.river import classic_json, topic_json
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.core.errors import NotLeader
from anabranch.model.names import Domain, TopicName

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
# More than any file of the page has, and less than a system accepts.
PATH_CHARS_MAX: Final = 100

# Either end, milliseconds since 1970, or a position.
START: Final = r"^(earliest|latest|[0-9]{1,15}|[0-9]{1,18}:[0-9]{1,18})\Z"

Since = Annotated[int, msgspec.Meta(ge=0, le=SINCE_MAX)]
_DATA_HEADERS: Final = HEADERS | {"Cache-Control": "no-store"}


def page_routes(sources: PageSources) -> Routes:
    routes = Routes("", tag="page", needs=Needs.NOTHING, domain=Domain.TOPIC, is_described=False)
    names, traffic = Names(), Traffic()

    @routes.get("/ui/api/overview", needs=Needs.ROUTE)
    async def overview(
        role: Role, since: Since = 0, q: Annotated[str, msgspec.Meta(max_length=200)] = ""
    ) -> HttpAnswer:
        return _shown(await overview_json(sources, names, role, since, q.strip()))

    @routes.get("/ui/api/cluster", needs=Needs.ROUTE)
    async def cluster(role: Role, since: Since = 0) -> HttpAnswer:
        return _shown(await cluster_json(sources, traffic, role, since))

    @routes.get("/ui/api/topics/{tenant}/{namespace}/{topic:path}", needs=Needs.ROUTE)
    async def topic(
        request: HttpRequest,
        role: Role,
        topic: TopicName,
        since: Since = 0,
        layout: Annotated[str, msgspec.Meta(max_length=64)] = "",
    ) -> HttpAnswer:
        found = await _topic_json(sources, role, topic, since, layout, is_inner=request.is_inner)
        if sources.has_others and not request.is_inner and found["kind"] != "elsewhere":
            found = await joined(sources, topic, found, since)
        # For what the page proposes to type.
        return _shown(found | {"serviceUrl": sources.service_url})

    @routes.get("/ui/api/messages/{tenant}/{namespace}/{topic:path}", needs=Needs.ROUTE)
    async def messages(
        role: Role,
        topic: TopicName,
        start: Annotated[str, msgspec.Meta(pattern=START, max_length=40)] = "latest",
        key: Annotated[str, msgspec.Meta(max_length=1000)] = "",
        count: Annotated[int, msgspec.Meta(ge=1, le=SHOWN_MAX)] = 20,
    ) -> HttpAnswer:
        return _shown(await messages_json(sources, role, topic, Look(start, key, count)))

    @routes.get("/ui")
    async def index(request: HttpRequest) -> HttpAnswer:
        return _file(request, "index.html")

    @routes.get("/ui/{path:path}")
    async def file(request: HttpRequest, path: str) -> HttpAnswer:
        return _file(request, path)

    @routes.get("/")
    async def home() -> HttpAnswer:
        return HttpAnswer(status=307, headers=HEADERS | {"Location": "/ui"})

    return routes


def inner_page_routes(sources: PageSources) -> Routes:
    """What other brokers ask for their pages."""
    routes = Routes("/inner/ui", needs=Needs.NOTHING, domain=Domain.TOPIC, is_described=False)
    names, traffic = Names(), Traffic()

    @routes.get("/cluster")
    async def cluster(first: bool = False) -> HttpAnswer:
        part = await cluster_part(sources, traffic, is_first=first)
        return HttpAnswer(msgspec.msgpack.encode(part), MEDIA)

    @routes.get("/overview")
    async def overview(since: Since = 0, q: str = "") -> HttpAnswer:
        return HttpAnswer(msgspec.msgpack.encode(await overview_part(sources, names, since, q)), MEDIA)

    @routes.get("/topics/{tenant}/{namespace}/{topic:path}")
    async def topic(topic: TopicName, since: Since = 0, classic: bool = False) -> HttpAnswer:
        part = river_part(sources, topic, since, is_classic=classic)
        return HttpAnswer(msgspec.msgpack.encode(part), MEDIA)

    return routes


# -- data for the page


async def _topic_json(
    sources: PageSources, role: str, topic: TopicName, since: int, layout: str, *, is_inner: bool
) -> dict[str, Any]:
    """For roles that administer the topic. Splits and merges are for super users, as in the admin REST."""
    await sources.rights.administer(role, topic)
    if sources.scalable is None:
        return await classic_json(sources, topic, since)
    try:
        found = await topic_json(sources, topic, since, layout)
    except NotLeader as elsewhere:
        if not is_inner and (told := await from_leader(sources, elsewhere, role, topic, since, layout)):
            return told
        # A redirect would lead the page to another origin, which it may not follow: it shows a link instead.
        web_url = await sources.registry.web_url(elsewhere.leader) if elsewhere.leader else ""
        if not web_url:
            raise
        return {"now": sources.now_ms(), "topic": str(topic), "kind": "elsewhere", "url": f"{web_url}/ui"}
    return found | {"may": await _may_change(sources.rights, role)}


async def _may_change(rights: Rights, role: str) -> dict[str, Any]:
    try:
        await rights.super_user(role)
    except NotAuthorizedError:
        return {"change": False, "because": "splits and merges are for super users"}
    return {"change": True, "because": ""}


def _shown(value: dict[str, Any]) -> HttpAnswer:
    return json_answer(value, headers=_DATA_HEADERS)


# -- files


@lru_cache(maxsize=64)
def static_file(path: str) -> tuple[bytes, str] | None:
    """The bytes and their tag; None if there is none. Only plain names below the folder of files are accepted."""
    if len(path) > PATH_CHARS_MAX:
        return None
    parts = path.split("/")
    suffix = path.rpartition(".")[2]
    if suffix not in TYPES or not all(p.replace("_", "").replace(".", "", 1).isalnum() for p in parts):
        return None
    found = resources.files("anabranch.broker.ui").joinpath("static", *parts)
    if not found.is_file():
        return None
    data = found.read_bytes()
    return data, f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'


def _file(request: HttpRequest, path: str) -> HttpAnswer:
    found = None if path.startswith("api/") else static_file(path)
    if found is None:
        raise RestError(404, f"The page has no file {path}")
    data, tag = found
    # Revalidated each time, and sent only if changed: after an upgrade of the broker the page is new at once.
    headers = HEADERS | {"ETag": tag, "Cache-Control": "no-cache"}
    if request.header(b"if-none-match") == tag:
        return HttpAnswer(status=304, headers=headers)
    return HttpAnswer(data, TYPES[path.rpartition(".")[2]], headers=headers)
