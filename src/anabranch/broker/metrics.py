"""Figures for Prometheus, computed when asked: nothing is counted twice, and a broker nobody scrapes pays nothing.

Names are Pulsar's where it has one; those of our own begin with `anabranch_`. Lines of one metric stand together, as
the text format wants. Rendering gives way to the event loop after every few topics, so that a scrape of ten thousand
topics delays no publish.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING

from anabranch.model.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.topic import Topic

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_PER_TURN = 50

_COUNTERS = frozenset({"anabranch_log_commits", "anabranch_log_syncs", "process_cpu_seconds_total"})


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Page:
    """The lines of one scrape, gathered metric by metric."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, labels: str, value: float) -> None:
        shown = repr(value) if isinstance(value, float) else str(int(value))
        self._lines.setdefault(name, []).append(f"{name}{{{labels}}} {shown}\n")

    def add_all(self, labels: str, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.add(name, labels, value)

    def parts(self) -> Iterator[bytes]:
        """One metric at a time."""
        for name, lines in self._lines.items():
            kind = "counter" if name in _COUNTERS or name.endswith("_total") else "gauge"
            yield f"# TYPE {name} {kind}\n{''.join(lines)}".encode()


async def render(broker: Broker) -> AsyncIterator[bytes]:
    """The page in pieces, giving way to the event loop between them."""
    for part in (await _gather(broker)).parts():
        yield part
        await asyncio.sleep(0)


async def _gather(broker: Broker) -> Page:
    page = Page()
    cluster = f'cluster="{_escaped(broker.config.cluster_name)}"'
    per_topic = broker.config.expose_topic_level_metrics_in_prometheus
    sums: dict[NamespaceName, dict[str, float]] = {}
    total: dict[str, float] = dict.fromkeys(_BROKER_NAMES.values(), 0)
    for number, (name, topic) in enumerate(broker.loaded().items()):
        figures = _topic_figures(topic)
        labels = f'{cluster},namespace="{name.namespace}"'
        if per_topic:
            page.add_all(f'{labels},topic="{_escaped(str(name))}"', figures)
            _add_subscriptions(page, labels, name, topic)
        namespace = sums.setdefault(name.namespace, {"pulsar_topics_count": 0, **dict.fromkeys(figures, 0)})
        namespace["pulsar_topics_count"] += 1
        total["pulsar_broker_topics_count"] += 1
        for key, value in figures.items():
            namespace[key] += value
            if key in _BROKER_NAMES:
                total[_BROKER_NAMES[key]] += value
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    for ns, figures in sums.items():
        # With topics shown one by one their sums would count twice in a query over all lines.
        shown = {"pulsar_topics_count": figures["pulsar_topics_count"]} if per_topic else figures
        page.add_all(f'{cluster},namespace="{ns}"', shown)
    page.add_all(cluster, total)
    await _add_scalable(page, cluster, broker)
    _add_broker(page, cluster, broker)
    return page


_BROKER_NAMES = {
    "pulsar_topics_count": "pulsar_broker_topics_count",
    "pulsar_subscriptions_count": "pulsar_broker_subscriptions_count",
    "pulsar_producers_count": "pulsar_broker_producers_count",
    "pulsar_consumers_count": "pulsar_broker_consumers_count",
    "pulsar_rate_in": "pulsar_broker_rate_in",
    "pulsar_rate_out": "pulsar_broker_rate_out",
    "pulsar_throughput_in": "pulsar_broker_throughput_in",
    "pulsar_throughput_out": "pulsar_broker_throughput_out",
    "pulsar_msg_backlog": "pulsar_broker_msg_backlog",
    "pulsar_storage_size": "pulsar_broker_storage_size",
}


def _topic_figures(topic: Topic) -> dict[str, float]:
    messages_in, bytes_in, messages_out, bytes_out = topic.counters
    subscriptions = list(topic.subscriptions.values())
    consumers = [consumer for s in subscriptions for consumer in s.consumers]
    return {
        "pulsar_subscriptions_count": len(subscriptions),
        "pulsar_producers_count": len(topic.producers),
        "pulsar_consumers_count": len(consumers),
        "pulsar_rate_in": topic.rates_in[0],
        "pulsar_throughput_in": topic.rates_in[1],
        "pulsar_rate_out": sum(consumer.rates[0] for consumer in consumers),
        "pulsar_throughput_out": sum(consumer.rates[1] for consumer in consumers),
        "pulsar_in_messages_total": messages_in,
        "pulsar_in_bytes_total": bytes_in,
        "pulsar_out_messages_total": messages_out,
        "pulsar_out_bytes_total": bytes_out,
        "pulsar_msg_backlog": sum(s.backlog() for s in subscriptions),
        "pulsar_storage_size": topic.log.size_bytes,
        "pulsar_storage_logical_size": topic.log.size_bytes,
    }


def _add_subscriptions(page: Page, labels: str, name: TopicName, topic: Topic) -> None:
    for subscription in topic.subscriptions.values():
        consumers = subscription.consumers
        figures: dict[str, float] = {
            "pulsar_subscription_back_log": subscription.backlog(),
            "pulsar_subscription_unacked_messages": sum(c.unacked for c in consumers),
            "pulsar_subscription_consumers_count": len(consumers),
            "pulsar_subscription_msg_rate_out": sum(c.rates[0] for c in consumers),
            "pulsar_subscription_msg_throughput_out": sum(c.rates[1] for c in consumers),
            "pulsar_subscription_msg_rate_redeliver": sum(c.rates[2] for c in consumers),
            "pulsar_subscription_msg_ack_rate": sum(c.rates[3] for c in consumers),
            "pulsar_subscription_total_msg_expired": subscription.messages_expired,
            "pulsar_subscription_last_acked_timestamp": max((c.last_acked_ms for c in consumers), default=0),
            "pulsar_subscription_last_consumed_timestamp": max(
                (c.last_sent_ms for c in consumers), default=0
            ),
        }
        subscribed = f'{labels},topic="{_escaped(str(name))}",subscription="{_escaped(subscription.name)}"'
        page.add_all(subscribed, figures)


async def _add_scalable(page: Page, cluster: str, broker: Broker) -> None:
    """The scalable topics that this broker leads: no other one tells of them."""
    if broker.scaling is None:
        return
    scaler, per_topic = broker.autoscaler, broker.config.expose_topic_level_metrics_in_prometheus
    sums: dict[NamespaceName, dict[str, int]] = {}
    for number, topic in enumerate(scaler.figures()):
        figures = {
            "pulsar_scalable_topic_active_segments": topic.active_segments,
            "pulsar_scalable_topic_auto_splits_total": topic.auto_splits,
            "pulsar_scalable_topic_auto_merges_total": topic.auto_merges,
            "pulsar_scalable_topic_split_suppressed_max_segments_total": topic.split_suppressed_max_segments,
            "pulsar_scalable_topic_merge_suppressed_max_depth_total": topic.merge_suppressed_max_depth,
            # Topics that are left alone because their policy contradicts itself.
            "anabranch_scalable_topic_policy_invalid": int(bool(topic.problems)),
        }
        name = topic.topic
        if per_topic:
            page.add_all(f'{cluster},namespace="{name.namespace}",topic="{_escaped(str(name))}"', figures)
        else:
            namespace = sums.setdefault(name.namespace, dict.fromkeys(figures, 0))
            for key, value in figures.items():
                namespace[key] += value
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    for ns, summed in sums.items():
        page.add_all(f'{cluster},namespace="{ns}"', summed)
    for ns, reasons in scaler.reasons.items():
        for (operation, reason), count in sorted(reasons.items()):
            labels = f'{cluster},namespace="{ns}",operation="{operation}",reason="{reason}"'
            page.add("anabranch_scalable_topic_decisions_total", labels, count)


def _add_broker(page: Page, cluster: str, broker: Broker) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    page.add_all(
        cluster,
        {
            "pulsar_active_connections": len(broker.sessions),
            "pulsar_connection_created_total_count": broker.connections_total,
            "anabranch_event_loop_lag_seconds": broker.loop_lag_s,
            "anabranch_log_unconfirmed_bytes": broker.log.unconfirmed_bytes,
            "anabranch_log_accepting": int(broker.log.is_accepting),
            "process_resident_memory_bytes": resident_bytes(),
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_start_time_seconds": broker.started_ms / 1000,
        },
    )
    for name, value in broker.log.stats().items():
        page.add(f"anabranch_log_{name}", cluster, value)


def resident_bytes() -> int:
    """Memory in use now; at its highest, where the system tells only that."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        # Kilobytes everywhere but on macOS.
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
