"""Figures for Prometheus, computed on request: nothing is counted twice, and a broker that is not scraped pays nothing.

`metric_names.py` lists the metrics. Gathering and rendering yield to the event loop after every few topics, so that a
scrape of ten thousand topics delays no publish.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import Protocol

import anabranch
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.dispatch.entry_buckets import EntryBucketDispatcher
from anabranch.broker.non_persistent.subscription import NonPersistentSubscription
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.observe.metric_names import WRITE_LATENCIES
from anabranch.broker.observe.metrics_balancer import MeasuredBalancer, add_balancer
from anabranch.broker.observe.metrics_buckets import BucketLines
from anabranch.broker.observe.metrics_page import Page, escaped
from anabranch.broker.observe.metrics_upkeep import UpkeepLines
from anabranch.broker.observe.table_reports import TableReports, add_tables
from anabranch.broker.runtime.loop_watch import TurnTimes
from anabranch.broker.runtime.machine import resident_bytes
from anabranch.broker.security.sign_in_counts import SignInCounts
from anabranch.broker.subscription.subscription import Subscription
from anabranch.broker.topic.topic import Topic
from anabranch.controller.autoscaler import AutoScaler
from anabranch.model.histogram import Histogram, Recent
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import scalable_name
from anabranch.storage.port import LogStore

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TOPICS_PER_TURN = 50
# Pulsar counts these by topic. Here all topics share their commits, so that the counts would hardly differ.
WRITE_BOUNDS_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)


class MeasuredConnection(Protocol):
    @property
    def owes_too_much(self) -> bool: ...


class MeasuredSignIn(Protocol):
    @property
    def counts(self) -> SignInCounts: ...


class MeasuredHistory(Protocol):
    """The topic that load history is published to."""

    @property
    def published(self) -> int: ...

    @property
    def dropped(self) -> int: ...


class MeasuredScaling(Protocol):
    @property
    def scaler(self) -> AutoScaler: ...

    @property
    def history(self) -> MeasuredHistory | None: ...


class MeasuredBroker(Protocol):
    """The parts of a broker that its metrics are computed from."""

    @property
    def config(self) -> BrokerConfig: ...

    def loaded(self) -> Mapping[TopicName, Topic]: ...

    def unopened(self) -> Mapping[TopicName, Mapping[str, int]]:
        """What waits, by subscription, in topics that have not been opened since the start, as far as that is known."""

    @property
    def non_persistent(self) -> NonPersistentTopics: ...

    @property
    def scaling(self) -> MeasuredScaling | None:
        """None while scalable topics are turned off."""

    @property
    def log(self) -> LogStore: ...

    @property
    def sessions(self) -> Collection[MeasuredConnection]: ...

    @property
    def connections_total(self) -> int: ...

    @property
    def connections_refused(self) -> int: ...

    @property
    def paused_connections(self) -> int: ...

    @property
    def sign_in(self) -> MeasuredSignIn: ...

    @property
    def started_ms(self) -> int: ...

    @property
    def turns(self) -> TurnTimes: ...

    @property
    def loop_lags(self) -> Histogram: ...

    @property
    def topic_pauses(self) -> Histogram: ...

    @property
    def quota_check_times(self) -> Histogram: ...

    @property
    def publish_times(self) -> Recent: ...

    @property
    def table_reports(self) -> TableReports: ...

    def now_ms(self) -> int: ...


async def render(broker: MeasuredBroker, balancer: MeasuredBalancer | None = None) -> AsyncIterator[bytes]:
    """The page in pieces; yields to the event loop between them. Without `balancer` bundles are assigned by hash."""
    for piece in (await _gather(broker, balancer)).pieces():
        yield piece
        await asyncio.sleep(0)


async def _gather(broker: MeasuredBroker, balancer: MeasuredBalancer | None) -> Page:
    page = Page()
    cluster = f'cluster="{escaped(broker.config.cluster_name)}"'
    await _add_topics(page, cluster, broker)
    await _add_scalable(page, cluster, broker)
    _add_broker(page, cluster, broker)
    _add_log(page, cluster, broker)
    add_tables(page, cluster, broker.table_reports.of(broker.now_ms()).values())
    if balancer is not None:
        await add_balancer(page, cluster, balancer)
    return page


# -- topics

_BROKER_NAMES = {
    "pulsar_subscriptions_count": "pulsar_broker_subscriptions_count",
    "pulsar_producers_count": "pulsar_broker_producers_count",
    "pulsar_consumers_count": "pulsar_broker_consumers_count",
    "pulsar_rate_in": "pulsar_broker_rate_in",
    "pulsar_rate_out": "pulsar_broker_rate_out",
    "pulsar_throughput_in": "pulsar_broker_throughput_in",
    "pulsar_throughput_out": "pulsar_broker_throughput_out",
    "pulsar_in_bytes_total": "pulsar_broker_in_bytes_total",
    "pulsar_out_bytes_total": "pulsar_broker_out_bytes_total",
    "pulsar_msg_backlog": "pulsar_broker_msg_backlog",
    "pulsar_storage_size": "pulsar_broker_storage_size",
    "pulsar_storage_logical_size": "pulsar_broker_storage_logical_size",
}


async def _add_topics(page: Page, cluster: str, broker: MeasuredBroker) -> None:
    per_topic = broker.config.expose_topic_level_metrics_in_prometheus
    add_clients = _client_lines(page, broker)
    upkeep = UpkeepLines(page, cluster, per_topic=per_topic)
    buckets = BucketLines(page, cluster, per_topic=per_topic)
    clients = ScalableClients()
    sums: dict[NamespaceName, dict[str, float]] = {}
    counts: dict[NamespaceName, int] = {}
    topics: list[Topic | NonPersistentTopic] = [*broker.loaded().values(), *broker.non_persistent.loaded()]
    for number, topic in enumerate(topics):
        figures = _topic_figures(topic)
        namespace = topic.name.namespace
        labels = f"{cluster},{_topic_labels(topic.name)}"
        clients.add(topic)
        if isinstance(topic, Topic):
            upkeep.add(labels, topic)
            buckets.add(labels, topic)
        if per_topic:
            page.add_all(labels, figures)
            for subscription in topic.subscriptions.values():
                subscribed = f'{labels},subscription="{escaped(subscription.name)}"'
                page.add_all(subscribed, _subscription_figures(subscription))
            add_clients(labels, topic)
        summed = sums.get(namespace)
        if summed is None:
            sums[namespace] = dict(figures)
        else:
            for key, value in figures.items():
                summed[key] += value
        counts[namespace] = counts.get(namespace, 0) + 1
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    unopened = sum(_add_unopened(page, cluster, broker, per_topic=per_topic))
    upkeep.finish()
    buckets.finish()
    if per_topic:
        clients.finish(page, cluster)
    total: dict[str, float] = dict.fromkeys(_BROKER_NAMES.values(), 0)
    for namespace, figures in sums.items():
        labels = f'{cluster},namespace="{namespace}"'
        page.add("pulsar_topics_count", labels, counts[namespace])
        if not per_topic:
            # With topics listed one by one, their sums would count twice in a query over all lines.
            rate = figures["pulsar_rate_in"]
            figures["pulsar_average_msg_size"] = figures["pulsar_throughput_in"] / rate if rate else 0.0
            page.add_all(labels, figures)
        for key, name_of_sum in _BROKER_NAMES.items():
            total[name_of_sum] += figures[key]
    total[_BROKER_NAMES["pulsar_msg_backlog"]] += unopened
    page.add_all(cluster, {"pulsar_broker_topics_count": sum(counts.values()), **total})


def _add_unopened(page: Page, cluster: str, broker: MeasuredBroker, *, per_topic: bool) -> Iterator[int]:
    """Backlogs outlive a restart: alerts on them must not stop until the topic is opened."""
    for name, waiting in broker.unopened().items():
        labels = f"{cluster},{_topic_labels(name)}"
        if per_topic:
            page.add("pulsar_msg_backlog", labels, sum(waiting.values()))
        for subscription, backlog in waiting.items():
            if per_topic:
                subscribed = f'{labels},subscription="{escaped(subscription)}"'
                page.add("pulsar_subscription_back_log", subscribed, backlog)
            yield backlog


def _topic_labels(name: TopicName) -> str:
    """A segment has the labels of its scalable topic, and one of its own: sums by topic outlive splits and merges."""
    shown = scalable_name(name) if name.domain is Domain.SEGMENT else name
    labels = f'namespace="{name.namespace}",topic="{escaped(str(shown))}"'
    return f'{labels},segment="{name.segment}"' if name.domain is Domain.SEGMENT else labels


class ScalableClients:
    """Counts the clients of each scalable topic once, however many of its segments they are attached to."""

    def __init__(self) -> None:
        self._producers: dict[TopicName, set[str]] = {}
        self._consumers: dict[TopicName, set[tuple[str, str]]] = {}

    def add(self, topic: Topic | NonPersistentTopic) -> None:
        if topic.name.domain is not Domain.SEGMENT:
            return
        shown = scalable_name(topic.name)
        self._producers.setdefault(shown, set()).update(one.name for one in topic.producers.values())
        self._consumers.setdefault(shown, set()).update(
            (subscription.name, consumer.name)
            for subscription in topic.subscriptions.values()
            for consumer in subscription.consumers
        )

    def finish(self, page: Page, cluster: str) -> None:
        for name, producers in self._producers.items():
            figures = {
                "anabranch_scalable_topic_producers": len(producers),
                "anabranch_scalable_topic_consumers": len(self._consumers[name]),
            }
            page.add_all(f"{cluster},{_topic_labels(name)}", figures)


def _topic_figures(topic: Topic | NonPersistentTopic) -> dict[str, float]:
    messages_in, bytes_in, messages_out, bytes_out = topic.counters
    rate_in, throughput_in = topic.rates_in
    size, entries = (topic.log.size_bytes, topic.log.entries) if isinstance(topic, Topic) else (0, 0)
    producers, backlog, most, rate_out, throughput_out, consumers = len(topic.producers), 0, 0, 0.0, 0.0, 0
    for subscription in topic.subscriptions.values():
        most = max(most, subscription.backlog())
        backlog += subscription.backlog_messages()
        for consumer in subscription.consumers:
            consumers += 1
            rate_out += consumer.rates[0]
            throughput_out += consumer.rates[1]
    return {
        "pulsar_subscriptions_count": len(topic.subscriptions),
        "pulsar_producers_count": producers,
        "pulsar_consumers_count": consumers,
        "pulsar_rate_in": rate_in,
        "pulsar_rate_out": rate_out,
        "pulsar_throughput_in": throughput_in,
        "pulsar_throughput_out": throughput_out,
        "pulsar_average_msg_size": throughput_in / rate_in if rate_in else 0.0,
        "pulsar_in_messages_total": messages_in,
        "pulsar_in_bytes_total": bytes_in,
        "pulsar_out_messages_total": messages_out,
        "pulsar_out_bytes_total": bytes_out,
        "pulsar_msg_backlog": backlog,
        "pulsar_storage_size": size,
        "pulsar_storage_logical_size": size,
        # Entries of a topic differ in size; only their mean is known without reading them.
        "pulsar_storage_backlog_size": size * most // entries if most and entries else 0,
    }


def _subscription_figures(subscription: Subscription | NonPersistentSubscription) -> dict[str, float]:
    if not isinstance(subscription, Subscription):
        return _unstored_figures(subscription)
    consumers = subscription.consumers
    backlog = subscription.backlog_messages()
    rate = throughput = redelivered = acked = 0.0
    unacked = acked_ms = sent_ms = flow_ms = 0
    for consumer in consumers:
        rates = consumer.rates
        rate += rates[0]
        throughput += rates[1]
        redelivered += rates[2]
        acked += rates[3]
        unacked += consumer.unacked
        acked_ms = max(acked_ms, consumer.last_acked_ms)
        sent_ms = max(sent_ms, consumer.last_sent_ms)
        flow_ms = max(flow_ms, consumer.last_flow_ms)
    dispatched = subscription.dispatcher.stats() if consumers and subscription.dispatcher is not None else {}
    delayed = dispatched.get("msgDelayed", 0)
    return {
        "pulsar_subscription_back_log": backlog,
        "pulsar_subscription_back_log_no_delayed": max(0, backlog - delayed),
        "pulsar_subscription_delayed": delayed,
        "pulsar_subscription_in_replay": dispatched.get("msgInReplay", 0),
        "pulsar_subscription_unacked_messages": unacked,
        "pulsar_subscription_blocked_on_unacked_messages": int(
            dispatched.get("blockedSubscriptionOnUnackedMsgs", False)
        ),
        "pulsar_subscription_consumers_count": len(consumers),
        "pulsar_subscription_msg_rate_out": rate,
        "pulsar_subscription_msg_throughput_out": throughput,
        "pulsar_subscription_msg_rate_redeliver": redelivered,
        "pulsar_subscription_msg_ack_rate": acked,
        "pulsar_out_messages_total": subscription.messages_out,
        "pulsar_out_bytes_total": subscription.bytes_out,
        "pulsar_subscription_total_msg_expired": subscription.messages_expired,
        "pulsar_subscription_last_expire_timestamp": subscription.last_expired_ms,
        "pulsar_subscription_last_acked_timestamp": acked_ms,
        "pulsar_subscription_last_consumed_timestamp": sent_ms,
        "pulsar_subscription_last_consumed_flow_timestamp": flow_ms,
        "pulsar_subscription_last_mark_delete_advanced_timestamp": subscription.last_advanced_ms,
        **_bucket_figures(subscription),
    }


def _bucket_figures(subscription: Subscription) -> dict[str, float]:
    """The figures of a segment whose consumers share it by entry buckets."""
    dispatcher = subscription.dispatcher
    if not isinstance(dispatcher, EntryBucketDispatcher) or not dispatcher.consumers:
        return {}
    return {
        "anabranch_scalable_segment_sharers": len(dispatcher.consumers),
        "anabranch_scalable_segment_bucket_reassignments_total": dispatcher.reassignments,
        "anabranch_scalable_segment_buckets_withheld": dispatcher.withheld,
    }


def _unstored_figures(subscription: NonPersistentSubscription) -> dict[str, float]:
    """The figures of a non-persistent subscription, which has no backlog."""
    consumers = subscription.consumers
    return {
        "pulsar_subscription_consumers_count": len(consumers),
        "pulsar_subscription_msg_rate_out": sum(consumer.rates[0] for consumer in consumers),
        "pulsar_subscription_msg_throughput_out": sum(consumer.rates[1] for consumer in consumers),
        "pulsar_subscription_msg_drop_rate": subscription.drop_rate,
        "pulsar_out_messages_total": subscription.messages_out,
        "pulsar_out_bytes_total": subscription.bytes_out,
    }


def _client_lines(page: Page, broker: MeasuredBroker) -> Callable[[str, Topic | NonPersistentTopic], None]:
    """A function that adds a topic's producers and consumers one by one, as far as the settings ask for that."""
    per_producer = broker.config.expose_producer_level_metrics_in_prometheus
    per_consumer = broker.config.expose_consumer_level_metrics_in_prometheus

    def add(labels: str, topic: Topic | NonPersistentTopic) -> None:
        for producer in topic.producers.values() if per_producer else ():
            page.add_all(
                f'{labels},producer_name="{escaped(producer.name)}",producer_id="{producer.id}"',
                {
                    "pulsar_producer_msg_rate_in": producer.rates_in[0],
                    "pulsar_producer_msg_throughput_in": producer.rates_in[1],
                },
            )
        for subscription in topic.subscriptions.values() if per_consumer else ():
            subscribed = f'{labels},subscription="{escaped(subscription.name)}"'
            for consumer in subscription.consumers:
                page.add_all(
                    f'{subscribed},consumer_name="{escaped(consumer.name)}",consumer_id="{consumer.id}"',
                    {
                        "pulsar_consumer_msg_rate_out": consumer.rates[0],
                        "pulsar_consumer_msg_throughput_out": consumer.rates[1],
                        "pulsar_consumer_msg_rate_redeliver": consumer.rates[2],
                        "pulsar_consumer_unacked_messages": consumer.unacked,
                        "pulsar_consumer_available_permits": consumer.permits,
                        "pulsar_consumer_blocked_on_unacked_messages": int(consumer.is_blocked),
                    },
                )

    return add


