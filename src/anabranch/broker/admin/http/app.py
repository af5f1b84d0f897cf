"""The REST as an ASGI application: finds a request's route, runs it if the caller has the right that it needs, and
answers with what it returns or raises."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.admin.elsewhere import Alone, InnerAnswer, InnerRequest
from anabranch.broker.admin.http.answer import JSON, HttpAnswer, Send, json_answer, refusal, text_answer
from anabranch.broker.admin.http.authorize import authorize
from anabranch.broker.admin.http.caller import Caller
from anabranch.broker.admin.http.errors import AskElsewhere, RestError, status_of, text_of
from anabranch.broker.admin.http.names import PathNames
from anabranch.broker.admin.http.parameters import bound
from anabranch.broker.admin.http.request import (
    BODY_BYTES_MAX,
    CallerGone,
    HttpRequest,
    Receive,
    inner_request,
)
from anabranch.broker.admin.http.route_table import FoundRoute, RouteTable
from anabranch.broker.admin.http.routes import Route
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.owners import ServedElsewhere
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.controller.core.errors import NotLeader
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import StoreUnavailable
from anabranch.model.names import InvalidName

log = logging.getLogger(__name__)

# A caller that sends `true` is not redirected.
PASS_ON: Final = b"anabranch-pass-on"


class RestApp:
    def __init__(self, services: AdminServices, routes: Iterable[Route], inner: Iterable[Route] = ()) -> None:
        """`inner` are routes for other brokers only."""
        self.table = RouteTable(routes)
        self._inner = RouteTable(inner)
        self._services = services
        # Whatever another broker asks is about this one alone.
        self._own_services = replace(services, elsewhere=Alone())
        self._caller = Caller(
            services.sign_in,
            hides_metrics=services.config.authenticate_metrics_endpoint,
            head_bytes_max=services.config.http_max_request_header_size,
        )
        # Filled at the first request of each route.
        self._bound: dict[Route, Callable[[HttpRequest], Awaitable[Any]]] = {}

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        request = HttpRequest(scope, receive, self._services)
        try:
            answer = await self._answer(request)
        except CallerGone:
            return
        except Exception as error:
            if (refused := await self._refusal(request, error)) is None:
                await refusal(500, f"{type(error).__name__}: {error}").send(send)
                raise  # Logged by the server with its traceback.
            answer = refused
        await answer.send(send)

    async def inner(self, asked: InnerRequest) -> InnerAnswer:
        """The answer to another broker, which has identified the caller. It is never passed on to a third broker."""
        request = inner_request(asked, self._own_services)
        try:
            answer = await self._answer_inner(request)
        except Exception as error:
            refused = await self._refusal(request, error)
            if refused is None:
                log.exception("%s %s, asked by another broker, failed", request.method, request.path)
                refused = refusal(500, f"{type(error).__name__}: {error}")
            answer = refused
        return InnerAnswer(answer.status, await answer.whole(), answer.media_type, dict(answer.headers))

    async def _answer_inner(self, request: HttpRequest) -> HttpAnswer:
        found = self._inner.find(request.method, request.path) or self.table.find(
            request.method, request.path
        )
        if found is None or not found.runs:
            raise RestError(404, f"No such resource: {request.method} {request.path}")
        return await self._run(request, found)

    async def _refusal(self, request: HttpRequest, error: Exception) -> HttpAnswer | None:
        """The answer for that error; None if it is a fault of ours."""
        if isinstance(error, NotLeader):
            error = await self._at_leader(error)
        if isinstance(error, ServedElsewhere) and request.names_topic(error.topic):
            error = AskElsewhere(error.owner, "Ask the topic's owner")
        if isinstance(error, AskElsewhere) and self._passes_on(request):
            try:
                return await self._passed_on(request, error)
            except AnabranchError as refused:
                error = refused
            except CallerGone:
                error = RestError(400, "The request is incomplete")
        if isinstance(error, AnabranchError | InvalidValue):
            return _refused(request, error)
        return None

    def _passes_on(self, request: HttpRequest) -> bool:
        """Whether this broker asks the other one itself: for callers that cannot reach it, or may not follow a redirect
        to it, as the page."""
        is_wanted = self._services.has_one_port or request.header(PASS_ON) == "true"
        return is_wanted and not request.is_inner

    async def _passed_on(self, request: HttpRequest, error: AskElsewhere) -> HttpAnswer:
        """The other broker's answer, for a caller that cannot reach it."""
        query = request.scope["query_string"].decode("latin-1")
        data = await request.read(BODY_BYTES_MAX)
        asked = InnerRequest(request.method, request.path, query, data, request.role)
        answer = await self._services.elsewhere.ask(error.broker, asked)
        if answer.status == error.status:
            raise RestError(503, f"{error}; try again in a moment", {"Retry-After": "1"})  # It has moved.
        return HttpAnswer(answer.body, answer.media_type, answer.status, answer.headers)

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        self._caller.check(request)
        found = self.table.find(request.method, request.path)
        request.role = await self._caller.role(request, found)
        if found is None:
            raise RestError(404, f"No such resource: {request.method} {request.path}")
        if not found.runs:
            text = f"{request.method} is not possible on {request.path}"
            raise RestError(405, text, {"Allow": ", ".join(self.table.methods(request.path))})
        return await self._run(request, found)

    async def _run(self, request: HttpRequest, found: FoundRoute) -> HttpAnswer:
        route = found.route
        request.names = PathNames(found.words, route.domain)
        if request.services.has_others:
            try:
                await _refresh(request.services, request.names)
            except StoreUnavailable:
                if not route.is_served_in_doubt:
                    raise
        await authorize(self._services.rights, request.role, route.needs, request.names)
        run = self._bound.get(route)
        if run is None:
            run = self._bound[route] = bound(route)
        value = await run(request)
        if isinstance(value, HttpAnswer):
            return value
        if route.is_text:
            return text_answer(value)
        return HttpAnswer(b"", JSON, route.status) if value is None else json_answer(value, route.status)

    async def _at_leader(self, error: NotLeader) -> RestError:
        """Leads to the leader, if it is known. Never leads to this broker, or the request would go in circles."""
        is_elsewhere = error.leader not in ("", self._services.service_url)
        if is_elsewhere and (leader := await self._services.registry.find(error.leader)) is not None:
            return AskElsewhere(leader)
        return RestError(503, f"{error}; try again in a moment", {"Retry-After": "1"})


