"""What the owner of a segment writes about its load, when, and for how long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from anabranch.autoscale.load import Load
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.scalable.load.auto_policy import broker_policy
from anabranch.broker.scalable.load.reporter import LoadReporter
from anabranch.broker.scalable.load.scale_policies import ScalePolicies
from anabranch.metadata.port import Versioned
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName
from anabranch.model.scalable import load_path, loads_path, topic_path
from anabranch.model.segments import Segment
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.cluster import NOW_MS, TOPIC, Cluster, deleting, name_of, running

CONFIG = BrokerConfig(
    # The test says when to look.
    scalable_topic_load_report_interval=86_400.0,
    scalable_topic_auto_scale_interval=86_400.0,
    scalable_topic_split_msg_rate_in_threshold=10.0,
    scalable_topic_merge_msg_rate_in_threshold=1.0,
)
MESSAGE = b"x" * 100


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(config=CONFIG) as made:
        yield made


class Observer:
    """A reporter on a clock of the test's."""

    def __init__(self, cluster: Cluster, node: int = 0, interval_s: float = 10.0) -> None:
        self.now = 1000.0
        self.interval_s = interval_s
        self._cluster = cluster
        broker = cluster.nodes[node].broker
        assert broker.scalable is not None
        self.reporter = LoadReporter(
            broker.config,
            broker.metadata,
            broker.resources,
            broker.owners,
            broker.scalable.feed,
            broker,
            ScalePolicies(broker_policy(broker.config), broker.resources),
            broker.now_ms,
            lambda: self.now,
            interval_s=interval_s,
            window_s=60.0,
            change=0.25,
        )
        self.reporter.start()

    async def look(self, times: int = 1) -> None:
        """So many rounds later."""
        for _ in range(times):
            self.now += self.interval_s
            await self.reporter.sample()

    async def flow(self, segment: Segment, rate: float, rounds: int, node: int = 0) -> None:
        """A steady stream into the segment."""
        count = round(rate * self.interval_s)
        for _ in range(rounds):
            await self._cluster.nodes[node].publish(name_of(segment), *([MESSAGE] * count))
            await self.look()


async def record(cluster: Cluster, segment: Segment) -> Versioned | None:
    return await cluster.metadata.get(load_path(TOPIC, segment.id))


async def load(cluster: Cluster, segment: Segment) -> Load:
    found = await record(cluster, segment)
    assert found is not None
    return Load.decode(found.value)


async def version(cluster: Cluster, segment: Segment) -> int:
    found = await record(cluster, segment)
    assert found is not None
    return found.version


async def opened(cluster: Cluster, segments: int = 1) -> list[Segment]:
    made = await cluster.topic(segments)
    for segment in made:
        await cluster.first.broker.topic(name_of(segment))
    return made


# -- what is written


async def test_the_first_sample_is_written_even_of_an_idle_segment(cluster: Cluster) -> None:
    segments = await opened(cluster, 2)
    await Observer(cluster).look()
    for segment in segments:
        found = await record(cluster, segment)
        assert found is not None
        # Four doubles at the path of the specification, and no time.
        value = json.loads(found.value)
        assert value == {"msgRateIn": 0.0, "bytesRateIn": 0.0, "msgRateOut": 0.0, "bytesRateOut": 0.0}
        assert all(isinstance(rate, float) for rate in value.values())
    path = load_path(TOPIC, segments[1].id)
    assert path == "/topics/public/default/orders/segments/1/load"


async def test_entries_in_no_single_bucket_are_told_for_a_window_after_the_last(cluster: Cluster) -> None:
    (segment,) = await cluster.topic(1, buckets=4)
    await cluster.first.broker.topic(name_of(segment))
    observer = Observer(cluster)
    await observer.look()
    assert not (await load(cluster, segment)).is_unstamped
    # What the test publishes has no stamp.
    await observer.flow(segment, rate=0.1, rounds=1)
    assert (await load(cluster, segment)).is_unstamped
    await observer.look(5)
    assert (await load(cluster, segment)).is_unstamped
    await observer.look(2)
    assert not (await load(cluster, segment)).is_unstamped


