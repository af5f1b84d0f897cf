"""The broker's REST as a whole: Pulsar's admin paths, the page, the description of both. Part of the composition root.

Importing this module takes a tenth of a second: import it once the binary port listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from anabranch.broker.admin.across import owner_calls, unstored
from anabranch.broker.admin.cluster import (
    absent,
    broker_stats,
    brokers,
    clusters,
    isolation,
    load_manager,
    probes,
    spreading,
    tables,
    tenants,
)
from anabranch.broker.admin.http.app import RestApp
from anabranch.broker.admin.http.docs_page import docs_routes
from anabranch.broker.admin.http.openapi import Description, description_routes
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.http.server import Listening, serve
from anabranch.broker.admin.namespaces import (
    bundle_stories,
    bundles,
    chosen_bundles,
    moved_bundles,
    namespaces,
    permissions,
)
from anabranch.broker.admin.scalable import auto_scale, contents, cursors, segments
from anabranch.broker.admin.scalable import messages as scalable_messages
from anabranch.broker.admin.scalable import topics as scalable
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.settings import namespace as namespace_settings
from anabranch.broker.admin.settings import topic as topic_settings
from anabranch.broker.admin.topics import (
    compaction,
    figures,
    ledgers,
    lookup,
    messages,
    non_persistent,
    read_plans,
    schemas,
    storage,
    subscriptions,
    topics,
    writes,
)
from anabranch.broker.ui.api import inner_page_routes, page_routes
from anabranch.broker.ui.sources import PageSources

# If several routes match a request the first one answers.
TABLES: Sequence[Routes] = (
    clusters.routes,
    isolation.routes,
    spreading.domains,
    spreading.groups,
    tenants.routes,
    # Settings before namespaces: both have routes of the form /{tenant}/{namespace}/{word}.
    namespace_settings.routes,
    auto_scale.namespaces,
    permissions.namespaces,
    namespaces.routes,
    # Last: their routes accept any word as a bundle.
    moved_bundles.routes,
    bundle_stories.routes,
    bundles.routes,
    topics.listing,
    non_persistent.listing,
    # Before the other table of non-persistent topics, whose last routes refuse everything else.
    permissions.non_persistent,
    non_persistent.routes,
    topics.routes,
    figures.routes,
    compaction.routes,
    permissions.topics,
    topic_settings.routes,
    storage.routes,
    subscriptions.routes,
    messages.routes,
    # Before the other tables of scalable topics, which would take its words for the end of a topic's name.
    auto_scale.topics,
    permissions.scalable,
    scalable_messages.routes,
    scalable_messages.by_java,
    cursors.routes,
    cursors.by_java,
    contents.routes,
    contents.by_java,
    topic_settings.scalable,
    topic_settings.by_java,
    scalable.routes,
    segments.routes,
    schemas.routes,
    brokers.routes,
    broker_stats.routes,
    load_manager.routes,
    absent.routes,
    absent.services,
    read_plans.routes,
    ledgers.routes,
    writes.routes,
    tables.routes,
    lookup.routes,
    probes.routes,
)


def create_app(services: AdminServices, page: PageSources) -> RestApp:
    described = tuple(chain.from_iterable(TABLES))
    description = Description(described)
    others = (page_routes(page), docs_routes(description), description_routes(description))
    for_brokers = chain(
        owner_calls.inner,
        unstored.inner,
        bundle_stories.inner,
        chosen_bundles.inner,
        tables.inner,
        inner_page_routes(page),
    )
    app = RestApp(services, chain(described, *others), inner=for_brokers)
    services.elsewhere.serve(app.inner)
    return app


@asynccontextmanager
async def serve_rest(
    services: AdminServices, page: PageSources, listening: Sequence[Listening]
) -> AsyncIterator[None]:
    """Serves from entry to exit, on sockets with TLS or without."""
    app = await asyncio.to_thread(create_app, services, page)
    async with serve(app, services.config, listening):
        yield