def _elsewhere(request: HttpRequest, error: AskElsewhere) -> HttpAnswer:
    """Redirects to the other broker. A caller that came by TLS is never sent to a port without it: the caller would
    send its token there in clear text."""
    broker = error.broker
    url = broker.http_url_tls if request.is_secure else broker.http_url or broker.http_url_tls
    if not url:
        return refusal(
            503,
            f"{error}: broker {broker.id} answers it, and serves no {'https' if request.is_secure else 'http'}",
        )
    return refusal(error.status, str(error), {"Location": request.at(url)})


async def _refresh(services: AdminServices, names: PathNames) -> None:
    """Reads again what is cached of the namespace and the topic that the request names. A caller that changes something
    and then reads it may reach two brokers, and the second may not have heard of the change yet."""
    if "tenant" not in names or "namespace" not in names:
        return
    # The route, or the check of the caller's right, refuses what is no name.
    with contextlib.suppress(RestError, InvalidName, KeyError):
        await services.resources.refresh(names.namespace)
        if "topic" in names:
            await services.topic_policies.refresh(names.topic)


def _refused(request: HttpRequest, error: Exception) -> HttpAnswer:
    if isinstance(error, AskElsewhere):
        return _elsewhere(request, error)
    status = status_of(error)
    if status in (500, 503):
        log.warning("%s %s answered %d: %s", request.method, request.path, status, error)
    return refusal(status, text_of(error), error.headers if isinstance(error, RestError) else None)