async def _add_scalable(page: Page, cluster: str, broker: MeasuredBroker) -> None:
    """Adds the scalable topics that this broker leads: no other broker reports them."""
    if broker.scaling is None:
        return
    scaler, per_topic = broker.scaling.scaler, broker.config.expose_topic_level_metrics_in_prometheus
    sums: dict[NamespaceName, dict[str, int]] = {}
    for number, topic in enumerate(scaler.figures()):
        figures = {
            "pulsar_scalable_topic_active_segments": topic.active_segments,
            "pulsar_scalable_topic_auto_splits_total": topic.auto_splits,
            "pulsar_scalable_topic_auto_merges_total": topic.auto_merges,
            "pulsar_scalable_topic_split_suppressed_max_segments_total": topic.split_suppressed_max_segments,
            "pulsar_scalable_topic_merge_suppressed_max_depth_total": topic.merge_suppressed_max_depth,
            "anabranch_scalable_topic_rebuckets_total": topic.rebuckets,
            # Topics that are not scaled because their policy contradicts itself.
            "anabranch_scalable_topic_policy_invalid": int(bool(topic.problems)),
            "anabranch_scalable_segment_drain_mode": topic.draining,
        }
        name: TopicName = topic.topic
        if per_topic:
            page.add_all(f'{cluster},namespace="{name.namespace}",topic="{escaped(str(name))}"', figures)
        else:
            namespace = sums.setdefault(name.namespace, dict.fromkeys(figures, 0))
            for key, value in figures.items():
                namespace[key] += value
        if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
            await asyncio.sleep(0)
    for ns, summed in sums.items():
        page.add_all(f'{cluster},namespace="{ns}"', summed)
    if (history := broker.scaling.history) is not None:
        page.add("anabranch_load_history_records_total", cluster, history.published)
        page.add("anabranch_load_history_dropped_total", cluster, history.dropped)
    for ns, reasons in scaler.reasons.items():
        for (operation, reason), count in sorted(reasons.items()):
            labels = f'{cluster},namespace="{ns}",operation="{operation}",reason="{reason}"'
            page.add("anabranch_scalable_topic_decisions_total", labels, count)


