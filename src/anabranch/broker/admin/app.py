"""The admin application: which routers it has, how paths are read, how errors are answered."""

from __future__ import annotations

import functools
import re

from fastapi import APIRouter, FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

import anabranch
from anabranch.broker import metrics
from anabranch.broker.admin import (
    auto_scale,
    broker_stats,
    brokers,
    bundles,
    clusters,
    compaction,
    dispatch,
    docs_page,
    elsewhere,
    errors,
    ledgers,
    lookup,
    messages,
    namespaces,
    non_persistent,
    openapi,
    permissions,
    read_plans,
    scalable,
    schemas,
    segments,
    settings,
    subscriptions,
    tenants,
    topic_figures,
    topic_settings,
    topic_storage,
    topics,
    writes,
)
from anabranch.broker.admin.caller import Caller
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep
from anabranch.broker.broker import Broker
from anabranch.broker.ui import api as ui

probes = APIRouter()

_SLASHES = re.compile(rb"/+")


class EncodedPaths:
    """Routes on the path as it was sent.

    The server decodes it before routing, and `persistent/public/default/a%2Fb` would have one segment too many.
    Doubled and trailing slashes are dropped on the way, as Pulsar's own server does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw:
            path = _SLASHES.sub(b"/", raw.partition(b"?")[0])
            scope = {**scope, "path": (path.rstrip(b"/") or b"/").decode("latin-1")}
        await self._app(scope, receive, send)


def create_app(broker: Broker) -> FastAPI:
    app = FastAPI(
        title="Anabranch admin",
        version=anabranch.__version__,
        description="Pulsar's v2 admin REST, as far as this broker serves it.",
        redirect_slashes=False,
        # FastAPI's own pages load their scripts from elsewhere, and its description holds up the event loop.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.broker = broker
    errors.install(app)
    app.add_middleware(
        Caller,
        sign_in=broker.sign_in,
        find_route=lambda scope: app.state.find_route(scope),
        hides_metrics=broker.config.authenticate_metrics_endpoint,
        head_bytes_max=broker.config.http_max_request_header_size,
    )
    # Added last, it is the outermost: the others see the path as it is routed.
    app.add_middleware(EncodedPaths)
    app.router.routes += _declared()
    ui.install(app)
    docs_page.install(app)
    openapi.install(app)
    dispatch.install(app, broker.rights)
    return app


@functools.cache
def _declared() -> tuple[BaseRoute, ...]:
    """The routes of all routers. They know nothing of a broker, and declaring them takes 0.4 s: once for a process."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    include = functools.partial(dispatch.include, app)
    include(clusters.router, prefix="/admin/v2/clusters", tags=["clusters"])
    include(tenants.router, prefix="/admin/v2/tenants", tags=["tenants"])
    # Settings before namespaces: both have routes of the shape /{tenant}/{namespace}/{word}.
    include(settings.router, prefix="/admin/v2/namespaces", tags=["namespaces"], needs=Needs.TENANT_ADMIN)
    include(
        auto_scale.namespaces, prefix="/admin/v2/namespaces", tags=["namespaces"], needs=Needs.TENANT_ADMIN
    )
    include(
        permissions.namespaces, prefix="/admin/v2/namespaces", tags=["permissions"], needs=Needs.TENANT_ADMIN
    )
    include(namespaces.router, prefix="/admin/v2/namespaces", tags=["namespaces"], needs=Needs.TENANT_ADMIN)
    # Last: its routes take any word for a bundle.
    include(bundles.router, prefix="/admin/v2/namespaces", tags=["namespaces"], needs=Needs.TENANT_ADMIN)
    include(topics.listing, prefix="/admin/v2", tags=["topics"], needs=Needs.LISTING)
    include(non_persistent.listing, prefix="/admin/v2", tags=["non-persistent topics"], needs=Needs.LISTING)
    # Before the others, whose last route says no to everything else.
    for router in (permissions.non_persistent, non_persistent.router):
        include(
            router,
            prefix="/admin/v2/non-persistent/{tenant}/{namespace}/{topic}",
            tags=["non-persistent topics"],
            needs=Needs.TENANT_ADMIN,
        )
    for router, need in (
        (topics.router, Needs.TENANT_ADMIN),
        (topic_figures.router, Needs.LOOKUP),
        (compaction.router, Needs.TENANT_ADMIN),
        (permissions.topics, Needs.TENANT_ADMIN),
        (topic_settings.router, Needs.TENANT_ADMIN),
        (topic_storage.router, Needs.TENANT_ADMIN),
        (subscriptions.router, Needs.CONSUME),
        (messages.router, Needs.CONSUME),
    ):
        prefix = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
        include(router, prefix=prefix, tags=["topics"], needs=need)
    # Before the others of scalable topics, which would take its words for the end of a topic's name.
    include(
        auto_scale.topics, prefix="/admin/v2/scalable", tags=["scalable topics"], needs=Needs.TENANT_ADMIN
    )
    include(permissions.scalable, prefix="/admin/v2/scalable", tags=["permissions"], needs=Needs.TENANT_ADMIN)
    include(scalable.router, prefix="/admin/v2/scalable", tags=["scalable topics"], needs=Needs.TENANT_ADMIN)
    include(segments.router, prefix="/admin/v2/segments", tags=["segments"])
    include(schemas.router, prefix="/admin/v2/schemas", tags=["schemas"], needs=Needs.TENANT_ADMIN)
    include(brokers.router, prefix="/admin/v2/brokers", tags=["brokers"])
    include(broker_stats.router, prefix="/admin/v2/broker-stats", tags=["brokers"])
    include(elsewhere.bookies, prefix="/admin/v2/bookies", tags=["not served"])
    include(elsewhere.resource_groups, prefix="/admin/v2/resourcegroups", tags=["not served"])
    include(elsewhere.resource_quotas, prefix="/admin/v2/resource-quotas", tags=["not served"])
    include(elsewhere.services, prefix="", tags=["not served"])
    include(read_plans.router, prefix="/admin/v2/anabranch", tags=["read plans"])
    include(ledgers.router, prefix="/admin/v2/anabranch", tags=["read plans"])
    include(writes.router, prefix="/admin/v2/anabranch", tags=["hidden writes"])
    include(lookup.router, prefix="/lookup/v2", tags=["lookup"])
    include(probes, prefix="", tags=["brokers"])
    include(openapi.router, prefix="", tags=[], in_schema=False)
    return tuple(app.routes)


@probes.get("/status.html", response_class=PlainTextResponse)
@needs(Needs.NOTHING)
async def _status() -> str:
    """For load balancers: the broker is up."""
    return "OK"


@probes.get("/metrics", response_class=PlainTextResponse)
@needs(Needs.NOTHING)
async def _metrics(broker: BrokerDep) -> StreamingResponse:
    """Prometheus text."""
    return StreamingResponse(metrics.render(broker), media_type=metrics.CONTENT_TYPE)
