"""Finds the route of a request, and has it run once the caller is known to have the right that the route needs.

The framework asks every route in turn whether it fits, which costs several times what most answers do. Here a request
follows the words of its path to the few routes that may fit. Those are asked in the order in which they were declared,
so that what answers is what would have answered.

The route is found once, by `Caller`, which must know whether the route needs a name at all. What was found is what
runs, under the need that was declared for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch.broker.admin.authorize import authorize
from anabranch.broker.admin.needs import Needs, declared
from anabranch.broker.admin.path_tree import PathTree
from anabranch.broker.admin.request_scope import FOUND, ROLE, Found
from anabranch.broker.authorization import Rights

# Of routes that have no path of their own: they are always asked.
_ANY: Final = "/{any:path}"


class NeedyRoute(APIRoute):
    """A route that knows what it needs. What is declared without a need is for super users."""

    needs = Needs.SUPER_USER


def add_route(
    app: FastAPI, path: str, route: APIRoute, *, needs: Needs, tags: Sequence[str], in_schema: bool
) -> None:
    """Declares a router's route as the application's own."""
    app.router.add_api_route(
        path,
        route.endpoint,
        methods=sorted(route.methods or ()),
        name=route.name,
        summary=route.summary,
        description=route.description,
        tags=[*tags, *route.tags],
        status_code=route.status_code,
        response_model=route.response_model,
        response_class=route.response_class,
        dependencies=route.dependencies,
        openapi_extra=route.openapi_extra,
        include_in_schema=in_schema and route.include_in_schema,
        route_class_override=NeedyRoute,
    )
    made = app.router.routes[-1]
    assert isinstance(made, NeedyRoute), made
    made.needs = declared(route.endpoint, needs)


def include(
    app: FastAPI,
    router: APIRouter,
    *,
    prefix: str,
    tags: list[str],
    needs: Needs = Needs.SUPER_USER,
    in_schema: bool = True,
) -> None:
    """Declares a router's routes as the application's own. An included router would have to be asked as a whole.

    `needs` is what those of its routes need that do not say so themselves."""
    for route in router.routes:
        assert isinstance(route, APIRoute), route
        add_route(app, prefix + route.path, route, needs=needs, tags=tags, in_schema=in_schema)


def needs_of(route: BaseRoute) -> Needs:
    return route.needs if isinstance(route, NeedyRoute) else Needs.SUPER_USER


class RouteTable:
    """Hands a request to its route. Routes that are declared later are not known to it."""

    def __init__(self, routes: Sequence[BaseRoute], default: ASGIApp, rights: Rights) -> None:
        self._routes = tuple(routes)
        self._paths = tuple(getattr(route, "path", _ANY) for route in self._routes)
        self._needs = tuple(map(needs_of, self._routes))
        self._tree = PathTree(self._paths)
        self._default = default
        self._rights = rights

    def find(self, scope: Scope) -> Found | None:
        """The route that answers the request; None if there is nothing at its path."""
        if scope["method"] == "HEAD":
            # What can be got can be asked for with HEAD, as with Pulsar; the server leaves the body out.
            scope = {**scope, "method": "GET"}
        other_method: Found | None = None
        for number in self._tree.find(scope["path"]):
            route = self._routes[number]
            match, matched = route.matches(scope)
            if match is Match.FULL:
                return Found(route, self._paths[number], self._needs[number], matched, runs=True)
            if match is Match.PARTIAL and other_method is None:
                other_method = Found(route, self._paths[number], self._needs[number], matched, runs=False)
        return other_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._default(scope, receive, send)
            return
        found: Found | None = scope[FOUND]
        if found is None:
            await self._default(scope, receive, send)
            return
        if found.runs:
            names = found.matched.get("path_params", {})
            await authorize(self._rights, scope[ROLE], found.needs, found.path, names)
        if scope["method"] == "HEAD":
            scope["method"] = "GET"
        scope.update(found.matched)
        await found.route.handle(scope, receive, send)


def install(app: FastAPI, rights: Rights) -> None:
    """Once all routes are declared."""
    table = RouteTable(app.router.routes, app.router.default, rights)
    app.state.find_route = table.find
    app.router.middleware_stack = table