# -- the broker and its log


def _add_broker(page: Page, cluster: str, broker: MeasuredBroker) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    created, refused = broker.connections_total, broker.connections_refused
    page.add_all(
        cluster,
        {
            "pulsar_active_connections": len(broker.sessions),
            "pulsar_connection_created_total_count": created,
            "pulsar_connection_create_success_count": created - refused,
            "pulsar_connection_create_fail_count": refused,
            "pulsar_connection_closed_total_count": created - len(broker.sessions),
            "pulsar_broker_throttled_connections": sum(one.owes_too_much for one in broker.sessions),
            "pulsar_broker_throttled_connections_global_limit": broker.paused_connections,
            "anabranch_event_loop_turn_max_seconds": broker.turns.longest_s,
            "anabranch_event_loop_turn_cpu_max_seconds": broker.turns.longest_cpu_s,
            "anabranch_event_loop_slow_turns_total": broker.turns.slow,
            "process_resident_memory_bytes": resident_bytes(),
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_start_time_seconds": broker.started_ms / 1000,
            "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            **_open_files(),
        },
    )
    _add_sign_ins(page, cluster, broker.sign_in.counts)
    page.add("pulsar_version_info", f'{cluster},version="{escaped(anabranch.__version__)}"', 1)
    page.add_histogram("anabranch_event_loop_lag_seconds", cluster, broker.loop_lags)
    page.add_histogram("anabranch_topic_pause_seconds", cluster, broker.topic_pauses)
    page.add_histogram(
        "pulsar_storage_backlog_quota_check_duration_seconds", cluster, broker.quota_check_times
    )
    appended = broker.log.histograms().get("append", Histogram())
    quantiles = {q: broker.publish_times.quantile(q) * 1000 for q in QUANTILES}
    page.add_summary("pulsar_broker_publish_latency", cluster, quantiles, appended.sum * 1000, appended.count)
    page.add_all(
        cluster, dict(zip(WRITE_LATENCIES, broker.publish_times.between(WRITE_BOUNDS_S), strict=True))
    )


