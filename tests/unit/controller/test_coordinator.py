"""Consumers of a stream subscription, through the service: assignments, grace, fail-over, order across generations."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from anabranch.controller.core.errors import NotLeader, OperationRefused
from anabranch.controller.records import Records
from anabranch.controller.service import ScalableTopics
from anabranch.metadata.errors import StoreUnavailable
from anabranch.model.buckets import BucketBudget
from anabranch.model.scalable import (
    ConsumerRecord,
    SubscriptionKind,
    consumer_path,
    controller_path,
    subscription_path,
)
from anabranch.model.segments import SegmentId
from unit.controller.rig import GRACE_S, TOPIC, Link, Rig, simulated


async def record_of(broker: ScalableTopics, name: str) -> ConsumerRecord | None:
    found = await broker.metadata.get(consumer_path(TOPIC, "billing", name))
    return None if found is None else ConsumerRecord.decode(found.value)


@simulated
async def test_joining_consumers_share_the_segments_and_only_those_who_lose_are_told(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 4)
    one, first = await rig.joined(broker, "one")
    assert first.ids == (0, 1, 2, 3)
    assert first.epoch == 0
    two, second = await rig.joined(broker, "two")
    assert len(second.ids) == 2
    assert one.told[-1][1].ids == tuple(n for n in first.ids if n not in second.ids)
    assert not two.told
    three, third = await rig.joined(broker, "three")
    assert len(third.ids) == 1
    assert len(one.told) + len(two.told) == 2, "one segment moved, from one consumer"
    assert not three.told


@simulated
async def test_more_consumers_than_segments_is_no_error(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one")
    _, spare = await rig.joined(broker, "two")
    assert spare.ids == ()


@simulated
async def test_a_session_is_stored_with_its_assignment_under_the_consumers_name(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    name = "consumer / ä"
    await rig.joined(broker, name)
    found = await broker.metadata.get(consumer_path(TOPIC, "billing", name))
    assert found is not None
    assert not found.is_ephemeral
    expected = ConsumerRecord(name, SubscriptionKind.STREAM, (SegmentId(0), SegmentId(1)))
    assert ConsumerRecord.decode(found.value) == expected
    subscription = await broker.metadata.get(subscription_path(TOPIC, "billing"))
    assert subscription is not None
    assert b'"type":"STREAM"' in subscription.value


@simulated
async def test_a_consumer_that_says_it_leaves_frees_its_segments_at_once(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    one, _ = await rig.joined(broker, "one")
    two, _ = await rig.joined(broker, "two")
    before = rig.loop.time()
    await broker.leave(TOPIC, "billing", "one", one)
    assert two.told[-1][1].ids == (0, 1)
    assert rig.loop.time() - before < 0.1
    assert await record_of(broker, "one") is None


@simulated
async def test_silence_is_given_the_grace_period_and_then_the_others_take_over(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    one, _ = await rig.joined(broker, "one")
    two, _ = await rig.joined(broker, "two")
    broker.disconnected(TOPIC, "billing", "one", one)
    await asyncio.sleep(GRACE_S - 1)
    assert not two.told
    assert await record_of(broker, "one") is not None
    await asyncio.sleep(2)
    assert two.told[-1][1].ids == (0, 1)
    assert await record_of(broker, "one") is None


@simulated
async def test_the_same_name_back_in_time_resumes_and_nobody_else_notices(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 4)
    one, _ = await rig.joined(broker, "one")
    two, second = await rig.joined(broker, "two")
    told = list(one.told)
    broker.disconnected(TOPIC, "billing", "two", two)
    await asyncio.sleep(GRACE_S - 1)
    _, back = await rig.joined(broker, "two")
    assert back.ids == second.ids
    await asyncio.sleep(3 * GRACE_S)
    assert one.told == told


@simulated
async def test_a_second_consumer_of_the_same_name_takes_the_session_over(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    old, first = await rig.joined(broker, "one")
    new, second = await rig.joined(broker, "one")
    assert second.ids == first.ids
    assert old.told[-1][1].ids == (), "the older one must let go, or both would read"
    # The older connection's end is no news about the session.
    broker.disconnected(TOPIC, "billing", "one", old)
    await broker.leave(TOPIC, "billing", "one", old)
    await asyncio.sleep(3 * GRACE_S)
    assert (await broker.stats(TOPIC)).subscriptions["billing"].consumers[0].is_connected
    assert not new.told


@simulated
async def test_liveness_writes_nothing_and_writes_grow_with_joins_leaves_and_rebalances(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 4)
    links = {}
    for name in ("one", "two"):
        links[name], _ = await rig.joined(broker, name)
    watch = rig.stores[0].watch("/topics")
    changes = 0
    async with asyncio.TaskGroup() as group:

        async def count() -> None:
            nonlocal changes
            async for change in watch:
                changes += 0 if change.everything else len(change.paths)

        group.create_task(count())
        for _ in range(20):
            broker.disconnected(TOPIC, "billing", "one", links["one"])
            await asyncio.sleep(GRACE_S / 2)
            links["one"], _ = await rig.joined(broker, "one")
        await asyncio.sleep(1)
        assert changes == 0
        await broker.leave(TOPIC, "billing", "one", links["one"])
        await asyncio.sleep(1)
        assert changes == 2, "one session removed, the other stored with all segments"
        watch.close()


@simulated
async def test_a_new_leader_restores_sessions_and_gives_everyone_a_fresh_grace_period(rig: Rig) -> None:
    first, second = await rig.broker(), await rig.broker()
    await first.create(TOPIC, 4)
    await rig.joined(first, "one")
    await rig.joined(first, "two")
    three_link, _ = await rig.joined(first, "three")
    first.disconnected(TOPIC, "billing", "three", three_link)
    await asyncio.sleep(GRACE_S - 5)
    second.touch(TOPIC)
    await asyncio.sleep(0.1)
    records = {name: await record_of(second, name) for name in ("one", "two", "three")}
    await rig.stores[0].expire_session()
    await rig.until(lambda: second.controllers[TOPIC].is_leader)
    await asyncio.sleep(GRACE_S - 5)
    # Three was gone for almost two grace periods; under the new leader it is back in time.
    for name in ("two", "three"):
        _, back = await rig.joined(second, name)
        found = records[name]
        assert found is not None
        assert back.ids == found.assigned
    assert await record_of(second, "one") is not None
    await asyncio.sleep(10)
    assert await record_of(second, "one") is None, "one never came back"
    stats = await second.stats(TOPIC)
    assert sorted(n for c in stats.subscriptions["billing"].consumers for n in c.assigned) == [0, 1, 2, 3]


@simulated
async def test_children_are_handed_out_when_their_parent_is_drained_and_not_before(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "billing")
    link, first = await rig.joined(broker, "one")
    root = rig.owners.log(first.segments[0])
    root.messages = 3
    await broker.split(TOPIC, 0)
    await asyncio.sleep(30)
    assert all(told.ids == (0,) for _, told in link.told), "the parent has a backlog"
    root.cursors["billing"] = 3
    broker.segment_progress(TOPIC, 0)
    await rig.until(lambda: link.told and link.told[-1][1].ids == (1, 2), within_s=0.1)
    assert link.told[-1][1].epoch == 1


@simulated
async def test_a_grandchild_waits_for_every_generation_above_it(rig: Rig) -> None:
    """A child sealed empty counts as drained; the grandparent's backlog must still hold its children back."""
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "billing")
    link, first = await rig.joined(broker, "one")
    root = rig.owners.log(first.segments[0])
    root.messages = 3
    await broker.split(TOPIC, 0)
    layout = await broker.split(TOPIC, 1)
    for segment in layout.active:
        rig.owners.log(segment).messages = 1
    await asyncio.sleep(60)
    assert all(told.ids == (0,) for _, told in link.told)
    root.cursors["billing"] = 3
    await rig.until(lambda: link.told and link.told[-1][1].ids == (3, 4, 2))