async def test_a_segment_with_one_bucket_needs_no_stamps(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(segment, rate=1, rounds=3)
    assert not (await load(cluster, segment)).is_unstamped


async def test_rates_are_averages_over_a_minute(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(segment, 3.0, 12)
    found = await load(cluster, segment)
    assert found.msg_rate_in == pytest.approx(3.0)
    assert 300 < found.bytes_rate_in < 600
    # Twenty seconds later a third of it has passed.
    await observer.look(2)
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(2.0)


async def test_a_burst_at_the_beginning_is_not_taken_for_sustained_load(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    await Observer(cluster).flow(segment, 12.0, 1)
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(4.0)


async def test_out_rates_sum_all_subscriptions_queues_included_and_those_gone_too(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    name = name_of(segment)
    observer = Observer(cluster)
    await observer.look(6)
    await cluster.first.publish(name, *([MESSAGE] * 60))
    client = cluster.first.client
    for subscription, kind in (
        ("stream", pb.CommandSubscribe.Failover),
        ("queue", pb.CommandSubscribe.Shared),
    ):
        consumer = await client.consumer(str(name), subscription, earliest=True, kind=kind)
        for _ in range(60):
            await consumer.ack(await consumer.receive())
        await consumer.close()
    reader = await cluster.reader(name, "r")
    for _ in range(60):
        await reader.messages.get()
    await reader.close()
    await observer.look()
    assert (await load(cluster, segment)).msg_rate_out == pytest.approx(3.0)


# -- when it is written


async def test_a_steady_segment_writes_once_and_is_silent(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(segment, 3.0, 12)
    written = await version(cluster, segment)
    await observer.flow(segment, 3.0, 12)
    await observer.flow(segment, 3.5, 12)
    assert await version(cluster, segment) == written
    await observer.flow(segment, 5.0, 12)
    assert await version(cluster, segment) > written
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(5.0, rel=0.25)


async def test_an_idle_segment_is_written_once(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(50)
    assert await version(cluster, segment) == 0


async def test_leaving_nothing_is_written_and_the_wobble_of_a_cold_segment_is_not(cluster: Cluster) -> None:
    # A tenth of the merge threshold: 0.1 a second here.
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(7)
    await cluster.first.publish(name_of(segment), MESSAGE, MESSAGE, MESSAGE)
    await observer.look()
    assert await version(cluster, segment) == 1
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(0.05)
    await cluster.first.publish(name_of(segment), MESSAGE, MESSAGE)
    await observer.look()
    await observer.look(20)
    assert await version(cluster, segment) == 1


async def test_crossing_the_topics_own_threshold_is_written_however_small_the_step(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(segment, 3.0, 12)
    written = await version(cluster, segment)
    await observer.flow(segment, 3.3, 12)
    assert await version(cluster, segment) == written
    await cluster.change(lambda r: replace(r, auto_scale={"splitMsgRateInThreshold": 3.4}))
    await observer.flow(segment, 3.3, 1)
    assert await version(cluster, segment) == written
    await observer.flow(segment, 3.5, 8)
    assert await version(cluster, segment) == written + 1


@pytest.mark.parametrize("where", ["topic", "namespace"])
async def test_a_new_threshold_is_noticed_for_a_segment_at_rest_too(cluster: Cluster, where: str) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(7)
    await cluster.first.publish(name_of(segment), MESSAGE, MESSAGE, MESSAGE)
    await observer.look(20)
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(0.05), "coming to rest was not news"
    policy = {"mergeMsgRateInThreshold": 0.01}
    if where == "topic":
        await cluster.change(lambda r: replace(r, auto_scale=policy))
    else:
        path = "namespaces/public/default/scalableTopicAutoScalePolicy"
        assert (await cluster.first.rest("POST", path, json=policy)).is_success
    await observer.look(2)
    assert await load(cluster, segment) == Load()


async def test_a_segment_at_rest_that_moves_again_is_averaged_from_the_last_round_on(
    cluster: Cluster,
) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(60)
    assert observer.reporter.followed == {name_of(segment)}
    await observer.flow(segment, 3.0, 1)
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(0.5)
    found = observer.reporter.history.latest(TOPIC)[segment.id]
    assert found.load.msg_rate_in == pytest.approx(3.0)
    await observer.flow(segment, 3.0, 5)
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(3.0, rel=0.25)


async def test_a_segment_at_rest_is_let_go_when_it_closes_and_followed_anew_when_it_opens(
    cluster: Cluster,
) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(20)
    await (await cluster.first.broker.topic(name_of(segment))).close()
    await observer.look()
    assert observer.reporter.followed == set()
    await observer.look(10)
    await observer.flow(segment, 3.0, 12)
    assert observer.reporter.followed == {name_of(segment)}
    assert (await load(cluster, segment)).msg_rate_in == pytest.approx(3.0)


# -- restarts and moves


async def test_a_new_owner_does_not_rewrite_a_record_that_still_holds(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    await Observer(cluster).flow(segment, 3.0, 12)
    written = await version(cluster, segment)
    # What an owner starts with: nothing but the stored record.
    again = Observer(cluster)
    await (await cluster.first.broker.topic(name_of(segment))).close()
    await again.flow(segment, 3.0, 12)
    assert await version(cluster, segment) == written


async def test_a_segment_that_moved_is_reported_by_its_new_owner_alone() -> None:
    async with running(2, CONFIG) as cluster:
        (segment,) = await opened(cluster)
        first, second = Observer(cluster, 0), Observer(cluster, 1)
        await first.flow(segment, 3.0, 12)
        await second.look(12)
        written = await version(cluster, segment)
        cluster.move(name_of(segment), 1)
        await second.flow(segment, 3.0, 6, node=1)
        await first.look(12)
        assert await version(cluster, segment) == written
        await second.flow(segment, 6.0, 12, node=1)
        assert (await load(cluster, segment)).msg_rate_in == pytest.approx(6.0, rel=0.25)
        written = await version(cluster, segment)
        await first.look(12)
        assert await version(cluster, segment) == written


async def test_a_closed_segment_is_followed_until_it_is_at_rest(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(segment, 12.0, 12)
    await (await cluster.first.broker.topic(name_of(segment))).close()
    await observer.look(7)
    assert await load(cluster, segment) == Load()
    written = await version(cluster, segment)
    await observer.look(20)
    assert await version(cluster, segment) == written


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_segment_whose_trickle_is_not_worth_a_write_is_let_go_too_once_it_is_at_rest(
    cluster: Cluster, is_deleted: bool
) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look(7)
    await cluster.first.publish(name_of(segment), MESSAGE)
    await observer.look()
    written = await load(cluster, segment)
    assert 0 < written.msg_rate_in < 0.1
    if is_deleted:
        await cluster.put(deleting(await cluster.record()))
        await cluster.segments.delete(TOPIC, segment)
    else:
        await (await cluster.first.broker.topic(name_of(segment))).close()
    await observer.look()
    assert observer.reporter.followed == {name_of(segment)}
    await observer.look(8)
    assert observer.reporter.followed == set()
    assert (await record(cluster, segment) is None) == is_deleted


async def test_a_load_that_an_earlier_run_left_behind_comes_down_though_nobody_opens_the_segment(
    cluster: Cluster,
) -> None:
    (segment,) = await cluster.topic()
    await cluster.metadata.put(load_path(TOPIC, segment.id), Load(12.0).encode())
    observer = Observer(cluster)
    await observer.reporter.adopt()
    await observer.look()
    assert (await load(cluster, segment)).msg_rate_in > 8.0
    await observer.look(7)
    assert await load(cluster, segment) == Load()
    assert cluster.first.broker.opened(name_of(segment)) is None


async def test_a_broker_that_gains_a_bundle_looks_for_loads_in_its_namespace_only(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await cluster.topic()
    await cluster.metadata.put(load_path(TOPIC, segment.id), Load(12.0).encode())
    observer = Observer(cluster)
    scanned: list[str] = []
    metadata = cluster.first.broker.metadata
    scan = metadata.scan

    async def noted(prefix: str) -> object:
        scanned.append(prefix)
        return await scan(prefix)

    monkeypatch.setattr(metadata, "scan", noted)
    moved = [BundleName.parse(f"public/{name}/0x00000000_0xffffffff") for name in ("default", "other")]
    assert observer.reporter.owners_changed(moved)
    assert not observer.reporter.owners_changed(moved), "one run serves all that comes meanwhile"
    await observer.reporter.adopt_moved()
    assert scanned == ["/topics/public/default", "/topics/public/other"]
    assert observer.reporter.followed == {name_of(segment)}


async def test_what_an_earlier_run_left_of_very_many_segments_is_found_in_a_moment(cluster: Cluster) -> None:
    """Reading the record of a topic so large takes a while: once, not once for each segment."""
    segments = await cluster.topic(2_000, made=False)
    await asyncio.gather(
        *(cluster.metadata.put(load_path(TOPIC, one.id), Load(12.0).encode()) for one in segments)
    )
    observer = Observer(cluster)
    async with asyncio.timeout(20):
        await observer.reporter.adopt()
    assert len(observer.reporter.followed) == 2_000


# -- the end


async def test_a_sealed_segment_is_no_longer_reported_and_its_children_are(cluster: Cluster) -> None:
    (parent,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.flow(parent, 3.0, 12)
    written = await version(cluster, parent)
    children = await cluster.split()
    await observer.look(12)
    assert await version(cluster, parent) == written
    for child in children:
        assert await load(cluster, child) == Load()


async def test_the_record_goes_with_its_segment(cluster: Cluster) -> None:
    (parent,) = await opened(cluster)
    observer = Observer(cluster)
    await observer.look()
    await cluster.split()
    await observer.look()
    await cluster.change(lambda r: replace(r, layout=r.layout.mark_deleting([parent.id])))
    await cluster.segments.delete(TOPIC, parent)
    await cluster.change(lambda r: replace(r, layout=r.layout.prune([parent.id])))
    await observer.look(3)
    assert await record(cluster, parent) is None
    assert await cluster.metadata.children(loads_path(TOPIC)) == ["1", "2"]


async def test_a_topic_deleted_under_the_reporter_leaves_nothing_behind(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    observer = Observer(cluster)
    store = cluster.first.broker.metadata
    create, topic = store.create, cluster.first.broker.opened(name_of(segment))
    assert topic is not None

    async def delete_then_create(path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        if path.endswith("/load"):
            await cluster.put(deleting(await cluster.record()))
            await cluster.segments.delete(TOPIC, segment)
            await cluster.metadata.delete(f"{topic_path(TOPIC)}/controller")
            await cluster.metadata.delete(topic_path(TOPIC))
        return await create(path, value, ephemeral=ephemeral)

    setattr(store, "create", delete_then_create)  # noqa: B010 (a method of a real store, with a race put in)
    await observer.look(3)
    assert await cluster.metadata.scan("/topics") == []
    assert await cluster.metadata.get(topic_path(TOPIC)) is None


async def test_classic_topics_are_not_reported(cluster: Cluster) -> None:
    await cluster.first.publish(TopicName.parse("persistent://public/default/classic"), MESSAGE)
    await Observer(cluster).look(3)
    assert await cluster.metadata.scan("/topics") == []


async def test_clients_cannot_write_load_records(cluster: Cluster) -> None:
    (segment,) = await opened(cluster)
    await Observer(cluster).look()
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in (
            "scalable/public/default/orders/segments/0/load",
            f"segments/public/default/orders/{segment.descriptor}/load",
        ):
            answer = await cluster.first.rest(method, path, json={"msgRateIn": 1.0})
            assert answer.is_client_error
    assert await version(cluster, segment) == 0


# -- the broker's own


async def test_the_broker_reports_by_itself_and_keeps_what_flowed_for_the_page() -> None:
    config = BrokerConfig(scalable_topic_load_report_interval=0.05)
    async with running(config=config) as cluster:
        (segment,) = await opened(cluster)
        broker = cluster.first.broker
        await cluster.first.publish(name_of(segment), *([MESSAGE] * 100))
        async with asyncio.timeout(10):
            while await record(cluster, segment) is None or len(broker.load_history) < 2:
                await broker.metadata.now_ms()  # Lets the loop go round.
        found = broker.load_history.since(TOPIC, NOW_MS)
        assert sum(sample.load.msg_rate_in for sample in found[segment.id]) > 0
        assert broker.load_history.since(TOPIC, NOW_MS + 1) == {}