def _add_sign_ins(page: Page, cluster: str, counts: SignInCounts) -> None:
    for labels, count in counts.successes():
        page.add("pulsar_authentication_success_total", f"{cluster},{labels}", count)
    for labels, count in counts.failures():
        page.add("pulsar_authentication_failures_total", f"{cluster},{labels}", count)
    page.add("pulsar_expired_token_total", cluster, counts.expired)
    page.add_histogram("pulsar_expiring_token_minutes", cluster, counts.lifetimes)


# The log's names of its figures, where metrics have other names.
_LOG_NAMES = {
    "commits": "anabranch_log_commits_total",
    "confirmed_bytes": "anabranch_log_confirmed_bytes_total",
    "removed_files": "anabranch_log_removed_files_total",
    "rewritten_bytes": "anabranch_log_rewritten_bytes_total",
    **{
        f"tier_{name}": f"anabranch_log_tier_{name}_total"
        for name in ("moved_files", "moved_bytes", "failures", "gets", "get_bytes", "deletes")
    },
    "cache_bytes": "anabranch_cache_bytes",
    "cache_hits": "anabranch_cache_hits_total",
    "cache_misses": "anabranch_cache_misses_total",
    **{
        f"object_{name}": f"anabranch_log_object_{name}_total"
        for name in ("puts", "gets", "lists", "deletes", "hedges", "retries", "put_bytes", "get_bytes")
    },
}
_HISTOGRAMS = {
    "append": "anabranch_log_append_latency_seconds",
    "sync": "anabranch_log_sync_duration_seconds",
}


def _add_log(page: Page, cluster: str, broker: MeasuredBroker) -> None:
    page.add("anabranch_log_accepting", cluster, int(broker.log.is_accepting))
    page.add("anabranch_cache_bytes_max", cluster, broker.config.log_cache_bytes)
    for name, value in broker.log.stats().items():
        page.add(_LOG_NAMES.get(name, f"anabranch_log_{name}"), cluster, value)
    for name, histogram in broker.log.histograms().items():
        page.add_histogram(_HISTOGRAMS[name], cluster, histogram)


def _open_files() -> dict[str, float]:
    try:
        return {"process_open_fds": len(os.listdir("/proc/self/fd"))}
    except OSError:
        return {}