@simulated
async def test_drained_segments_are_found_by_asking_when_their_owner_is_elsewhere(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "billing")
    link, first = await rig.joined(broker, "one")
    root = rig.owners.log(first.segments[0])
    root.messages = 1
    await broker.split(TOPIC, 0)
    await asyncio.sleep(30)
    root.cursors["billing"] = 1
    await rig.until(lambda: link.told and link.told[-1][1].ids == (1, 2), within_s=6)


@simulated
async def test_segments_whose_owners_are_gone_for_a_while_stay_with_their_consumers(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 3)
    await broker.create_subscription(TOPIC, "billing")
    root = rig.owners.log((await broker.view(TOPIC)).layout.active[0])
    root.messages = 1
    await broker.split(TOPIC, 0)
    one, _ = await rig.joined(broker, "one")
    two, _ = await rig.joined(broker, "two")
    told = [list(one.told), list(two.told)]
    records = [await record_of(broker, name) for name in ("one", "two")]
    rig.owners.unavailable = set((await broker.view(TOPIC)).layout.segments)
    await asyncio.sleep(3 * GRACE_S)
    rig.owners.unavailable = set()
    await asyncio.sleep(3 * GRACE_S)
    assert [one.told, two.told] == told
    assert [await record_of(broker, name) for name in ("one", "two")] == records
    root.cursors["billing"] = 1
    await rig.until(lambda: {3, 4} <= {n for link in (one, two) for _, told in link.told for n in told.ids})


