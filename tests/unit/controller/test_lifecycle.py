"""Topics made, reshaped, collected and deleted through the service, on owners in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.controller.core.errors import (
    OperationRefused,
    SegmentUnavailable,
    SubscriptionMissing,
    TooBusy,
    TopicExists,
    TopicMissing,
)
from anabranch.controller.settings import SEGMENTS_MAX
from anabranch.metadata.errors import AlreadyExists
from anabranch.model.names import TopicName
from anabranch.model.scalable import (
    InitialPosition,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    subscription_path,
    topic_path,
)
from anabranch.model.segments import LayoutRefused, Segment, SegmentId
from unit.controller.rig import TOPIC, Rig, simulated

KIND, AT = SubscriptionKind, InitialPosition


# -- making


@simulated
async def test_a_new_topic_has_equal_ranges_at_epoch_0_and_a_log_for_each(rig: Rig) -> None:
    broker = await rig.broker()
    record = await broker.create(TOPIC, 3, {"team": "red"})
    layout = record.layout
    assert layout.epoch == 0
    assert [str(s.range) for s in layout.active] == ["0000-5554", "5555-aaa9", "aaaa-ffff"]
    assert all(s.is_active and not s.parents for s in layout.active)
    assert {str(s.topic(TOPIC)) for s in layout.active} == set(rig.owners.logs)
    assert await broker.get(TOPIC) == record


@simulated
async def test_metadata_is_written_before_the_first_segment_is_made(rig: Rig) -> None:
    broker = await rig.broker()
    seen: list[ScalableTopic | None] = []

    async def look(what: str, segment: Segment) -> None:
        seen.append(await broker.get(TOPIC))

    rig.owners.before = look
    await broker.create(TOPIC)
    assert seen[0] is not None


@simulated
async def test_impossible_numbers_of_segments_and_taken_names_are_refused(rig: Rig) -> None:
    broker = await rig.broker()
    for count in (0, -1, SEGMENTS_MAX + 1):
        with pytest.raises(OperationRefused, match=f"1 to {SEGMENTS_MAX}"):
            await broker.create(TOPIC, count)
    assert await broker.get(TOPIC) is None
    await broker.create(TOPIC)
    with pytest.raises(TopicExists):
        await broker.create(TOPIC)


@simulated
async def test_of_two_that_create_a_name_at_once_one_is_told_that_it_exists(rig: Rig) -> None:
    brokers = [await rig.broker(), await rig.broker()]
    results = await asyncio.gather(*(b.create(TOPIC) for b in brokers), return_exceptions=True)
    assert sorted(type(r).__name__ for r in results) == ["ScalableTopic", "TopicExists"]


@simulated
async def test_a_creation_that_died_after_its_metadata_is_completed_by_the_next_controller(rig: Rig) -> None:
    broker = await rig.broker()
    rig.owners.unavailable = {SegmentId(1), SegmentId(2)}
    with pytest.raises(SegmentUnavailable):
        await broker.create(TOPIC, 3)
    assert len(rig.owners.logs) == 1
    rig.owners.unavailable.clear()
    broker.touch(TOPIC)
    await rig.until(lambda: len(rig.owners.logs) == 3)


@simulated
async def test_a_topic_that_does_not_exist_is_missing_everywhere_and_not_made_by_asking(rig: Rig) -> None:
    broker = await rig.broker()
    for asked in (broker.split(TOPIC, 0), broker.stats(TOPIC), broker.delete(TOPIC), broker.view(TOPIC)):
        with pytest.raises(TopicMissing):
            await asked
    broker.touch(TOPIC)
    await asyncio.sleep(1)
    assert await broker.metadata.get(topic_path(TOPIC)) is None


# -- splitting and merging


@simulated
async def test_a_split_in_the_middle_of_subscribing_leaves_no_child_without_the_cursor(rig: Rig) -> None:
    """The subscription is registered after the controller has read the subscriptions, before the seal."""
    broker = await rig.broker()
    record = await broker.create(TOPIC)

    async def subscribe(what: str, segment: Segment) -> None:
        if what == "seal":
            wanted = SubscriptionRecord("late", KIND.QUEUE, record.generation, AT.EARLIEST)
            await broker.records.register_subscription(TOPIC, wanted)

    rig.owners.before = subscribe
    layout = await broker.split(TOPIC, 0)
    for child in layout.active:
        assert "late" in rig.owners.log(child).cursors


@simulated
async def test_no_layout_is_visible_whose_children_lack_cursors_or_whose_parent_is_open(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    for name in ("a", "b"):
        await broker.create_subscription(TOPIC, name)
    seen = []

    def look(part: object) -> None:
        seen.append(asyncio.ensure_future(broker.view(TOPIC)))

    broker.feed.listen(TOPIC, look)
    await broker.split(TOPIC, 0)
    await broker.merge(TOPIC, 1, 2)
    await asyncio.sleep(1)
    for view in [await s for s in seen]:
        for segment in view.layout.segments.values():
            log = rig.owners.log(segment)
            assert segment.is_active or log.is_sealed
            assert set(log.cursors) == {"a", "b"}


@simulated
async def test_a_merge_seals_its_parents_one_after_the_other_and_joins_their_subscriptions(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await broker.create_subscription(TOPIC, "a")
    layout = await broker.merge(TOPIC, 1, 0)
    seals = [number for what, number in rig.owners.calls if what == "seal"]
    assert seals == [0, 1]
    [child] = layout.active
    assert child.parents == (0, 1)
    assert rig.owners.log(child).cursors == {"a": 0}


@simulated
async def test_a_merge_interrupted_after_one_seal_is_finished(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await broker.create_subscription(TOPIC, "a")
    rig.owners.unavailable = {SegmentId(1)}
    merging = asyncio.ensure_future(broker.merge(TOPIC, 0, 1))
    await rig.until(lambda: ("seal", 1) in rig.owners.calls)
    await asyncio.sleep(10)
    assert not merging.done()
    rig.owners.unavailable.clear()
    assert (await merging).epoch == 1


@simulated
async def test_operations_asked_for_at_once_all_happen_and_never_overlap(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 8)
    layouts = await asyncio.gather(*(broker.split(TOPIC, n) for n in range(8)))
    assert sorted(layout.epoch for layout in layouts) == list(range(1, 9))
    assert len((await broker.view(TOPIC)).layout.active) == 16


@simulated
async def test_a_refused_split_leaves_record_and_segments_as_they_were(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 4)
    before, calls = await broker.metadata.get(topic_path(TOPIC)), list(rig.owners.calls)
    for refused in (broker.split(TOPIC, 7), broker.merge(TOPIC, 0, 2), broker.merge(TOPIC, 1, 1)):
        with pytest.raises(LayoutRefused):
            await refused
    assert await broker.metadata.get(topic_path(TOPIC)) == before
    assert [c for c in rig.owners.calls if c[0] != "create"] == [c for c in calls if c[0] != "create"]


@simulated
async def test_properties_and_policy_set_while_a_split_runs_survive_it(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 1, {"team": "red"})

    async def change(what: str, segment: Segment) -> None:
        if what == "seal":
            await broker.update(
                TOPIC, lambda r: replace(r, properties={"team": "blue"}, auto_scale={"enabled": False})
            )

    rig.owners.before = change
    await broker.split(TOPIC, 0)
    record = await broker.view(TOPIC)
    assert record.properties == {"team": "blue"}
    assert record.auto_scale == {"enabled": False}
    assert record.layout.epoch == 1


# -- subscriptions


@simulated
async def test_earliest_subscriptions_cover_sealed_segments_and_latest_ones_only_active(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    rig.owners.log((await broker.view(TOPIC)).layout.active[0]).messages = 5
    layout = await broker.split(TOPIC, 0)
    await broker.create_subscription(TOPIC, "all", KIND.STREAM, AT.EARLIEST)
    await broker.create_subscription(TOPIC, "new", KIND.QUEUE, AT.LATEST)
    [parent] = layout.sealed
    assert rig.owners.log(parent).cursors == {"all": 0}
    for child in layout.active:
        assert set(rig.owners.log(child).cursors) == {"all", "new"}


@simulated
async def test_a_subscription_that_a_segments_owner_registered_gets_its_other_cursors(rig: Rig) -> None:
    broker = await rig.broker()
    record = await broker.create(TOPIC, 2)
    broker.touch(TOPIC)
    await rig.until(lambda: broker.controllers[TOPIC].is_leader)
    wanted = SubscriptionRecord("direct", KIND.QUEUE, record.generation, AT.EARLIEST)
    await broker.records.register_subscription(TOPIC, wanted)
    await rig.until(lambda: all("direct" in log.cursors for log in rig.owners.logs.values()))


@simulated
async def test_a_deleted_subscription_is_gone_from_every_segment_sealed_ones_too(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "a")
    await broker.split(TOPIC, 0)
    link, _ = await rig.joined(broker, "one", "a")
    await broker.delete_subscription(TOPIC, "a")
    assert all(not log.cursors for log in rig.owners.logs.values())
    assert await broker.subscriptions(TOPIC) == {}
    assert link.told[-1][1].segments == ()
    with pytest.raises(SubscriptionMissing):
        await broker.delete_subscription(TOPIC, "a")


@simulated
async def test_a_subscription_deleted_while_a_split_waits_does_not_come_back(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await broker.create_subscription(TOPIC, "a")
    await asyncio.gather(
        broker.split(TOPIC, 0), broker.delete_subscription(TOPIC, "a"), broker.split(TOPIC, 1)
    )
    assert all(not log.cursors for log in rig.owners.logs.values())


@simulated
async def test_a_subscription_deleted_while_a_split_or_merge_runs_is_on_none_of_the_children(
    rig: Rig,
) -> None:
    """Marked by another broker that believes it leads, when the children have their cursors already."""
    broker = await rig.broker()
    record = await broker.create(TOPIC)
    going = ""

    async def mark(what: str, segment: Segment) -> None:
        if what == "seal" and going:
            marked = SubscriptionRecord(going, KIND.QUEUE, record.generation, AT.EARLIEST, is_deleting=True)
            await broker.records.store_subscription(TOPIC, marked)

    rig.owners.before = mark
    for name in ("kept", "first", "second"):
        await broker.create_subscription(TOPIC, name, KIND.QUEUE)
    going = "first"
    split = await broker.split(TOPIC, 0)
    assert all(set(rig.owners.log(s).cursors) == {"kept", "second"} for s in split.active)
    going = "second"
    merged = await broker.merge(TOPIC, 1, 2)
    assert set(rig.owners.log(merged.active[0]).cursors) == {"kept"}


@simulated
async def test_a_deposed_leader_removes_no_subscription_that_was_made_again(rig: Rig) -> None:
    broker = await rig.broker()
    record = await broker.create(TOPIC)
    made = SubscriptionRecord("a", KIND.QUEUE, record.generation, AT.EARLIEST)
    late = replace(made, is_deleting=True)
    await broker.records.change_subscription(TOPIC, late)
    assert await broker.subscriptions(TOPIC) == {}, "marking what is gone brings it back"
    await broker.records.register_subscription(TOPIC, made)
    await broker.records.remove_subscription(TOPIC, "a")
    assert await broker.subscriptions(TOPIC) == {"a": made}
    await broker.records.change_subscription(TOPIC, late)
    await broker.records.remove_subscription(TOPIC, "a")
    assert await broker.subscriptions(TOPIC) == {}


@simulated
async def test_seek_and_skip_all_reach_every_segment(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "a")
    layout = await broker.split(TOPIC, 0)
    for log in rig.owners.logs.values():
        log.messages = 9
    await broker.skip_all(TOPIC, "a")
    assert [rig.owners.log(s).cursors["a"] for s in layout.segments.values()] == [9, 9, 9]
    await broker.seek(TOPIC, "a", 0)
    assert [rig.owners.log(s).cursors["a"] for s in layout.segments.values()] == [0, 0, 0]
    with pytest.raises(SubscriptionMissing):
        await broker.seek(TOPIC, "nobody", 0)


# -- collecting


@simulated
async def test_a_sealed_segment_goes_after_retention_once_every_subscription_has_drained_it(rig: Rig) -> None:
    async def an_hour(namespace: object) -> int:
        return 3_600_000

    broker = await rig.broker(retention_ms=an_hour)
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "fast")
    await broker.create_subscription(TOPIC, "slow", KIND.QUEUE)
    root = (await broker.view(TOPIC)).layout.active[0]
    log = rig.owners.log(root)
    log.messages = 10
    await broker.split(TOPIC, 0)
    log.cursors = {"fast": 10, "slow": 9}
    await asyncio.sleep(7200)
    assert SegmentId(0) in (await broker.view(TOPIC)).layout.segments, "one message is not consumed"
    log.cursors["slow"] = 10
    await asyncio.sleep(120)
    layout = (await broker.view(TOPIC)).layout
    assert list(layout.segments) == [1, 2]
    assert layout.epoch == 2
    assert all(not s.parents for s in layout.active)
    assert str(root.topic(TOPIC)) not in rig.owners.logs

    await broker.split(TOPIC, 1)
    await asyncio.sleep(3000)
    assert SegmentId(1) in (await broker.view(TOPIC)).layout.segments, "retention has not passed"


@simulated
async def test_a_segment_is_kept_for_producers_in_doubt_however_long_its_split_waited_for_the_seal(
    rig: Rig,
) -> None:
    """They learn of the seal when it happens, and then ask the segment what it holds."""

    async def a_minute(namespace: object) -> int:
        return 60_000

    async def seal_late(what: str, segment: Segment) -> None:
        if what == "seal" and rig.loop.time() < ready:
            raise SegmentUnavailable("its owner is away")

    broker = await rig.broker(retention_ms=a_minute)
    await broker.create(TOPIC)
    ready = rig.loop.time() + 630  # Not at the moment of a look.
    rig.owners.before = seal_late
    await broker.split(TOPIC, 0)
    assert rig.loop.time() >= ready
    await asyncio.sleep(59)
    assert SegmentId(0) in (await broker.view(TOPIC)).layout.segments
    await asyncio.sleep(120)
    assert SegmentId(0) not in (await broker.view(TOPIC)).layout.segments


@simulated
async def test_a_seek_back_that_was_answered_before_the_removal_had_its_turn_keeps_its_segment(
    rig: Rig,
) -> None:
    broker = await rig.broker(collect_every_s=1e9)
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "a")
    root = (await broker.view(TOPIC)).layout.active[0]
    log = rig.owners.log(root)
    log.messages = 10
    await broker.split(TOPIC, 0)
    log.cursors["a"] = 10
    controller = broker.controllers[TOPIC]
    seeking: list[asyncio.Task[None]] = []

    async def seek_meanwhile(what: str, segment: Segment) -> None:
        # It is decided that the segment can go; before that has its turn, a seek has.
        if what == "status" and not seeking:
            seeking.append(asyncio.create_task(broker.seek(TOPIC, "a", 0)))
            await asyncio.sleep(0)

    rig.owners.before = seek_meanwhile
    await controller.collect()
    await seeking[0]
    await rig.until(lambda: not controller.is_busy)
    assert SegmentId(0) in (await broker.view(TOPIC)).layout.segments
    assert log.cursors["a"] == 0
    # And once it is read again, it goes.
    log.cursors["a"] = 10
    await controller.collect()
    await rig.until(lambda: not controller.is_busy)
    assert SegmentId(0) not in (await broker.view(TOPIC)).layout.segments


@simulated
async def test_a_segment_whose_owner_is_away_is_collected_later_and_holds_nothing_up(rig: Rig) -> None:
    broker = await rig.broker(collect_every_s=1e9)
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    controller = broker.controllers[TOPIC]
    asked = 0

    async def leave(what: str, segment: Segment) -> None:
        nonlocal asked
        asked += what == "status"
        if what == "status" and asked == 2:
            raise SegmentUnavailable("its owner is away")

    rig.owners.before = leave
    await controller.collect()
    await broker.split(TOPIC, 1)
    assert asked == 2
    assert SegmentId(0) in (await broker.view(TOPIC)).layout.segments
    await controller.collect()
    await rig.until(lambda: not controller.is_busy)
    assert SegmentId(0) not in (await broker.view(TOPIC)).layout.segments


@simulated
async def test_parents_are_collected_before_their_children_so_that_lineage_has_no_holes(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "a", KIND.QUEUE)
    root = rig.owners.log((await broker.view(TOPIC)).layout.active[0])
    root.messages = 1
    await broker.split(TOPIC, 0)
    await broker.split(TOPIC, 1)
    await asyncio.sleep(600)
    assert {0, 1} <= set((await broker.view(TOPIC)).layout.segments), (
        "0 has a message left, and 1 comes after it"
    )
    root.cursors["a"] = 1
    await asyncio.sleep(600)
    assert not (await broker.view(TOPIC)).layout.sealed


# -- deleting


@simulated
async def test_deleting_removes_segments_subscriptions_sessions_and_record(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await broker.create_subscription(TOPIC, "a")
    await broker.split(TOPIC, 0)
    link, _ = await rig.joined(broker, "one", "a")
    await broker.delete(TOPIC)
    assert not rig.owners.logs
    assert await broker.get(TOPIC) is None
    assert await broker.metadata.scan("/topics") == []
    assert link.told[-1][1].segments == (), "its consumers are told"


@simulated
async def test_a_segment_that_cannot_be_deleted_does_not_block_the_topic(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    rig.owners.unavailable = {SegmentId(0)}
    await broker.delete(TOPIC, force=True)
    assert await broker.get(TOPIC) is None
    assert len(rig.owners.logs) == 1


@simulated
async def test_a_topic_is_not_deleted_unforced_while_it_is_unknown_whether_a_segment_is_in_use(
    rig: Rig,
) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    rig.owners.unavailable = {SegmentId(0)}
    with pytest.raises(TooBusy, match="whether segment 0"):
        await broker.delete(TOPIC)
    rig.owners.unavailable = set()
    await broker.delete(TOPIC)
    assert await broker.get(TOPIC) is None


@simulated
async def test_a_stuck_split_does_not_block_deletion(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    rig.owners.unavailable = {SegmentId(1)}
    splitting = asyncio.ensure_future(broker.split(TOPIC, 0))
    await rig.until(lambda: ("create", 1) in rig.owners.calls)
    await broker.delete(TOPIC, force=True)
    with pytest.raises(TopicMissing):
        await splitting
    assert await broker.get(TOPIC) is None


@simulated
async def test_a_name_used_again_starts_clean(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "a")
    await rig.joined(broker, "one", "a")
    rig.owners.log((await broker.view(TOPIC)).layout.active[0]).messages = 5
    rig.owners.unavailable = {SegmentId(0)}  # Its storage survives the deletion.
    await broker.delete(TOPIC, force=True)
    rig.owners.unavailable.clear()
    # Somebody who did not know yet: it makes folders again, and a record of the old topic.
    stale = SubscriptionRecord("ghost", KIND.QUEUE, 1, AT.EARLIEST)
    await broker.metadata.create(subscription_path(TOPIC, "ghost"), stale.encode())
    record = await broker.create(TOPIC)
    assert rig.owners.log(record.layout.active[0]).messages == 0
    assert await broker.subscriptions(TOPIC) == {}
    layout = await broker.split(TOPIC, 0)
    assert all(not rig.owners.log(s).cursors for s in layout.active)
    assert (await broker.stats(TOPIC)).subscriptions == {}


@simulated
async def test_nothing_brings_a_deleted_topic_back(rig: Rig) -> None:
    broker, other = await rig.broker(), await rig.broker()
    await broker.create(TOPIC)
    await broker.split(TOPIC, 0)
    other.touch(TOPIC)
    await asyncio.sleep(1)
    await broker.delete(TOPIC)
    other.touch(TOPIC)
    await asyncio.sleep(10)
    assert await other.get(TOPIC) is None
    assert TOPIC not in other.controllers or not other.controllers[TOPIC].is_leader
    assert await other.topics(TOPIC.namespace) == []


# -- classic topics


class Partitions:
    """A classic topic with two partitions."""

    def __init__(self) -> None:
        self.names = [TopicName.parse(f"persistent://public/default/orders-partition-{n}") for n in (0, 1)]
        self.connected = 0

    async def topic_id(self, topic: TopicName) -> str:
        return "classic"

    async def topics(self, topic: TopicName) -> list[TopicName]:
        return self.names

    async def attached(self, topic: TopicName) -> int:
        return self.connected

    async def subscriptions(self, topic: TopicName) -> dict[str, SubscriptionKind]:
        return {"old": KIND.STREAM, "jobs": KIND.QUEUE}


@simulated
async def test_a_classic_topic_has_a_layout_to_look_at_and_consumers_to_coordinate(rig: Rig) -> None:
    broker = await rig.broker(Partitions())
    view = await broker.view(TOPIC)
    assert [s.classic_topic for s in view.layout.active] == [str(n) for n in Partitions().names]
    one, _ = await rig.joined(broker, "one", "s")
    _, assigned = await rig.joined(broker, "two", "s")
    assert len(assigned.segments) == 1
    assert len(one.told[-1][1].segments) == 1
    with pytest.raises(OperationRefused, match="migrate"):
        await broker.split(TOPIC, 0)
    assert await broker.get(TOPIC) is None, "a classic topic gets no record by being looked at"
    with pytest.raises(TopicExists, match="migrate"):
        await broker.create(TOPIC)


@simulated
async def test_a_classic_topic_may_grow_and_go_while_it_has_consumers(rig: Rig) -> None:
    classic = Partitions()
    broker = await rig.broker(classic)
    link, _ = await rig.joined(broker, "one", "s")
    classic.names.append(TopicName.parse("persistent://public/default/orders-partition-2"))
    await asyncio.sleep(120)
    assert len(link.told[-1][1].segments) == 3
    classic.names.clear()
    await asyncio.sleep(120)
    assert not link.told[-1][1].segments
    assert not broker.controllers
    assert await broker.leader(TOPIC) == ""


@simulated
async def test_migration_seals_every_partition_and_takes_subscriptions_and_consumers_along(rig: Rig) -> None:
    classic = Partitions()
    broker = await rig.broker(classic)
    view = await broker.view(TOPIC)
    from unit.controller.rig import Log

    for segment in view.layout.active:
        rig.owners.logs[segment.classic_topic] = Log(0, messages=3, cursors={"old": 0, "jobs": 0})
    link, _ = await rig.joined(broker, "one", "old")
    classic.connected = 1
    with pytest.raises(OperationRefused, match="connected"):
        await broker.migrate(TOPIC)
    classic.connected = 0
    await broker.migrate(TOPIC)
    record = await broker.view(TOPIC)
    assert record.plan is None
    assert [s.classic_topic for s in record.layout.sealed] == [str(n) for n in classic.names]
    assert all(s.parents == (0, 1) for s in record.layout.active)
    assert record.layout.topic_id == view.layout.topic_id == "classic", "it is the same topic"
    assert all(rig.owners.log(s).is_sealed for s in record.layout.sealed)
    for segment in record.layout.active:
        assert set(rig.owners.log(segment).cursors) == {"old", "jobs"}
    assert set(await broker.subscriptions(TOPIC)) == {"old", "jobs"}
    assert (await broker.split(TOPIC, 2)).epoch == record.layout.epoch + 1
    # The consumer goes on with the old partitions until it has drained both.
    stats = await broker.stats(TOPIC)
    assert [c.assigned for c in stats.subscriptions["old"].consumers] == [(0, 1)]
    for segment in record.layout.sealed:
        rig.owners.log(segment).cursors["old"] = 3
        broker.segment_progress(TOPIC, segment.id)
    await rig.until(lambda: link.told and len(link.told[-1][1].segments) == 3)
    with pytest.raises(TopicExists):
        await broker.migrate(TOPIC)


@simulated
async def test_records_made_by_hand_do_not_stop_the_service(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.metadata.create(topic_path(TOPIC), b"{not json")
    with pytest.raises(Exception, match="cannot be read"):
        await broker.view(TOPIC)
    with pytest.raises(AlreadyExists):
        await broker.metadata.create(topic_path(TOPIC), b"")
    other = TOPIC.namespace.topic("other", TOPIC.domain)
    await broker.create(other)
    assert (await broker.split(other, 0)).epoch == 1
