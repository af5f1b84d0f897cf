"""DAG watches on the memory store: what the first update has, what is pushed later and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from anabranch.broker.scalable.watch.dag_watch import DagWatch
from anabranch.broker.scalable.watch.layout_views import LayoutViews
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.controller.feed import TopicFeed
from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import PlanKind, ReshapePlan, ScalableTopic
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.scalable.stored import ME, NOW_MS, OTHER, MovingOwners, StoredTopics, TwoBrokers, Updates

TOPIC = TopicName.parse("topic://public/default/orders")
CLASSIC = TopicName.parse("persistent://public/default/orders")


async def anybody() -> None:
    pass


@dataclass
class Lab:
    topics: StoredTopics
    owners: MovingOwners = field(default_factory=MovingOwners)
    ended: list[DagWatch] = field(default_factory=list)
    opened: list[DagWatch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.views = LayoutViews(self.topics, self.owners, TwoBrokers())

    def watch(
        self,
        topic: TopicName = TOPIC,
        number: int = 1,
        make: Callable[[], Awaitable[None]] | None = None,
        admit: Callable[[], Awaitable[None]] = anybody,
    ) -> tuple[DagWatch, Updates]:
        updates = Updates()
        watch = DagWatch(
            number,
            topic,
            self.views,
            updates.send,
            self.ended.append,
            admit=admit,
            make=make,
            retry_s=0.01,
        )
        self.opened.append(watch)
        watch.start()
        return watch, updates


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    metadata = await MemoryMetadata(lambda: NOW_MS).connect()
    feed = TopicFeed(metadata)
    feed.start()
    made = Lab(StoredTopics(metadata, feed))
    yield made
    for watch in made.opened:
        watch.close()
    await feed.close()
    await metadata.close()


def ids(update: pb.CommandScalableTopicUpdate, state: int) -> list[int]:
    return [s.segment_id for s in update.dag.segments if s.state == state]


async def no_more_than(tasks: int) -> None:
    """Tasks that are about to end are given the turns they need for it."""
    for _ in range(100):
        if len(asyncio.all_tasks()) > tasks:
            await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= tasks


# -- the first update


async def test_the_first_update_has_the_whole_dag_and_where_it_is_served(lab: Lab) -> None:
    layout = SegmentLayout.initial(2, NOW_MS).split(0, NOW_MS + 5)
    await lab.topics.store(TOPIC, layout)
    lab.owners.moved[layout.segment(3).topic(TOPIC)] = OTHER
    _, updates = lab.watch(number=41)
    update = await updates.next()
    assert update.session_id == 41
    assert not update.HasField("error")
    dag = update.dag
    assert dag.epoch == 1
    assert ids(update, pb.SEALED) == [0]
    assert ids(update, pb.ACTIVE) == [1, 2, 3]
    parent = dag.segments[0]
    assert (parent.hash_start, parent.hash_end, list(parent.child_ids)) == (0, 0x7FFF, [2, 3])
    assert (parent.sealed_at_epoch, parent.sealed_at_ms) == (1, NOW_MS + 5)
    child = dag.segments[3]
    assert (child.hash_start, child.hash_end, list(child.parent_ids)) == (0x4000, 0x7FFF, [0])
    assert (child.created_at_epoch, child.created_at_ms) == (1, NOW_MS + 5)
    assert not child.HasField("sealed_at_epoch")
    assert {b.segment_id: (b.broker_url, b.broker_url_tls) for b in dag.segment_brokers} == {
        1: (ME.service_url, ME.service_url_tls),
        2: (ME.service_url, ME.service_url_tls),
        3: (OTHER.service_url, OTHER.service_url_tls),
    }
    assert (dag.controller_broker_url, dag.controller_broker_url_tls) == (ME.service_url, ME.service_url_tls)


async def test_every_segment_comes_with_the_starts_of_its_entry_buckets_but_the_first(lab: Lab) -> None:
    layout = SegmentLayout.initial(2, NOW_MS, budget=BucketBudget(8)).rebucket(0, 1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    _, updates = lab.watch()
    told = {s.segment_id: list(s.entry_bucket_splits) for s in (await updates.next()).dag.segments}
    assert told == {0: [0x4000, 0x8000, 0xC000], 1: [0x4000, 0x8000, 0xC000], 2: []}


async def test_a_lookup_makes_a_controller_and_its_first_update_names_it(lab: Lab) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    assert await lab.topics.leader(TOPIC) == ""
    _, updates = lab.watch()
    assert (await updates.next()).dag.controller_broker_url == ME.service_url
    assert lab.topics.touched == [TOPIC]


async def test_a_controller_on_another_broker_is_named_with_its_own_addresses(lab: Lab) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    await lab.topics.elect(TOPIC, OTHER)
    _, updates = lab.watch()
    dag = (await updates.next()).dag
    assert (dag.controller_broker_url, dag.controller_broker_url_tls) == (
        OTHER.service_url,
        OTHER.service_url_tls,
    )


@pytest.mark.parametrize(
    "asked", ["topic://public/default/orders", "persistent://public/default/orders", "orders"]
)
async def test_the_resolved_name_is_always_the_topic_name(lab: Lab, asked: str) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    _, updates = lab.watch(TopicName.parse(asked))
    update = await updates.next()
    assert update.resolved_topic_name == "topic://public/default/orders"
    assert not update.dag.segments[0].HasField("legacy_topic_name")


async def test_segments_marked_for_deletion_are_not_shown_any_more(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS).split(0, NOW_MS).split(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    _, updates = lab.watch()
    assert ids(await updates.next(), pb.SEALED) == [0, 1]
    await lab.topics.store(TOPIC, layout.mark_deleting([SegmentId(0)]))
    update = await updates.next()
    assert ids(update, pb.SEALED) == [1]
    assert update.dag.epoch == layout.epoch
    assert [list(s.parent_ids) for s in update.dag.segments if s.segment_id == 1] == [[]]


async def test_a_segment_without_an_owner_is_left_to_the_client_to_look_up(lab: Lab) -> None:
    layout = SegmentLayout.initial(2, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    lab.owners.missing.add(layout.segment(1).topic(TOPIC))
    watch, updates = lab.watch()
    assert [b.segment_id for b in (await updates.next()).dag.segment_brokers] == [0]
    lab.owners.missing.clear()
    watch.refresh()
    assert [b.segment_id for b in (await updates.next()).dag.segment_brokers] == [0, 1]


# -- later updates


async def test_a_split_between_the_first_read_and_its_answer_is_not_missed(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    splitting: list[asyncio.Task[None]] = []

    def split() -> None:
        splitting.append(
            asyncio.get_running_loop().create_task(lab.topics.store(TOPIC, layout.split(0, NOW_MS)))
        )

    await lab.topics.elect(TOPIC, ME)
    lab.topics.during_read = split
    _, updates = lab.watch()
    assert [(await updates.next()).dag.epoch, (await updates.next()).dag.epoch] == [0, 1]
    await splitting[0]


async def test_every_change_of_the_layout_is_pushed_and_epochs_only_grow(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    _, updates = lab.watch()
    assert (await updates.next()).dag.epoch == 0
    for _ in range(5):
        layout = layout.split(layout.active[-1].id, NOW_MS)
        await lab.topics.store(TOPIC, layout)
        update = await updates.next()
        assert update.dag.epoch == layout.epoch
        assert len(update.dag.segment_brokers) == len(layout.active)


async def test_an_older_layout_is_never_pushed(lab: Lab) -> None:
    old = SegmentLayout.initial(1, NOW_MS)
    new = old.split(0, NOW_MS)
    await lab.topics.store(TOPIC, new)
    watch, updates = lab.watch()
    assert (await updates.next()).dag.epoch == 1
    # A store may answer with an older value for a while, as a follower that lags behind does.
    await lab.topics.store(TOPIC, old)
    watch.refresh()
    await lab.topics.store(TOPIC, new.split(1, NOW_MS))
    assert (await updates.next()).dag.epoch == 2
    assert updates.waiting == 0


async def test_changes_that_come_together_are_pushed_once(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    _, updates = lab.watch()
    await updates.next()
    reads = lab.topics.reads
    for _ in range(50):
        layout = layout.split(layout.active[0].id if len(layout.active) < 8 else layout.active[-1].id, NOW_MS)
        if len(layout.active) == 8:
            break
        await lab.topics.store(TOPIC, layout)
    await lab.topics.store(TOPIC, layout)
    epoch = 0
    while epoch < layout.epoch:
        epoch = (await updates.next()).dag.epoch
    assert lab.topics.reads - reads <= layout.epoch + 1


async def test_what_clients_cannot_see_is_not_pushed(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    _, updates = lab.watch()
    await updates.next()
    planned = layout.split(0, NOW_MS)
    plan = ReshapePlan(PlanKind.SPLIT, (SegmentId(0),), planned)
    await lab.topics.put(TOPIC, ScalableTopic(layout, 7, properties={"colour": "blue"}, plan=plan))
    await lab.topics.store(TOPIC, planned)
    assert (await updates.next()).dag.epoch == 1
    assert updates.waiting == 0


async def test_a_new_controller_reaches_watchers(lab: Lab) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    await lab.topics.elect(TOPIC, ME)
    _, updates = lab.watch()
    assert (await updates.next()).dag.controller_broker_url == ME.service_url
    lab.topics.leads_when_touched = False
    await lab.topics.resign(TOPIC)
    assert not (await updates.next()).dag.HasField("controller_broker_url")
    await lab.topics.elect(TOPIC, OTHER)
    assert (await updates.next()).dag.controller_broker_url == OTHER.service_url


async def test_a_moved_segment_reaches_watchers(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    watch, updates = lab.watch()
    assert (await updates.next()).dag.segment_brokers[0].broker_url == ME.service_url
    lab.owners.moved[layout.segment(0).topic(TOPIC)] = OTHER
    watch.refresh()
    update = await updates.next()
    assert update.dag.epoch == 0
    assert update.dag.segment_brokers[0].broker_url == OTHER.service_url


async def test_a_store_that_is_away_for_a_while_costs_nothing_but_time(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    watch, updates = lab.watch()
    await updates.next()
    lab.topics.failure = StoreUnavailable("gone fishing")
    await lab.topics.store(TOPIC, layout.split(0, NOW_MS))
    watch.refresh()
    async with asyncio.timeout(10):
        await lab.topics.failures.get()
        await lab.topics.failures.get()
    lab.topics.failure = None
    update = await updates.next()
    assert (update.dag.epoch, update.HasField("error")) == (1, False)


# -- missing, made and deleted topics


async def test_a_missing_topic_is_answered_with_the_reason(lab: Lab) -> None:
    watch, updates = lab.watch(number=9)
    update = await updates.next()
    assert (update.session_id, update.error) == (9, pb.TopicNotFound)
    assert "does not exist" in update.message
    assert not update.HasField("dag")
    assert lab.ended == [watch]
    assert lab.topics.feed.listeners == 0
    assert lab.topics.touched == []


async def test_a_missing_topic_is_made_by_its_first_lookup_only(lab: Lab) -> None:
    made: list[int] = []

    async def make() -> None:
        made.append(1)
        await lab.topics.store(TOPIC, SegmentLayout.initial(3, NOW_MS))

    _, updates = lab.watch(make=make)
    assert len(ids(await updates.next(), pb.ACTIVE)) == 3
    await lab.topics.remove(TOPIC)
    update = await updates.next()
    assert update.error == pb.TopicNotFound
    assert made == [1]


async def test_a_topic_that_may_not_be_made_is_refused(lab: Lab) -> None:
    async def make() -> None:
        raise NotAuthorizedError("no")

    _, updates = lab.watch(make=make)
    assert (await updates.next()).error == pb.AuthorizationError


async def test_somebody_without_the_right_to_look_learns_nothing(lab: Lab) -> None:
    async def admit() -> None:
        raise NotAuthorizedError("you may not look up this topic")

    _, updates = lab.watch(admit=admit)
    update = await updates.next()
    assert (update.error, update.HasField("dag")) == (pb.AuthorizationError, False)
    assert lab.topics.reads == 0


async def test_watchers_are_told_of_a_deleted_topic_and_nothing_brings_it_back(lab: Lab) -> None:
    async def make() -> None:
        raise AssertionError("a topic that was there is not made")

    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    watch, updates = lab.watch(make=make)
    await updates.next()
    await lab.topics.put(TOPIC, ScalableTopic(layout, 7, is_deleting=True))
    update = await updates.next()
    assert (update.error, update.HasField("dag")) == (pb.TopicNotFound, False)
    assert "deleted" in update.message
    assert lab.ended == [watch]
    assert lab.topics.feed.listeners == 0


async def test_a_topic_made_anew_is_another_topic(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout.split(0, NOW_MS), generation=1)
    _, updates = lab.watch()
    await updates.next()
    await lab.topics.store(TOPIC, layout, generation=2)
    update = await updates.next()
    assert update.error == pb.TopicNotFound
    assert "look it up again" in update.message


# -- classic topics


async def test_a_classic_topic_is_shown_as_one_segment_for_each_partition(lab: Lab) -> None:
    partitions = [f"{CLASSIC}-partition-{n}" for n in range(3)]
    lab.topics.classic[TOPIC] = partitions
    watch, updates = lab.watch(CLASSIC)
    update = await updates.next()
    assert update.resolved_topic_name == str(TOPIC)
    before = update.dag.epoch
    assert [s.legacy_topic_name for s in update.dag.segments] == partitions
    assert len(update.dag.segment_brokers) == 3
    # Stream consumers register with a controller here too.
    assert update.dag.controller_broker_url == ME.service_url
    # Another look shows the same, so it is not pushed; the migration is.
    watch.refresh()
    await lab.topics.store(TOPIC, SegmentLayout.migrated(partitions, NOW_MS))
    update = await updates.next()
    assert update.dag.epoch == before + 1
    assert [s.legacy_topic_name for s in update.dag.segments] == [*partitions, "", "", ""]
    assert [b.segment_id for b in update.dag.segment_brokers] == [3, 4, 5]
    assert updates.waiting == 0


# -- the end of a watch


async def test_ten_thousand_watches_leave_nothing_behind(lab: Lab) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    tasks = len(asyncio.all_tasks())
    for number in range(10_000):
        watch, updates = lab.watch(number=number)
        if number % 100 == 0:
            await updates.next()
        watch.close()
    lab.opened.clear()
    await no_more_than(tasks)
    assert lab.topics.feed.listeners == 0
    assert lab.ended == []


async def test_an_idle_watch_has_no_task(lab: Lab) -> None:
    await lab.topics.store(TOPIC, SegmentLayout.initial(1, NOW_MS))
    tasks = len(asyncio.all_tasks())
    for number in range(100):
        _, updates = lab.watch(number=number)
        await updates.next()
    await no_more_than(tasks)


async def test_watchers_of_one_topic_share_one_look(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    watched = [lab.watch(number=number)[1] for number in range(500)]
    for updates in watched:
        await updates.next()
    reads = lab.topics.reads
    await lab.topics.store(TOPIC, layout.split(0, NOW_MS))
    assert {(await updates.next()).dag.epoch for updates in watched} == {1}
    assert lab.topics.reads - reads < 10


async def test_a_closed_watch_says_nothing_more(lab: Lab) -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    await lab.topics.store(TOPIC, layout)
    closed, silent = lab.watch(number=1)
    await silent.next()
    _, updates = lab.watch(number=2)
    await updates.next()
    closed.close()
    closed.refresh()
    await lab.topics.put(TOPIC, replace(ScalableTopic(layout, 7), layout=layout.split(0, NOW_MS)))
    await updates.next()
    assert silent.waiting == 0
