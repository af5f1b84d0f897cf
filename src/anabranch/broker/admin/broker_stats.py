"""`/admin/v2/broker-stats`: what this broker serves and how busy it is, for tools that poll JSON."""

from __future__ import annotations

import os
import resource
from typing import Any

from fastapi import APIRouter, Response

from anabranch.broker.admin.bundles import open_bundles
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.large import in_turns, json_answer
from anabranch.broker.admin.params import BrokerDep, NamespaceDep
from anabranch.broker.topic_stats import topic_stats
from anabranch.model.names import TopicName

router = APIRouter()


@router.get("/topics", response_model=dict[str, Any])
async def topics(broker: BrokerDep) -> Response:
    """Every open topic's figures, by namespace, bundle and domain."""
    found: dict[str, Any] = {}
    async for name, bundle in in_turns(sorted((await open_bundles(broker)).items(), key=_text), 100):
        if (topic := broker.opened(name)) is not None:
            by_domain = found.setdefault(str(name.namespace), {}).setdefault(bundle, {})
            by_domain.setdefault(name.domain.value, {})[str(name)] = topic_stats(topic)
    return json_answer(found)


def _text(item: tuple[TopicName, str]) -> str:
    return str(item[0])


@router.get("/metrics")
async def metrics(broker: BrokerDep) -> list[dict[str, Any]]:
    """A handful of figures in the shape of Pulsar's; `/metrics` has them all."""
    topics = broker.loaded().values()
    figures = {
        "brk_connection_created_total_count": broker.connections_total,
        "brk_active_connections_count": len(broker.sessions),
        "brk_no_of_topics": len(topics),
        "brk_no_of_producers": sum(len(topic.producers) for topic in topics),
        "brk_no_of_consumers": sum(len(s.consumers) for t in topics for s in t.subscriptions.values()),
        "brk_in_rate": sum(topic.rates_in[0] for topic in topics),
        "brk_in_tp_rate": sum(topic.rates_in[1] for topic in topics),
    }
    return [{"metrics": figures, "dimensions": {"cluster": broker.config.cluster_name, "metric": "broker"}}]


@router.get("/mbeans")
async def mbeans() -> list[dict[str, Any]]:
    """Always none: they are Java's."""
    return []


@router.get("/load-report")
async def load_report(broker: BrokerDep) -> dict[str, Any]:
    """In the shape of Pulsar's LocalBrokerData."""
    topics = broker.loaded()
    found = await open_bundles(broker)
    bundles = sorted({f"{name.namespace}/{bundle}" for name, bundle in found.items()})
    rates_in = [topic.rates_in for topic in topics.values()]
    consumers = [c for t in topics.values() for s in t.subscriptions.values() for c in s.consumers]
    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrl": broker.http_url,
        "pulsarServiceUrl": broker.service_url,
        "pulsarServiceUrlTls": broker.service_url_tls or None,
        "brokerVersionString": broker.server_version,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "protocols": {},
        "startTimestamp": broker.started_ms,
        "lastUpdate": broker.now_ms(),
        **_usage(),
        "msgRateIn": sum(rate[0] for rate in rates_in),
        "msgThroughputIn": sum(rate[1] for rate in rates_in),
        "msgRateOut": sum(consumer.rates[0] for consumer in consumers),
        "msgThroughputOut": sum(consumer.rates[1] for consumer in consumers),
        "numTopics": len(topics),
        "numBundles": len(bundles),
        "numConsumers": len(consumers),
        "numProducers": sum(len(topic.producers) for topic in topics.values()),
        "bundles": bundles,
    }


def _usage() -> dict[str, Any]:
    """Megabytes and percent, each with its limit."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cores = os.cpu_count() or 1
    return {
        "cpu": {"usage": os.getloadavg()[0] * 100, "limit": cores * 100.0},
        "memory": {"usage": resident / 2**20, "limit": pages / 2**20},
        "directMemory": {"usage": 0.0, "limit": 0.0},
    }


@router.get("/bookieops")
async def bookie_operations() -> dict[str, Any]:
    """Always none: the broker writes its own log."""
    return {}


@router.get("/allocator-stats/{allocator}")
async def allocator(allocator: str) -> None:
    raise RestError(404, "There are no Netty allocators here; /metrics tells what memory is used for")


@router.get("/broker-resource-availability/{tenant}/{namespace}")
async def availability(broker: BrokerDep, namespace: NamespaceDep) -> None:
    await broker.resources.policies(namespace)
    raise RestError(404, "This load manager does not place bundles by a model of resources")
