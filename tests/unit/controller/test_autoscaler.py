"""When topics are looked at, what is done about what is seen, and what is told of it: on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from itertools import pairwise

import pytest

from anabranch.autoscale.decide import Split, Stay
from anabranch.autoscale.decisions import DecisionHistory, DecisionKind
from anabranch.autoscale.load import IDLE, Load
from anabranch.autoscale.policy import DEFAULT, ScalePolicy
from anabranch.controller.core import events as e
from anabranch.controller.core.errors import NotLeader, TopicMissing
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind, decisions_path, load_path, topic_path
from anabranch.model.segments import Segment, SegmentId
from unit.controller.rig import GRACE_S, TOPIC, Link, Rig, simulated
from unit.controller.scaling_rig import COLD, HOT, MINUTE, WARM, Scaled, scaled

NEVER_S = 1e9

# -- consumers joining and leaving


@simulated
async def test_a_consumer_that_joins_gets_a_segment_at_once(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.create_subscription(TOPIC, "billing")
        await rig.joined(broker.topics, "a")
        link, assignment = await rig.joined(broker.topics, "b")
        assert assignment.ids == ()
        started = rig.loop.time()
        await rig.until(lambda: broker.active == [1, 2])
        assert rig.loop.time() - started < 0.1
        # The parent is drained from the start, so its children are given out as soon as there are any.
        await rig.until(lambda: bool(link.told and link.told[-1][1].ids))


@simulated
async def test_members_of_a_checkpoint_group_count_and_consumers_of_a_queue_do_not(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.create_subscription(TOPIC, "work", SubscriptionKind.QUEUE)
        for name in "ab":
            await rig.joined(broker.topics, name, "snapshots", SubscriptionKind.CHECKPOINT)
        await rig.until(lambda: len(broker.active) == 2)
        explained = await broker.scaler.explain(TOPIC)
        assert explained.decisions.latest is not None
        assert "'snapshots' has 2 consumers" in " ".join(d.because for d in explained.decisions.decisions)


@simulated
async def test_consumers_leaving_are_looked_at_at_once_too(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC, 4)
        link, _ = await rig.joined(broker.topics, "a")
        await rig.until(lambda: broker.counted("no_split") == 1)
        await broker.topics.leave(TOPIC, "billing", "a", link)
        await rig.until(lambda: broker.counted("no_split") == 2, within_s=0.1)


@simulated
async def test_one_that_comes_back_within_its_grace_period_is_no_new_consumer(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        link, _ = await rig.joined(broker.topics, "a")
        await rig.until(lambda: broker.counted("no_split") == 1)
        broker.topics.disconnected(TOPIC, "billing", "a", link)
        await asyncio.sleep(GRACE_S / 2)
        await rig.joined(broker.topics, "a", link=Link())
        await asyncio.sleep(1)
        assert broker.counted("no_split") == 1
        assert broker.active == [0]


@simulated
async def test_one_within_its_grace_period_still_counts(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        link, _ = await rig.joined(broker.topics, "a")
        broker.topics.disconnected(TOPIC, "billing", "a", link)
        await asyncio.sleep(GRACE_S / 2)
        assert broker.active == [0]
        await rig.joined(broker.topics, "b")
        await rig.until(lambda: len(broker.active) == 2)


@simulated
async def test_a_burst_of_joins_makes_one_split_and_one_more_after_each_cooldown(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        started = rig.loop.time()
        await asyncio.gather(*(rig.joined(broker.topics, f"c{n}") for n in range(5)))
        times = []
        for wanted in (2, 3, 4, 5):
            await broker.until(lambda wanted=wanted: len(broker.active) == wanted, within_s=70)  # type: ignore[misc]
            times.append(round(rig.loop.time() - started))
        assert times == [0, 60, 120, 180]
        await asyncio.sleep(1000)
        assert len(broker.active) == 5
        assert broker.counted("split", "consumers") == 4


@simulated
async def test_a_new_leader_goes_on_with_what_consumers_wait_for(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as first, scaled(rig, interval_s=NEVER_S) as second:
        await first.topics.create(TOPIC)
        for name in "abc":
            await rig.joined(first.topics, name)
        await rig.until(lambda: len(first.active) == 2)
        second.topics.touch(TOPIC)
        await rig.until(lambda: second.topics.controllers[TOPIC].leader != "")
        started = rig.loop.time()
        await rig.stores[0].expire_session()
        # No tick and no consumer's event comes: only the end of the former leader's cooldown.
        await rig.until(lambda: second.topics.controllers[TOPIC].is_leader)
        await second.until(lambda: len(second.active) == 3, within_s=70)
        assert rig.loop.time() - started > 55


# -- the tick


@simulated
async def test_a_tick_splits_what_is_hot_and_merges_what_is_cold(rig: Rig) -> None:
    async with scaled(rig, collect_every_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC, 4)
        await broker.report({0: HOT, 1: WARM, 2: COLD, 3: COLD})
        broker.topics.touch(TOPIC)
        await asyncio.sleep(MINUTE - 1)
        assert broker.active == [0, 1, 2, 3]
        await asyncio.sleep(2)
        assert broker.active == [4, 5, 1, 2, 3]
        await broker.report({4: WARM, 5: WARM})
        await asyncio.sleep(5 * MINUTE)
        assert broker.active == [4, 5, 1, 6]


@simulated
async def test_a_merge_comes_when_its_window_ends_and_not_before(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await asyncio.sleep(10)
        started = rig.loop.time()
        await broker.report({0: COLD, 1: IDLE})
        await broker.until(lambda: len(broker.active) == 1, within_s=1000)
        assert 300 <= rig.loop.time() - started < 301


@simulated
async def test_a_hot_topic_splits_once_in_each_cooldown_until_it_is_cool_and_a_cold_one_ends_as_one(
    rig: Rig,
) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        rate = 35_000.0

        def widths() -> dict[int, float]:
            return {s.id: (s.range.end - s.range.start + 1) / 65536 for s in broker.layout.active}

        splits: list[int] = []
        started, seen = rig.loop.time(), 1
        await broker.report({0: Load(rate)})
        while rig.loop.time() - started < 20 * MINUTE:
            await asyncio.sleep(1)
            if len(broker.active) != seen:
                splits.append(round(rig.loop.time() - started))
                seen = len(broker.active)
                await broker.report({number: Load(rate * width) for number, width in widths().items()})
        assert seen == 4
        assert splits[0] <= 61
        assert all(59 <= after - before <= 63 for before, after in pairwise(splits))
        await broker.report({number: IDLE for number in widths()})
        for _ in range(30):
            await asyncio.sleep(MINUTE)
            known = {number for number in broker.active if number > max(4, seen)}
            for number in known:
                if await broker.topics.metadata.get(load_path(TOPIC, SegmentId(number))) is None:
                    await broker.report({number: IDLE})
        assert len(broker.active) == 1


@simulated
async def test_a_topics_load_records_are_read_together_and_only_when_one_has_changed(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 4)
        broker.topics.touch(TOPIC)
        scanned: list[str] = []
        gotten: list[str] = []
        store = broker.topics.metadata
        scan, get = store.scan, store.get

        async def noted_scan(prefix: str) -> object:
            scanned.append(prefix)
            return await scan(prefix)

        async def noted_get(path: str, *, fresh: bool = False) -> object:
            gotten.append(path)
            return await get(path, fresh=fresh)

        setattr(store, "scan", noted_scan)  # noqa: B010 (a method of a real store, watched)
        setattr(store, "get", noted_get)  # noqa: B010
        await asyncio.sleep(2.5 * MINUTE)
        assert scanned == [f"{topic_path(TOPIC)}/segments"]
        await broker.report({n: WARM for n in range(4)})
        await asyncio.sleep(3 * MINUTE)
        assert len(scanned) == 2
        assert not any("/load" in path for path in gotten)
        assert broker.counted("no_split") >= 5


@simulated
async def test_the_controller_asks_no_owner_about_load(rig: Rig) -> None:
    async with scaled(rig, collect_every_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC, 4)
        broker.topics.touch(TOPIC)
        await broker.report({n: WARM for n in range(4)})
        await asyncio.sleep(1)
        rig.owners.calls.clear()
        await asyncio.sleep(20 * MINUTE)
        assert rig.owners.calls == []


@simulated
async def test_what_was_known_of_a_segments_load_goes_with_its_record(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        await broker.report({0: WARM, 1: HOT})
        assert set((await broker.scaler.explain(TOPIC)).load) == {0, 1}
        await broker.topics.metadata.delete(load_path(TOPIC, SegmentId(1)))
        await asyncio.sleep(1)
        assert set((await broker.scaler.explain(TOPIC)).load) == {0}


@simulated
async def test_a_new_leader_knows_from_the_records_alone_for_how_long_segments_have_been_cold(
    rig: Rig,
) -> None:
    async with scaled(rig) as first, scaled(rig) as second:
        await first.topics.create(TOPIC, 2)
        first.topics.touch(TOPIC)
        await rig.until(lambda: first.active == [0, 1])
        second.topics.touch(TOPIC)
        await first.report({0: COLD, 1: COLD})
        started = rig.loop.time()
        await asyncio.sleep(4 * MINUTE)
        await rig.stores[0].expire_session()
        await rig.until(lambda: second.topics.controllers[TOPIC].is_leader)
        await second.until(lambda: len(second.active) == 1, within_s=2 * MINUTE)
        assert 300 <= rig.loop.time() - started < 301


@simulated
async def test_a_consumers_event_does_not_forget_when_a_merge_is_due(rig: Rig) -> None:
    async with scaled(rig, interval_s=400.0) as broker:
        await broker.topics.create(TOPIC, 4)
        broker.topics.touch(TOPIC)
        await asyncio.sleep(200)
        await broker.report({n: COLD for n in range(4)})
        await asyncio.sleep(201)  # A tick: the window ends 100 s later.
        await rig.joined(broker.topics, "a")
        await asyncio.sleep(98)
        assert len(broker.active) == 4
        await asyncio.sleep(3)
        assert len(broker.active) == 3


@simulated
async def test_a_record_of_a_segment_without_an_owner_is_no_evidence(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT, 1: WARM})
        await asyncio.sleep(1)
        broker.without_owner.add(broker.layout.segment(0).topic(TOPIC))
        await asyncio.sleep(3 * MINUTE)
        assert broker.active == [0, 1]
        broker.without_owner.clear()
        await asyncio.sleep(MINUTE)
        assert broker.active == [2, 3, 1]


@simulated
async def test_a_classic_topic_is_left_alone(rig: Rig) -> None:
    class OneClassic:
        async def topics(self, topic: TopicName) -> list[TopicName]:
            return [TopicName.parse("persistent://public/default/orders")]

        async def topic_id(self, topic: TopicName) -> str:
            return ""

        async def attached(self, topic: TopicName) -> int:
            return 0

        async def subscriptions(self, topic: TopicName) -> dict[str, SubscriptionKind]:
            return {}

    async with scaled(rig, classic=OneClassic()) as broker:
        for name in "ab":
            await rig.joined(broker.topics, name)
        await asyncio.sleep(3 * MINUTE)
        assert broker.active == [0]
        assert broker.scaler.reasons == {}
        assert list(broker.scaler.figures()) == []


# -- one operation at a time


def held_at(rig: Rig, what: str) -> asyncio.Event:
    """Holds the next operation when it comes to that call, until the event is set."""
    gate = asyncio.Event()

    async def wait(called: str, segment: Segment) -> None:
        if called == what:
            await gate.wait()

    rig.owners.before = wait
    return gate


@simulated
async def test_what_comes_up_during_an_operation_is_looked_at_after_it(rig: Rig) -> None:
    async with scaled(rig, replace(DEFAULT, split_cooldown_ms=0), interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC)
        gate = held_at(rig, "seal")
        by_hand = asyncio.ensure_future(broker.topics.split(TOPIC, 0))
        await asyncio.sleep(1)
        for name in "abc":
            await rig.joined(broker.topics, name)
        await asyncio.sleep(10)
        assert broker.counted("no_split") == broker.counted("split") == 0
        gate.set()
        await by_hand
        await rig.until(lambda: len(broker.active) == 3, within_s=1)
        assert broker.counted("split", "consumers") == 1


@simulated
async def test_a_tick_during_a_slow_operation_begins_no_second_one(rig: Rig) -> None:
    async with scaled(rig, replace(DEFAULT, split_cooldown_ms=0)) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT, 1: HOT})
        gate = held_at(rig, "seal")
        await asyncio.sleep(5 * MINUTE)
        assert [call for call in rig.owners.calls if call[0] == "create"] == [
            ("create", 0),
            ("create", 1),
            ("create", 0),
            ("create", 1),
            ("create", 2),
            ("create", 3),
        ]
        gate.set()
        await rig.until(lambda: broker.active == [2, 3, 4, 5], within_s=1)


@simulated
async def test_a_slow_topic_does_not_hold_up_another(rig: Rig) -> None:
    other = TopicName.parse("topic://public/default/payments")
    async with scaled(rig) as broker:
        for topic in (TOPIC, other):
            await broker.topics.create(topic)
            broker.topics.touch(topic)
            await broker.topics.metadata.put(load_path(topic, SegmentId(0)), HOT.encode())
        gate = asyncio.Event()

        async def wait(what: str, segment: Segment) -> None:
            if what == "seal" and not gate.is_set():
                first = rig.owners.calls.count(("seal", 0)) == 1
                if first:
                    await gate.wait()

        rig.owners.before = wait
        await asyncio.sleep(MINUTE + 1)
        counts = sorted(f.active_segments for f in broker.scaler.figures())
        assert counts == [1, 2]
        gate.set()


# -- cooldowns


@simulated
async def test_a_manual_split_starts_the_split_cooldown(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        await broker.report({1: HOT})
        await asyncio.sleep(30)
        await broker.topics.split(TOPIC, 0)
        await asyncio.sleep(59)
        assert len(broker.active) == 3
        await asyncio.sleep(2)
        assert len(broker.active) == 4
        (figures,) = broker.scaler.figures()
        assert (figures.auto_splits, figures.auto_merges) == (1, 0)


@simulated
async def test_a_manual_merge_starts_the_merge_cooldown_and_counts_as_no_automatic_one(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 4)
        await broker.report({n: COLD for n in range(4)})
        await asyncio.sleep(4.5 * MINUTE)
        await broker.topics.merge(TOPIC, 0, 1)
        await asyncio.sleep(4.9 * MINUTE)
        assert broker.active == [4, 2, 3]
        await asyncio.sleep(0.2 * MINUTE)
        assert broker.active == [4, 5]
        (figures,) = broker.scaler.figures()
        assert (figures.auto_splits, figures.auto_merges) == (0, 1)


@simulated
async def test_a_split_by_either_rule_holds_back_the_next_by_the_other(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT})
        await broker.until(lambda: broker.active == [1, 2], within_s=61)
        started = rig.loop.time()
        await broker.report({1: WARM, 2: WARM})
        for name in "abc":
            await rig.joined(broker.topics, name)
        await broker.until(lambda: len(broker.active) == 3, within_s=61)
        assert rig.loop.time() - started > 59
        assert broker.active == [3, 4, 2]
        started = rig.loop.time()
        await broker.report({2: HOT, 3: WARM, 4: WARM})
        await broker.until(lambda: len(broker.active) == 4, within_s=121)
        assert rig.loop.time() - started > 59
        assert broker.active[:2] == [3, 4]
        assert (broker.counted("split", "load"), broker.counted("split", "consumers")) == (2, 1)


@simulated
async def test_a_failed_operation_starts_no_cooldown_and_is_told(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT, 1: WARM})
        await asyncio.sleep(1)
        # Another operation takes its segment away in the moment of the decision.
        store = broker.topics.metadata
        now_ms, asked = store.now_ms, 0

        async def now_ms_then_a_merge() -> int:
            nonlocal asked
            asked += 1
            if asked == 2:
                controller = broker.topics.controllers[TOPIC]
                controller.remind(e.MergeRequested(0, 0, 1, 1))
            return await now_ms()

        setattr(store, "now_ms", now_ms_then_a_merge)  # noqa: B010
        await asyncio.sleep(MINUTE)
        assert broker.counted("failed_split", "load") == 1
        assert broker.active == [2]
        assert broker.layout.last_split_ms == 0
        explained = await broker.scaler.explain(TOPIC)
        assert DecisionKind.FAILED in [decision.kind for decision in explained.decisions.decisions]
        (figures,) = broker.scaler.figures()
        assert figures.auto_splits == 0


@simulated
async def test_cooldowns_outlive_the_leader(rig: Rig) -> None:
    async with scaled(rig) as first, scaled(rig) as second:
        await first.topics.create(TOPIC, 4)
        await first.report({n: COLD for n in range(4)})
        first.topics.touch(TOPIC)
        await first.until(lambda: first.active == [4, 2, 3], within_s=400)
        merged = rig.loop.time()
        second.topics.touch(TOPIC)
        await asyncio.sleep(1)
        await rig.stores[0].expire_session()
        await rig.until(lambda: second.topics.controllers[TOPIC].is_leader)
        await second.until(lambda: len(second.active) == 2, within_s=400)
        assert 299 <= rig.loop.time() - merged <= 302


@simulated
async def test_a_hot_key_waits_twice_as_long_after_each_split_that_divided_nothing(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT})
        started, splits, known = rig.loop.time(), [], 1
        while rig.loop.time() - started < 45 * MINUTE:
            await asyncio.sleep(1)
            if len(broker.active) > known:
                known = len(broker.active)
                splits.append(rig.loop.time() - started)
                newest = max(broker.active)
                # All of it is one key, in the lower half each time. The others are too warm to be merged.
                await broker.report({newest - 1: HOT, newest: Load(msg_rate_in=1001.0)})
        waits = [round((b - a) / 60) for a, b in pairwise(splits)]
        assert waits == [2, 4, 8, 16]


# -- leaders only


@simulated
async def test_only_the_leader_looks_and_only_the_leader_tells(rig: Rig) -> None:
    async with scaled(rig) as first, scaled(rig) as second:
        await first.topics.create(TOPIC)
        first.topics.touch(TOPIC)
        await rig.until(lambda: first.topics.controllers[TOPIC].is_leader)
        second.topics.touch(TOPIC)
        await first.report({0: WARM})
        await asyncio.sleep(5 * MINUTE)
        assert first.counted("no_split") > 3
        assert second.scaler.reasons == {}
        assert [f.topic for f in first.scaler.figures()] == [TOPIC]
        assert list(second.scaler.figures()) == []
        with pytest.raises(NotLeader):
            await second.scaler.explain(TOPIC)


@simulated
async def test_looks_stop_when_leadership_is_lost_and_when_the_broker_closes(rig: Rig) -> None:
    async with scaled(rig) as first:
        async with scaled(rig) as second:
            await first.topics.create(TOPIC)
            for name in "abc":
                await rig.joined(first.topics, name)  # The rest of the splits are due after the cooldown.
            await rig.until(lambda: len(first.active) == 2)
            second.topics.touch(TOPIC)
            await asyncio.sleep(1)
            looks = first.counted("no_split")
            rig.stores[0].disconnect()
            await rig.stores[0].expire_session()
            await rig.until(lambda: second.topics.controllers[TOPIC].is_leader)
            await asyncio.sleep(10 * MINUTE)
            assert first.counted("no_split") == looks
            assert first.counted("split") == 1
            assert len(second.active) == 3
            assert list(first.scaler.figures()) == []
            assert [f.active_segments for f in second.scaler.figures()] == [3]
        before = rig.loop.timers
        await asyncio.sleep(10 * MINUTE)
        assert rig.loop.timers <= before


# -- policies


@simulated
async def test_a_changed_policy_counts_from_the_next_look_on(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT, 1: WARM})
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"enabled": False}))
        await asyncio.sleep(3.5 * MINUTE)
        assert broker.active == [0, 1]
        assert broker.counted("no_split", "off") == 3
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale=None))
        await asyncio.sleep(MINUTE)
        assert broker.active == [2, 3, 1]


@simulated
async def test_an_opted_out_topic_does_not_split_for_consumers_either(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"enabled": False}))
        for name in "abc":
            await rig.joined(broker.topics, name)
        await asyncio.sleep(5 * MINUTE)
        assert broker.active == [0]


@simulated
async def test_fewer_segments_allowed_force_no_merge_and_more_wanted_force_no_split(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 4)
        broker.topics.touch(TOPIC)
        await broker.report({n: WARM for n in range(4)})
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"maxSegments": 2}))
        await asyncio.sleep(10 * MINUTE)
        assert len(broker.active) == 4
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"minSegments": 8}))
        await asyncio.sleep(10 * MINUTE)
        assert len(broker.active) == 4


@simulated
async def test_an_operator_may_split_beyond_the_caps_of_automation(rig: Rig) -> None:
    policy = replace(DEFAULT, max_segments=2, min_segments=2)
    async with scaled(rig, policy) as broker:
        await broker.topics.create(TOPIC, 2)
        assert len((await broker.topics.split(TOPIC, 0)).active) == 3
        await broker.topics.merge(TOPIC, 2, 3)
        assert len((await broker.topics.merge(TOPIC, 4, 1)).active) == 1


@pytest.mark.parametrize(
    ("namespace", "topic"),
    [
        ({"mergeMsgRateInThreshold": 20_000}, None),
        ({"minSegments": 5}, {"maxSegments": 2}),
        ({"maxSegments": "many"}, None),
    ],
)
def test_a_policy_that_turns_invalid_switches_automation_off_loudly_and_nothing_else(
    namespace: dict[str, object], topic: dict[str, object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    @simulated
    async def told(rig: Rig) -> None:
        async with scaled(rig) as broker:
            await broker.topics.create(TOPIC, 2)
            broker.topics.touch(TOPIC)
            await broker.report({0: HOT, 1: HOT})
            if topic is not None:
                await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale=topic))
            broker.levels.namespace = namespace
            await asyncio.sleep(5 * MINUTE)
            assert broker.active == [0, 1]
            assert [r.levelname for r in caplog.records if "automatic splits and merges" in r.message] == [
                "ERROR"
            ]
            explained = await broker.scaler.explain(TOPIC)
            assert explained.problems
            assert isinstance(explained.verdict, Stay)
            (figures,) = broker.scaler.figures()
            assert figures.problems == explained.problems
            # Everything else goes on.
            await rig.joined(broker.topics, "a")
            await broker.topics.split(TOPIC, 0)
            broker.levels.namespace = None
            await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale=None))
            await asyncio.sleep(3 * MINUTE)
            assert len(broker.active) > 3

    with caplog.at_level(logging.WARNING):
        told()


# -- what is counted


@simulated
async def test_a_split_that_only_the_cap_stops_is_counted_as_suppressed(rig: Rig) -> None:
    async with scaled(rig, replace(DEFAULT, max_segments=2)) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: WARM, 1: WARM})
        await asyncio.sleep(5 * MINUTE)
        (figures,) = broker.scaler.figures()
        assert figures.split_suppressed_max_segments == 0
        await broker.report({0: HOT})
        await asyncio.sleep(3 * MINUTE)
        (figures,) = broker.scaler.figures()
        assert figures.split_suppressed_max_segments == 3
        assert figures.merge_suppressed_max_depth == 0
        assert figures.active_segments == 2


@simulated
async def test_a_merge_that_only_the_depth_stops_is_counted_as_suppressed(rig: Rig) -> None:
    async with scaled(rig, replace(DEFAULT, max_dag_depth=0)) as broker:
        await broker.topics.create(TOPIC, 2)
        broker.topics.touch(TOPIC)
        await broker.report({0: COLD, 1: COLD})
        await asyncio.sleep(4 * MINUTE)
        (figures,) = broker.scaler.figures()
        assert figures.merge_suppressed_max_depth == 0
        await asyncio.sleep(3 * MINUTE)
        (figures,) = broker.scaler.figures()
        assert figures.merge_suppressed_max_depth >= 2
        assert broker.counted("no_merge", "max_depth") == figures.merge_suppressed_max_depth


@simulated
async def test_what_is_done_is_counted_by_its_reason(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await broker.report({0: HOT})
        await asyncio.sleep(MINUTE + 1)
        await broker.report({1: COLD, 2: COLD})
        await asyncio.sleep(6 * MINUTE)
        assert broker.active == [3]
        for name in "ab":
            await rig.joined(broker.topics, name)
        await rig.until(lambda: len(broker.active) == 2)
        assert broker.counted("split", "load") == broker.counted("split", "consumers") == 1
        assert broker.counted("merge", "cold") == 1
        (figures,) = broker.scaler.figures()
        assert (figures.auto_splits, figures.auto_merges) == (2, 1)


# -- what is told


async def stored_decisions(broker: Scaled) -> DecisionHistory:
    found = await broker.topics.metadata.get(decisions_path(TOPIC))
    return DecisionHistory() if found is None else DecisionHistory.decode(found.value)


@simulated
async def test_decisions_are_written_down_and_the_next_leader_tells_them(rig: Rig) -> None:
    async with scaled(rig) as first, scaled(rig) as second:
        await first.topics.create(TOPIC)
        await rig.joined(first.topics, "a")
        await rig.joined(first.topics, "b")
        await rig.until(lambda: len(first.active) == 2)
        await asyncio.sleep(2)
        kinds = [decision.kind for decision in (await stored_decisions(first)).decisions]
        assert DecisionKind.SPLIT in kinds
        second.topics.touch(TOPIC)
        await asyncio.sleep(1)
        await rig.stores[0].expire_session()
        await rig.until(lambda: second.topics.controllers[TOPIC].is_leader)
        explained = await second.scaler.explain(TOPIC)
        (split,) = [d for d in explained.decisions.decisions if d.kind is DecisionKind.SPLIT]
        assert (split.rule, split.segments) == ("consumers", (0,))


@simulated
async def test_an_idle_topic_writes_nothing_but_tells_why_it_stays(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await broker.report({0: IDLE})
        await asyncio.sleep(60 * MINUTE)
        assert await stored_decisions(broker) == DecisionHistory()
        (told,) = (await broker.scaler.explain(TOPIC)).decisions.decisions
        assert told.kind is DecisionKind.STAY
        assert told.times >= 59


@simulated
async def test_a_topic_at_rest_is_counted_at_every_tick_and_moves_when_a_fact_does(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await broker.report({0: IDLE})
        await asyncio.sleep(10 * MINUTE)
        counted = broker.counted("no_split", "not_needed")
        await asyncio.sleep(10 * MINUTE)
        assert broker.counted("no_split", "not_needed") == counted + 10
        before = (await broker.scaler.explain(TOPIC)).decisions.latest
        await asyncio.sleep(10 * MINUTE)
        after = (await broker.scaler.explain(TOPIC)).decisions.latest
        assert before is not None
        assert after is not None
        assert (after.at_ms, after.times) == (before.at_ms, before.times + 10)
        assert after.until_ms == before.until_ms + 10 * MINUTE * 1000
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"enabled": False}))
        await rig.until(lambda: broker.counted("no_split", "off") == 2, 3 * MINUTE)
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale=None))
        await broker.report({0: HOT})
        await rig.until(lambda: len(broker.active) == 2, 3 * MINUTE)


@simulated
async def test_an_operators_split_is_not_taken_for_one_answer_with_what_follows(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        broker.topics.touch(TOPIC)
        await asyncio.sleep(5 * MINUTE)
        await broker.topics.split(TOPIC, 0)
        await asyncio.sleep(30 * MINUTE)
        (split,) = [
            d
            for d in (await broker.scaler.explain(TOPIC)).decisions.decisions
            if d.kind is DecisionKind.SPLIT
        ]
        assert (split.times, split.at_ms) == (1, split.until_ms)


@simulated
async def test_what_an_operator_did_is_part_of_the_story(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.split(TOPIC, 0)
        await broker.topics.merge(TOPIC, 1, 2)
        await asyncio.sleep(2)
        told = [(d.kind, d.rule, d.segments) for d in (await stored_decisions(broker)).decisions]
        assert told == [(DecisionKind.SPLIT, "manual", (0,)), (DecisionKind.MERGE, "manual", (1, 2))]


@simulated
async def test_a_rebucket_by_hand_is_noted_counted_and_given_back_once_nobody_has_needed_it(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.rebucket(TOPIC, 0, 8)
        assert broker.active == [1]
        await asyncio.sleep(29 * MINUTE)
        assert broker.layout.active[0].bucket_count == 8
        explained = await broker.scaler.explain(TOPIC)
        assert "No rebucket: segment 1 has 8 entry buckets and 1 would be enough" in explained.verdict.because
        await asyncio.sleep(3 * MINUTE)
        assert [(s.id, s.bucket_count) for s in broker.layout.active] == [(2, 1)]
        told = [
            (d.rule, d.segments, d.because)
            for d in (await stored_decisions(broker)).decisions
            if d.kind is DecisionKind.REBUCKET
        ]
        assert told == [
            ("manual", (0,), "An operator asked for the rebucket to 8 entry buckets"),
            ("idle", (1,), "segment 1 has 8 entry buckets and 1 would be enough, for 30 min or longer"),
        ]
        assert broker.counted("rebucket", "idle") == 1
        assert broker.counted("no_rebucket", "window") > 20
        (figures,) = broker.scaler.figures()
        assert (figures.rebuckets, figures.auto_splits, figures.auto_merges) == (2, 0, 0)


@simulated
async def test_a_consumer_that_leaves_starts_the_idle_window_again(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.rebucket(TOPIC, 0, 8)
        peer, _ = await rig.joined(broker.topics, "a")
        await asyncio.sleep(20 * MINUTE)
        await broker.topics.leave(TOPIC, "billing", "a", peer)
        await asyncio.sleep(29 * MINUTE)
        assert broker.layout.active[0].bucket_count == 8
        await asyncio.sleep(3 * MINUTE)
        assert broker.layout.active[0].bucket_count == 1


@simulated
async def test_no_rebucket_follows_where_nothing_happens_by_itself(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC)
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"enabled": False}))
        await broker.topics.rebucket(TOPIC, 0, 8)
        await asyncio.sleep(60 * MINUTE)
        assert broker.active == [1]


@simulated
async def test_an_explanation_has_the_policy_the_loads_and_what_would_be_done_now(rig: Rig) -> None:
    async with scaled(rig, interval_s=NEVER_S) as broker:
        await broker.topics.create(TOPIC, 2)
        await broker.topics.update(TOPIC, lambda r: replace(r, auto_scale={"maxSegments": 7}))
        await broker.report({0: HOT})
        explained = await broker.scaler.explain(TOPIC)
        assert explained.resolved.policy.max_segments == 7
        assert explained.resolved.origin["maxSegments"] == "topic"
        assert {number: report.load for number, report in explained.load.items()} == {0: HOT}
        assert isinstance(explained.verdict, Split)
        assert explained.verdict.segment == 0
        assert explained.problems == ()
        # Asking changes nothing.
        assert broker.active == [0, 1]
        assert broker.scaler.reasons == {}
        with pytest.raises(TopicMissing):
            await broker.scaler.explain(TopicName.parse("topic://public/default/unknown"))


@simulated
async def test_decisions_and_loads_go_with_the_topic(rig: Rig) -> None:
    async with scaled(rig) as broker:
        await broker.topics.create(TOPIC, 2)
        await broker.report({0: HOT, 1: WARM})
        await broker.topics.split(TOPIC, 1)
        await asyncio.sleep(2 * MINUTE)
        await broker.topics.delete(TOPIC)
        await asyncio.sleep(2 * MINUTE)
        assert await broker.topics.metadata.scan(topic_path(TOPIC)) == []
        assert await broker.topics.metadata.get(topic_path(TOPIC)) is None
        assert list(broker.scaler.figures()) == []


@simulated
async def test_nothing_is_left_running_once_the_scaler_is_closed(rig: Rig) -> None:
    async with scaled(rig, ScalePolicy(max_segments=8)) as broker:
        await broker.topics.create(TOPIC)
        for name in "abcd":
            await rig.joined(broker.topics, name)
    known = rig.loop.timers
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 10 * MINUTE)
    assert rig.loop.timers <= known
    state = broker.topics.controllers[TOPIC].state
    assert state is not None
    assert isinstance(state.topic.layout, SegmentLayout)
    assert len(state.topic.layout.active) == 2
