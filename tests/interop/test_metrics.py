"""`/metrics` of a broker process under Pulsar's own client: what only a log of files can tell is there and moves."""

from __future__ import annotations

import re
from collections import Counter

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.broker.observe.metric_names import METRICS
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop


def figures(broker: BrokerProcess) -> dict[str, float]:
    """Samples without labels that tell them apart: those of the broker itself, and of its log. Several brokers are
    added up."""
    found: Counter[str] = Counter()
    for page in broker.metrics():
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if set(sample.labels) == {"cluster"}:
                    found[sample.name] += sample.value  # type: ignore[assignment]
    return dict(found)


def test_the_log_and_its_cache_are_told_of_and_move(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    before = figures(broker)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(20):
        producer.send(b"x" * 100)
    for _ in range(20):
        consumer.acknowledge(consumer.receive(10_000))
    after = figures(broker)
    declared = {
        name if metric.kind != "histogram" else f"{name}_count"
        for name, metric in METRICS.items()
        if name.startswith(("anabranch_log_", "anabranch_cache_"))
        and not re.search("_log_(object|tier)_", name)
    }
    assert declared - set(after) == set()
    for name in (
        "anabranch_log_commits_total",
        "anabranch_log_confirmed_bytes_total",
        "anabranch_log_sync_duration_seconds_count",
        "anabranch_log_append_latency_seconds_count",
        "anabranch_cache_hits_total",
        "pulsar_broker_publish_latency_count",
    ):
        assert after[name] > before[name], name
    assert after["anabranch_log_disk_free_bytes"] > 0
    assert after["anabranch_log_accepting"] == broker.brokers
    assert after["anabranch_event_loop_lag_seconds_count"] > 0
