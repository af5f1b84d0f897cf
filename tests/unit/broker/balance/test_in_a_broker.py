"""The load balancer as brokers are built with it: it measures, reports, moves, splits and counts by itself."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest
from msgspec.structs import replace

from anabranch.balance.core.states import BundleState
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.metric_names import METRICS
from anabranch.client.errors import RequestRefused
from anabranch.model.leaders_topics import BROKER_LOAD_TOPIC, CHANNEL_TOPIC
from anabranch.model.names import PUBLIC_DEFAULT, TopicName
from unit.broker.balance.balanced import (
    BALANCED,
    agree,
    balanced,
    balancer,
    bundle_of,
    leader_of,
    owner_of,
    state_of,
    topic_of,
    work_of,
)
from unit.broker.balance.load.loaded_brokers import QUICK, loaded
from unit.broker.scalable.cluster import Node, until

BY_TOPIC = replace(BALANCED, load_manager_service_unit_state_table_view_class_name="topic")
# Splits by itself what has two topics, at once.
SPLITTING = replace(
    BALANCED,
    load_balancer_report_update_min_interval_millis=50,
    load_balancer_split_interval_minutes=0.001,
    load_balancer_namespace_bundle_split_condition_hit_count_threshold=0,
    load_balancer_namespace_bundle_max_topics=1,
    load_balancer_auto_unload_split_bundles_enabled=False,
)


async def metrics_of(node: Node) -> str:
    answer = await node.http.get("/metrics/")
    assert answer.status_code == 200
    return answer.text


async def test_every_broker_reports_its_load_and_knows_that_of_all() -> None:
    async with balanced(3) as cluster:
        ids = {node.broker.registry.me.id for node in cluster.nodes}
        await until(lambda: all(set(work_of(node).loads.loads()) == ids for node in cluster.nodes))
        leader = leader_of(cluster)
        assert set(work_of(leader).view.tops) == ids
        for node in cluster.nodes:
            told = await node.rest("GET", "load-manager/brokers")
            assert set(told.json()) == ids
            if node is not leader:
                assert not work_of(node).view.tops


async def test_every_broker_tells_metrics_of_its_balancer() -> None:
    async with balanced(2) as cluster:
        await until(lambda: all(work_of(node).load is not None for node in cluster.nodes))
        for node in cluster.nodes:
            await balancer(node).owners.resolve(topic_of(cluster.first))
            told = await metrics_of(node)
            assert 'state="assigned",result="Total"' in told
            assert "pulsar_sunit_state_chn_owner_lookup_total" in told
        for node in cluster.nodes:
            page = await metrics_of(node)
            for name in ("pulsar_lb_resource_usage", "anabranch_bundle_states", "anabranch_balancer_leading"):
                assert f"\n{name}{{" in page, name


# Of the fleet as it is below: what is idle, well, or was not refused.
AT_REST = {
    "pulsar_lb_memory_usage",
    "pulsar_lb_directMemory_usage",
    "pulsar_lb_bandwidth_in_usage",
    "pulsar_lb_bandwidth_out_usage",
    "anabranch_balancer_disk_usage",
    "anabranch_bundle_lookups_waiting",
    "anabranch_bundle_channel_lag_seconds",
    "anabranch_bundle_changes_rejected_total",
    "anabranch_balancer_safe_mode",
    "pulsar_sunit_state_chn_cleanup_ops_total",
    "pulsar_sunit_state_chn_su_tombstone_cleanup_ops_total",
}


async def test_no_metric_of_the_balancer_stays_at_zero_when_brokers_do_what_it_is_about() -> None:
    """Moves by hand and by load, an unload, a split, and a broker that goes."""
    async with loaded(3) as made:
        cluster = made.cluster
        made.settings = dataclasses.replace(QUICK, load_std_target=0.05)
        owner, target = (node for node in cluster.nodes if node is not leader_of(cluster))
        name = topic_of(owner)
        bundle = bundle_of(owner, name)
        await owner.publish(name, b"one")
        asked = balancer(owner).requests
        await asked.transfer(bundle, target.broker.registry.me.id, "a test")
        await asked.unload(bundle, "a test")
        # The bundle has no owner: this lookup waits for one.
        await balancer(owner).owners.resolve(name)
        await agree(cluster)
        first, last = bundle_of(target, topic_of(target)).edges
        await balancer(target).requests.split(
            bundle_of(target, topic_of(target)), [(first + last) // 2], "a test"
        )
        made.heat(cluster.nodes.index(target), 2)
        await until(lambda: sorted(made.hot_of_each()) == [0, 1, 1])
        await agree(cluster)
        pages = [await metrics_of(node) for node in cluster.nodes]
        await target.metadata.expire_session()
        await agree(cluster, target)
        pages += [await metrics_of(node) for node in cluster.nodes if node is not target]
    told = {name for page in pages for name in _above_zero(page)}
    wanted = {
        f"{name}_count" if metric.kind == "histogram" else name
        for name, metric in METRICS.items()
        if name.startswith(("pulsar_lb_", "pulsar_sunit_", "anabranch_balancer_", "anabranch_bundle_"))
    }
    assert wanted - told == AT_REST


def _above_zero(page: str) -> set[str]:
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {told.partition("{")[0] for told, _, value in lines if value and float(value) > 0}


async def test_loads_that_differ_move_bundles_without_anybodys_help() -> None:
    async with loaded(2) as made:
        made.heat(0, 2)
        made.settings = dataclasses.replace(QUICK, load_std_target=0.05)
        await until(lambda: made.hot_of_each() == [1, 1])
        await agree(made.cluster)


async def test_a_bundle_of_too_many_topics_is_split_without_anybodys_help() -> None:
    async with balanced(2, SPLITTING) as cluster:
        asked, owner = cluster.nodes
        first = topic_of(owner)
        whole = bundle_of(owner, first)
        names = (TopicName.parse(f"persistent://{PUBLIC_DEFAULT}/s-{number}") for number in range(1000))
        second = next(name for name in names if bundle_of(owner, name) == whole)
        await owner.publish(first, b"one")
        await owner.publish(second, b"two")
        await until(lambda: state_of(asked, whole) is BundleState.DELETED)
        await until(lambda: bundle_of(asked, first) != bundle_of(asked, second))
        assert owner_of(cluster, first) is owner_of(cluster, second) is owner
        assert 'reason="Topics"' in await metrics_of(owner)


@pytest.mark.parametrize("config", [BALANCED, BY_TOPIC], ids=["metadata", "topic"])
async def test_bundles_move_and_split_by_either_channel(config: BrokerConfig) -> None:
    async with balanced(3, config) as cluster:
        asked, owner, target = cluster.nodes
        name = topic_of(owner)
        await owner.publish(name, b"one")
        await balancer(asked).requests.transfer(
            bundle_of(asked, name), target.broker.registry.me.id, "a test"
        )
        await agree(cluster)
        assert owner_of(cluster, name) is target
        assert await target.read(name, "s", 1) == [b"one"]
        has_topic = leader_of(cluster).broker.opened(CHANNEL_TOPIC) is not None
        assert has_topic is (config is BY_TOPIC)


async def test_a_client_may_read_the_loads_of_brokers_as_they_come() -> None:
    async with balanced(2) as cluster:
        leader = leader_of(cluster)
        consumer = await leader.client.consumer(str(BROKER_LOAD_TOPIC), "s")
        ids, found = {node.broker.registry.me.id for node in cluster.nodes}, set[str]()
        while found != ids:
            # What comes before the consumer has asked for messages is lost: these topics keep none.
            for node in cluster.nodes:
                work_of(node).reporter.report_now()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    found.add((await consumer.receive()).key or "")


@pytest.mark.parametrize("topic", [CHANNEL_TOPIC, BROKER_LOAD_TOPIC], ids=["channel", "loads"])
async def test_no_client_may_write_what_brokers_believe(topic: TopicName) -> None:
    async with balanced(2, BY_TOPIC) as cluster:
        with pytest.raises(RequestRefused, match="brokers"):
            await leader_of(cluster).client.producer(str(topic))


@pytest.mark.parametrize("topic", [CHANNEL_TOPIC, BROKER_LOAD_TOPIC], ids=["channel", "loads"])
async def test_the_topics_of_brokers_cannot_be_partitioned_and_their_namespace_stays(
    topic: TopicName,
) -> None:
    config = replace(BY_TOPIC, allow_auto_topic_creation_type="partitioned", default_num_partitions=2)
    async with balanced(1, config) as cluster:
        node = cluster.first
        answer = await node.rest("PUT", f"{topic.rest_path}/partitions", json=3)
        assert answer.status_code in (409, 412), answer.text
        assert await node.client.partitions(str(topic)) == [str(topic)]
        for force in ("false", "true"):
            answer = await node.rest("DELETE", f"namespaces/{topic.namespace}", params={"force": force})
            assert (answer.status_code, "brokers share" in answer.json()["reason"]) == (412, True)
        assert node.broker.opened(CHANNEL_TOPIC) is not None


async def test_a_topic_of_the_views_that_nobody_reads_cannot_be_partitioned() -> None:
    async with balanced(1) as cluster:
        for topic in (CHANNEL_TOPIC, BROKER_LOAD_TOPIC):
            answer = await cluster.first.rest("PUT", f"{topic.rest_path}/partitions", json=3)
            assert (answer.status_code, "brokers only" in answer.json()["reason"]) == (412, True)


async def test_no_load_is_in_the_metadata_store() -> None:
    async with balanced(2) as cluster:
        await until(lambda: all(len(work_of(node).loads.loads()) == 2 for node in cluster.nodes))
        stored = await cluster.metadata.scan("/loadbalance")
        assert stored
        assert [path for path, node in stored if b"msgRateIn" in node.value] == []
