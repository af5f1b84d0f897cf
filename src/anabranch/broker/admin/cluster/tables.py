"""`/admin/v2/anabranch/tables`: which topics are kept as tables, and what their writer says of them.

A topic is one if its policy, its namespace's or the configuration says so. Table writers ask for the list and report
to one broker, which keeps the reports in memory; any broker answers with the reports of all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec

from anabranch.broker.admin.across.all_brokers import heard_from_others
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded_once
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import From
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.admin.topics.logged import PATH
from anabranch.broker.catalog.resources import NamespaceNotFound
from anabranch.broker.observe.table_reports import TableReport
from anabranch.model.names import Domain, NamespaceName, TopicName

routes = Routes("/admin/v2/anabranch/tables", tag="tables")
# What other brokers ask.
inner = Routes("/inner/tables", needs=Needs.NOTHING, is_described=False)


def _tabled(request: HttpRequest) -> TopicName:
    domain, namespace = request.names.domain, request.names.namespace
    if domain not in (Domain.PERSISTENT, Domain.TOPIC):
        raise RestError(412, f"{domain.value}:// has no tables: name a persistent topic or a scalable one")
    return TopicName.parse(f"{domain.value}://{namespace}/{decoded_once(request.names.words['topic'])}")


TabledTopic = Annotated[TopicName, From(_tabled)]
ANSWER_MAX_S: Final = 2.0
MEDIA: Final = "application/msgpack"
_decoded = msgspec.msgpack.Decoder(list[TableReport]).decode


@routes.get("")
async def kept_as_tables(services: AdminServices) -> dict[str, Any]:
    """The topics that are kept as tables, the settings of their writer, and what it last reported of each."""
    config = services.config
    reports = services.table_reports.of(services.now_ms())
    asked = InnerRequest("GET", "/inner/tables/reports")
    for _, answer in await heard_from_others(services.elsewhere, asked, answer_max_s=ANSWER_MAX_S):
        if answer is not None and answer.is_success:
            found = _decoded(answer.body)
            reports = {**{one.topic: one for one in found}, **reports}
    listed = [{"topic": str(name), "mode": mode} async for name, mode in _tables(services)]
    return {
        "tablesUrl": config.tables_url,
        "commitSeconds": config.tables_commit_seconds,
        "commitBytes": config.tables_commit_bytes,
        "mergeBytes": config.tables_merge_bytes,
        "retentionHours": config.tables_retention_hours,
        "tables": listed,
        "reports": [msgspec.to_builtins(reports[name]) for name in sorted(reports)],
    }


@routes.get(PATH, needs=Needs.CONSUME)
async def place_of_table(services: AdminServices, name: TabledTopic) -> dict[str, Any]:
    """Whether a topic is kept as a table, and where all tables are: the topic's is below, under its name and its id."""
    return {
        "topic": str(name),
        "mode": (await services.policies(name)).table_mode,
        "tablesUrl": services.config.tables_url,
    }


@routes.post("/reports", status=204, body=list[TableReport])
async def report(services: AdminServices, request: HttpRequest) -> None:
    """Takes what a writer says of its tables."""
    found = await body(request, list[TableReport])
    services.table_reports.heard(found, services.now_ms())


@inner.get("/reports")
async def reports_here(services: AdminServices) -> HttpAnswer:
    found = list(services.table_reports.of(services.now_ms()).values())
    return HttpAnswer(msgspec.msgpack.encode(found), MEDIA)


async def _tables(services: AdminServices) -> AsyncIterator[tuple[TopicName, str]]:
    """The topics whose mode in force is not off."""
    of_topics: dict[NamespaceName, dict[TopicName, str]] = {}
    for holder, of_topic in services.topic_policies.all().items():
        if of_topic.table_mode is not None:
            of_topics.setdefault(holder.namespace, {})[holder] = of_topic.table_mode
    resources = services.resources
    for tenant in sorted(await resources.tenants()):
        for namespace in sorted(await resources.namespaces(tenant), key=str):
            try:
                policies = await resources.policies(namespace)
            except NamespaceNotFound:
                continue  # Deleted a moment ago.
            mode = policies.table_mode or services.config.tables_default_mode
            own = of_topics.get(namespace, {})
            if mode == "off" and all(one == "off" for one in own.values()):
                continue
            for name in await _names(services, namespace):
                found = (await services.policies(name)).table_mode if own else mode
                if found != "off":
                    yield name, found


async def _names(services: AdminServices, namespace: NamespaceName) -> list[TopicName]:
    """The topics of a namespace that users made: scalable ones, partitioned ones, and others that are no partitions."""
    resources = services.resources
    partitioned = await resources.partitioned_names(namespace, (Domain.PERSISTENT,))
    single = [
        name
        for name in await resources.topic_names(namespace)
        if not (name.is_partition and name.base in partitioned)
    ]
    found = {*await resources.scalable_names(namespace), *partitioned, *single}
    return sorted((name for name in found if not name.is_system), key=str)
