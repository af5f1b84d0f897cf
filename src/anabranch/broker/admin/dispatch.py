"""Finds the route of a request without trying hundreds of them one after the other.

The framework asks every route in turn whether it fits, which costs several times what most answers do. Here a request
follows the words of its path to the few routes that may fit. Those are asked in the order in which they were declared,
so that what answers is what would have answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.broker.admin.path_tree import PathTree

# Of routes that have no path of their own: they are always asked.
_ANY = "/{any:path}"


def include(app: FastAPI, router: APIRouter, *, prefix: str, tags: list[str], in_schema: bool = True) -> None:
    """Declares a router's routes as the application's own. An included router would have to be asked as a whole."""
    for route in router.routes:
        assert isinstance(route, APIRoute), route
        app.add_api_route(
            prefix + route.path,
            route.endpoint,
            methods=sorted(route.methods or ()),
            name=route.name,
            summary=route.summary,
            description=route.description,
            tags=[*tags, *route.tags],
            status_code=route.status_code,
            response_model=route.response_model,
            response_class=route.response_class,
            openapi_extra=route.openapi_extra,
            include_in_schema=in_schema and route.include_in_schema,
        )


class RouteTable:
    """Hands a request to its route. Routes that are declared later are not known to it."""

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp) -> None:
        self._routes = tuple(routes)
        self._tree = PathTree(getattr(route, "path", _ANY) for route in self._routes)
        self._default = default

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._default(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            # What can be got can be asked for with HEAD, as with Pulsar; the server leaves the body out.
            scope["method"] = "GET"
        other_method: tuple[BaseRoute, Scope] | None = None
        for number in self._tree.find(scope["path"]):
            route = self._routes[number]
            match, found = route.matches(scope)
            if match is Match.FULL:
                await _handed(route, found, scope, receive, send)
                return
            if match is Match.PARTIAL and other_method is None:
                other_method = route, found
        if other_method is None:
            await self._default(scope, receive, send)
        else:
            await _handed(*other_method, scope, receive, send)


async def _handed(route: BaseRoute, found: Scope, scope: Scope, receive: Receive, send: Send) -> None:
    scope.update(found)
    await route.handle(scope, receive, send)


def install(app: FastAPI) -> None:
    """Once all routes are declared."""
    app.router.middleware_stack = RouteTable(app.router.routes, app.router.default)