@simulated
async def test_a_backward_seek_withdraws_descendants_before_the_cursor_moves(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "billing")
    link, first = await rig.joined(broker, "one")
    root = rig.owners.log(first.segments[0])
    root.messages = root.cursors["billing"] = 3
    await broker.split(TOPIC, 0)
    await rig.until(lambda: link.told and link.told[-1][1].ids == (1, 2))
    told_when_moved = []

    async def look(what: str, segment: object) -> None:
        if what == "seek":
            told_when_moved.append(link.told[-1][1].ids)

    rig.owners.before = look
    await broker.seek(TOPIC, "billing", 0)
    assert told_when_moved == [(0,)] * 3, "the children were still being read when the parent was rewound"
    assert link.told[-1][1].ids == (0,)
    root.cursors["billing"] = 3
    broker.segment_progress(TOPIC, 0)
    await rig.until(lambda: link.told[-1][1].ids == (1, 2))


@simulated
async def test_descendants_stay_withdrawn_however_long_the_cursors_take_to_move(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await broker.create_subscription(TOPIC, "billing")
    link, first = await rig.joined(broker, "one")
    root = rig.owners.log(first.segments[0])
    root.messages = root.cursors["billing"] = 3
    await broker.split(TOPIC, 0)
    await rig.until(lambda: link.told and link.told[-1][1].ids == (1, 2))

    async def slow(what: str, segment: object) -> None:
        if what == "seek":
            await asyncio.sleep(10)

    rig.owners.before = slow
    before = len(link.told)
    await broker.seek(TOPIC, "billing", 0)
    assert [told.ids for _, told in link.told[before:]] == [(0,)], (
        "an owner was believed before its cursor moved"
    )


@simulated
async def test_a_checkpoint_group_moves_on_when_a_member_reports_a_segment_finished(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    link, first = await rig.joined(broker, "one", "group", SubscriptionKind.CHECKPOINT)
    rig.owners.log(first.segments[0]).messages = 3
    await broker.split(TOPIC, 0)
    await asyncio.sleep(30)
    assert all(told.ids == (0,) for _, told in link.told)
    await broker.finished(TOPIC, "group", "one", [0])
    assert link.told[-1][1].ids == (1, 2)
    found = await broker.metadata.get(consumer_path(TOPIC, "group", "one"))
    assert found is not None
    assert ConsumerRecord.decode(found.value).finished == (0,)


@simulated
async def test_a_checkpoint_reader_that_has_read_a_segment_to_its_end_need_not_say_so(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    link, first = await rig.joined(broker, "one", "group", SubscriptionKind.CHECKPOINT)
    root = rig.owners.log(first.segments[0])
    await broker.split(TOPIC, 0)
    root.finished_readers.add("one-seg-0")
    broker.segment_progress(TOPIC, 0)
    await rig.until(lambda: link.told and link.told[-1][1].ids == (1, 2), within_s=1)


@simulated
async def test_checkpoint_groups_have_no_cursors_and_hold_nothing_back(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one", "group", SubscriptionKind.CHECKPOINT)
    await broker.split(TOPIC, 0)
    await asyncio.sleep(300)
    assert all(not log.cursors for log in rig.owners.logs.values())
    assert not (await broker.view(TOPIC)).layout.sealed, "retention alone decides"


@simulated
async def test_kinds_do_not_mix_in_one_subscription(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one")
    with pytest.raises(OperationRefused, match="another subscription name"):
        await rig.joined(broker, "two", kind=SubscriptionKind.CHECKPOINT)
    await broker.create_subscription(TOPIC, "jobs", SubscriptionKind.QUEUE)
    with pytest.raises(OperationRefused, match="QUEUE"):
        await rig.joined(broker, "one", "jobs")


@simulated
async def test_a_join_that_is_under_way_when_leadership_ends_is_refused_not_lost(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one")
    joining = asyncio.ensure_future(
        broker.register(TOPIC, "billing", "two", SubscriptionKind.STREAM, 2, Link())
    )
    await asyncio.sleep(0)
    broker.controllers[TOPIC].depose("the test says so")
    with pytest.raises(NotLeader):
        await joining


@simulated
async def test_a_join_whose_session_is_being_stored_when_leadership_ends_is_refused_too(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one")
    is_stored = asyncio.Event()

    async def hold(verb: str, path: str) -> None:
        if path == consumer_path(TOPIC, "billing", "two"):
            is_stored.set()
            await asyncio.Event().wait()

    rig.held[0].before = hold
    joining = asyncio.ensure_future(rig.joined(broker, "two"))
    await is_stored.wait()
    broker.controllers[TOPIC].depose("the test says so")
    with pytest.raises(NotLeader):
        await joining


@simulated
async def test_a_name_that_joins_again_before_its_first_join_is_answered_is_told_the_newest_word(
    rig: Rig,
) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 4)
    is_stored, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(verb: str, path: str) -> None:
        if path == consumer_path(TOPIC, "billing", "one") and not goes_on.is_set():
            is_stored.set()
            await goes_on.wait()

    rig.held[0].before = hold
    first = asyncio.ensure_future(rig.joined(broker, "one"))
    await is_stored.wait()
    # These wait for it, and the first of them takes half of the segments from "one".
    other = asyncio.ensure_future(rig.joined(broker, "two"))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(rig.joined(broker, "one"))
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(OperationRefused, match="registered again"):
        await first
    (_, theirs), (link, mine) = await other, await again
    assert sorted((*theirs.ids, *mine.ids)) == [0, 1, 2, 3]
    assert not link.told


@simulated
async def test_a_deposed_leader_that_has_not_heard_of_it_overwrites_no_session_of_its_successor(
    rig: Rig,
) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await rig.joined(broker, "one")
    other = await rig.metadata.connect()
    path, is_stored, goes_on = consumer_path(TOPIC, "billing", "one"), asyncio.Event(), asyncio.Event()
    looks = 0

    async def hold(verb: str, held: str) -> None:
        nonlocal looks
        if (verb, held) == ("put", path):
            is_stored.set()
            await goes_on.wait()
        if (verb, held) == ("get", controller_path(TOPIC)):
            looks += 1
            if looks == 1:
                await asyncio.Event().wait()  # The news of its deposition is late.

    rig.held[0].before = hold
    looks = 1  # Not yet: a new session is stored only by whoever leads, and this one does.
    joining = asyncio.ensure_future(rig.joined(broker, "two"))
    await is_stored.wait()
    looks = 0
    await other.delete(controller_path(TOPIC))
    await other.create(controller_path(TOPIC), b"pulsar://elsewhere:6650", ephemeral=True)
    theirs = ConsumerRecord("one", SubscriptionKind.STREAM, (SegmentId(1),)).encode()
    await other.put(path, theirs)
    await rig.until(lambda: looks == 1)
    assert broker.controllers[TOPIC].is_leader, "as far as it knows"
    goes_on.set()
    with pytest.raises(NotLeader):
        await joining
    assert not broker.controllers[TOPIC].is_leader
    found = await other.get(path)
    assert found is not None
    assert found.value == theirs


@simulated
async def test_a_deposed_leader_stores_no_new_session(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await rig.joined(broker, "one")
    other = await rig.metadata.connect()

    async def hold(verb: str, path: str) -> None:
        # Elected while the session was about to be stored.
        if (verb, path) == ("put", consumer_path(TOPIC, "billing", "one")):
            await other.delete(controller_path(TOPIC))
            await other.create(controller_path(TOPIC), b"pulsar://elsewhere:6650", ephemeral=True)

    rig.held[0].before = hold
    with pytest.raises(NotLeader):
        await rig.joined(broker, "two")
    assert await record_of(broker, "two") is None


@simulated
async def test_a_leader_whose_write_lost_its_answer_goes_on_with_what_is_stored(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC, 2)
    await rig.joined(broker, "one")
    lost: set[str] = set()

    async def lose(verb: str, path: str) -> None:
        if "/consumers/" in path and verb in ("put", "create", "delete") and verb not in lost:
            lost.add(verb)
            raise StoreUnavailable("the answer is lost")

    rig.held[0].after = lose
    link, second = await rig.joined(broker, "two")
    assert second.ids == (1,)
    one, two = await record_of(broker, "one"), await record_of(broker, "two")
    assert one is not None
    assert two is not None
    assert (one.assigned, two.assigned) == ((0,), (1,))
    await broker.leave(TOPIC, "billing", "two", link)
    assert lost == {"put", "create", "delete"}
    assert await record_of(broker, "two") is None


@simulated
async def test_a_subscription_that_another_leader_deleted_has_no_consumers_here_any_more(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    link, _ = await rig.joined(broker, "one")
    found = (await broker.subscriptions(TOPIC))["billing"]
    await broker.records.change_subscription(TOPIC, replace(found, is_deleting=True))
    await broker.records.remove_subscription(TOPIC, "billing")
    await rig.until(lambda: "billing" not in broker.controllers[TOPIC].coordinators)
    assert link.told[-1][1].ids == ()
    _, again = await rig.joined(broker, "two")
    assert again.ids == (0,)


@simulated
async def test_news_that_come_while_others_cannot_be_read_are_read_all_the_same(rig: Rig) -> None:
    broker = await rig.broker()
    await broker.create(TOPIC)
    await rig.joined(broker, "one")
    other = await rig.metadata.connect()
    elsewhere = Records(other)
    found = (await broker.subscriptions(TOPIC))["billing"]
    is_lost = False

    async def lose(verb: str, path: str) -> None:
        nonlocal is_lost
        if (verb, path) == ("get", subscription_path(TOPIC, "billing")) and not is_lost:
            is_lost = True
            await other.delete(controller_path(TOPIC))
            await asyncio.sleep(1)  # It is heard of.
            raise StoreUnavailable("the answer is lost")

    rig.held[0].before = lose
    # Somebody deletes the subscription; what the leader asks about it meets trouble.
    await elsewhere.change_subscription(TOPIC, replace(found, is_deleting=True))
    await elsewhere.remove_subscription(TOPIC, "billing")
    await rig.until(lambda: is_lost)
    await asyncio.sleep(5)
    assert await broker.leader(TOPIC) == broker.service_url


# -- consumers that share segments


async def shares(broker: ScalableTopics) -> dict[str, tuple[int, ...]]:
    """The buckets of segment 0 by consumer; () for all of it."""
    consumers = (await broker.stats(TOPIC)).subscriptions["billing"].consumers
    return {c.name: c.shares.get(SegmentId(0), ()) for c in consumers if 0 in c.assigned}


async def sharing(rig: Rig, broker: ScalableTopics, *names: str) -> list[Link]:
    links = [Link() for _ in names]
    for name, link in zip(names, links, strict=True):
        await broker.register(
            TOPIC, "billing", name, SubscriptionKind.STREAM, 1, link, knows_buckets=not name.startswith("old")
        )
    return links


@simulated
async def test_consumers_that_outnumber_segments_share_them_until_the_last_one_has_been_alone_for_a_while(
    rig: Rig,
) -> None:
    broker = await rig.broker(buckets=BucketBudget(4), settle_s=5.0)
    await broker.create(TOPIC)
    one, two = await sharing(rig, broker, "one", "two")
    assert await shares(broker) == {"one": (0, 1), "two": (2, 3)}
    assert one.told[-1][1].shared == {0}
    assert (await record_of(broker, "two")) == ConsumerRecord(
        "two", SubscriptionKind.STREAM, (SegmentId(0),), (), {SegmentId(0): (2, 3)}, True
    )
    before, told = rig.loop.time(), len(one.told)
    await broker.leave(TOPIC, "billing", "two", two)
    assert await shares(broker) == {"one": (0, 1, 2, 3)}
    await rig.until(lambda: len(one.told) > told)
    assert rig.loop.time() - before >= 5.0
    assert one.told[-1][1].shared == frozenset()
    assert await shares(broker) == {"one": ()}


@simulated
async def test_a_segment_has_room_for_its_buckets_only_if_every_consumer_knows_them(rig: Rig) -> None:
    broker = await rig.broker(buckets=BucketBudget(4))
    await broker.create(TOPIC)
    await sharing(rig, broker, "one", "two")
    coordinator = broker.controllers[TOPIC].coordinators["billing"]
    (segment,) = coordinator.group.layout.active
    assert coordinator.capacity == {segment.id: 4}
    await sharing(rig, broker, "old")
    assert await shares(broker) == {"one": (0, 1), "two": (2, 3)}
    assert coordinator.capacity == {}


@simulated
async def test_sharers_of_a_backlog_are_counted_and_end_with_it(rig: Rig) -> None:
    broker = await rig.broker(buckets=BucketBudget(4))
    await broker.create(TOPIC)
    one, two = await sharing(rig, broker, "one", "two")
    segment = broker.controllers[TOPIC].coordinators["billing"].group.layout.segment(SegmentId(0))
    rig.owners.log(segment).messages = 10
    await broker.split(TOPIC, SegmentId(0))
    assert await shares(broker) == {"one": (0, 1), "two": (2, 3)}
    assert broker.controllers[TOPIC].draining == 1
    rig.owners.log(segment).cursors["billing"] = 10
    await rig.until(lambda: one.told[-1][1].ids == (1,) and two.told and two.told[-1][1].ids == (2,))
    assert broker.controllers[TOPIC].draining == 0


@simulated
async def test_the_next_leader_has_the_shares_of_the_last(rig: Rig) -> None:
    first, second = await rig.broker(buckets=BucketBudget(4)), await rig.broker(buckets=BucketBudget(4))
    await first.create(TOPIC)
    await sharing(rig, first, "one", "two", "three")
    before = await shares(first)
    await rig.stores[0].expire_session()
    await sharing(rig, second, "three")
    assert await shares(second) == before
    assert sorted(n for held in before.values() for n in held) == [0, 1, 2, 3]


@simulated
async def test_a_leader_reads_the_sessions_again_if_a_former_one_has_stored_one_meanwhile(rig: Rig) -> None:
    first, second = await rig.broker(buckets=BucketBudget(4)), await rig.broker(buckets=BucketBudget(4))
    await first.create(TOPIC)
    await sharing(rig, first, "one", "two", "three")
    path, other = consumer_path(TOPIC, "billing", "two"), await rig.metadata.connect()

    async def change(verb: str, changing: str) -> None:
        if (verb, changing) == ("put", path):
            rig.held[1].before = None
            late = ConsumerRecord("two", SubscriptionKind.STREAM, knows_buckets=True)
            await other.put(path, late.encode())

    rig.held[1].before = change
    await rig.stores[0].expire_session()
    await sharing(rig, second, "three")
    assert rig.held[1].before is None, "it was changed meanwhile"
    found = await shares(second)
    assert found.keys() == {"one", "two", "three"}
    assert sorted(n for held in found.values() for n in held) == [0, 1, 2, 3]
    for name, held in found.items():
        stored = await record_of(second, name)
        assert stored is not None
        assert stored.shares == {0: held}
    await other.close()
