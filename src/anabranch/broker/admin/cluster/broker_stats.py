"""`/admin/v2/broker-stats`: what this broker serves and how busy it is, for tools that poll JSON."""

from __future__ import annotations

from typing import Any

from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.bundles import open_bundles
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.observe.topic_stats import topic_stats
from anabranch.broker.runtime.machine import memory_bytes_max, resident_bytes
from anabranch.model.names import NamespaceName, TopicName

routes = Routes("/admin/v2/broker-stats", tag="brokers")


@routes.get("/topics", answers=dict[str, Any])
async def topics(services: AdminServices) -> HttpAnswer:
    """The figures of every open topic, by namespace, bundle and domain."""
    found: dict[str, Any] = {}
    async for name, bundle in in_turns(sorted((await open_bundles(services)).items(), key=_text), 100):
        if (topic := services.opened(name)) is not None:
            by_domain = found.setdefault(str(name.namespace), {}).setdefault(bundle, {})
            by_domain.setdefault(name.domain.value, {})[str(name)] = await topic_stats(topic)
    return json_answer(found)


def _text(item: tuple[TopicName, str]) -> str:
    return str(item[0])


@routes.get("/metrics")
async def metrics(services: AdminServices) -> list[dict[str, Any]]:
    """A few figures in the form of Pulsar's; `/metrics` has them all."""
    topics = services.loaded().values()
    figures = {
        "brk_connection_created_total_count": services.connections_total,
        "brk_active_connections_count": len(services.sessions),
        "brk_no_of_topics": len(topics),
        "brk_no_of_producers": sum(len(topic.producers) for topic in topics),
        "brk_no_of_consumers": sum(len(s.consumers) for t in topics for s in t.subscriptions.values()),
        "brk_in_rate": sum(topic.rates_in[0] for topic in topics),
        "brk_in_tp_rate": sum(topic.rates_in[1] for topic in topics),
    }
    return [{"metrics": figures, "dimensions": {"cluster": services.config.cluster_name, "metric": "broker"}}]


@routes.get("/mbeans")
async def mbeans() -> list[dict[str, Any]]:
    """Always empty: MBeans are Java's."""
    return []


@routes.get("/load-report")
async def load_report(services: AdminServices) -> dict[str, Any]:
    """The load in the form of Pulsar's LocalBrokerData."""
    topics = services.loaded()
    found = await open_bundles(services)
    bundles = sorted({f"{name.namespace}/{bundle}" for name, bundle in found.items()})
    rates_in = [topic.rates_in for topic in topics.values()]
    consumers = [c for t in topics.values() for s in t.subscriptions.values() for c in s.consumers]
    return {
        "loadReportType": "LocalBrokerData",
        "webServiceUrl": services.http_url,
        "pulsarServiceUrl": services.service_url,
        "pulsarServiceUrlTls": services.service_url_tls or None,
        "brokerVersionString": services.server_version,
        "persistentTopicsEnabled": True,
        "nonPersistentTopicsEnabled": True,
        "protocols": {},
        "startTimestamp": services.started_ms,
        "lastUpdate": services.now_ms(),
        **_usage(services),
        "msgRateIn": sum(rate[0] for rate in rates_in),
        "msgThroughputIn": sum(rate[1] for rate in rates_in),
        "msgRateOut": sum(consumer.rates[0] for consumer in consumers),
        "msgThroughputOut": sum(consumer.rates[1] for consumer in consumers),
        "numTopics": len(topics),
        "numBundles": len(bundles),
        "numConsumers": len(consumers),
        "numProducers": sum(len(topic.producers) for topic in topics.values()),
        "bundles": bundles,
        **_bundle_stats(services),
    }


def _usage(services: AdminServices) -> dict[str, Any]:
    """CPU in percent and memory in megabytes, each with its limit. A broker can use one core, whatever the machine has
    besides. With the load balancer, all that it measures; shares whose limit is not told are in percent."""
    load = None if services.load_work is None else services.load_work.load
    usage: dict[str, Any] = {
        "cpu": {"usage": services.loop_share() * 100, "limit": 100.0},
        "memory": {"usage": resident_bytes() / 2**20, "limit": memory_bytes_max() / 2**20},
        "directMemory": {"usage": 0.0, "limit": 0.0},
    }
    if load is not None:
        shares = {
            "cpu": load.cpu,
            "directMemory": load.direct_memory,
            "bandwidthIn": load.bandwidth_in,
            "bandwidthOut": load.bandwidth_out,
        }
        usage |= {name: {"usage": 100 * share, "limit": 100.0} for name, share in shares.items()}
    return usage


def _bundle_stats(services: AdminServices) -> dict[str, Any]:
    """The load of each bundle, if the load balancer measures it."""
    if services.load_work is None:
        return {}
    stats = {
        name: {
            "msgRateIn": one.msg_rate_in,
            "msgThroughputIn": one.throughput_in,
            "msgRateOut": one.msg_rate_out,
            "msgThroughputOut": one.throughput_out,
            "topics": one.topics,
        }
        for name, one in sorted(services.load_work.reporter.bundles.items())
    }
    return {"lastStats": stats}


@routes.get("/bookieops")
async def bookie_operations() -> dict[str, Any]:
    """Always empty: the broker writes its own log."""
    return {}


@routes.get("/allocator-stats/{allocator}")
async def allocator(allocator: str) -> None:
    raise RestError(404, "There are no Netty allocators here; /metrics shows what memory is used for")


@routes.get("/broker-resource-availability/{tenant}/{namespace}")
async def availability(services: AdminServices, namespace: NamespaceName) -> None:
    await services.resources.policies(namespace)
    raise RestError(404, "This load manager does not place bundles by a model of resources")
