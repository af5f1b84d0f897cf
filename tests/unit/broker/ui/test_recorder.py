"""What the page remembers: rates between two samples, backlog, stretches of nothing, and an end to it all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from anabranch.broker.ui.recorder import KEPT_MS, Recorder, Total, Totals, shown_name
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from unit.broker.admin.conftest import NOW_MS, Rest, serving


def still(at_ms: int, backlog: int = 0) -> Total:
    return Total(at_ms, 0.0, 0.0, 0.0, 0.0, backlog)


def busy(at_ms: int) -> Total:
    return Total(at_ms, 5.0, 0.0, 50.0, 0.0, 7)


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


def test_a_stretch_of_nothing_is_its_first_and_last_sample() -> None:
    totals = Totals()
    assert [totals.add(still(at)) for at in (1, 2, 3, 4)] == [1, 1, 0, 0]
    assert [t.at_ms for t in totals.since(0)] == [1, 4]
    totals.add(still(5, backlog=3))
    assert [t.at_ms for t in totals.since(0)] == [1, 4, 5]


def test_a_stretch_that_goes_on_unsampled_reads_as_if_it_had_been_sampled() -> None:
    sampled, extended = Totals(), Totals()
    for at in range(1, 50):
        sampled.add(still(at, backlog=2))
    extended.add(still(1, backlog=2))
    assert not extended.may_rest
    extended.add(still(2, backlog=2))
    assert extended.may_rest
    assert extended.extend(49) == 0
    assert list(extended.since(0)) == list(sampled.since(0))
    extended.add(still(50, backlog=3))
    assert not extended.may_rest


def test_a_long_stretch_begins_an_hour_ago() -> None:
    totals = Totals()
    for total in (busy(1), still(2), still(3)):
        totals.add(total)
    assert totals.extend(KEPT_MS + 100) == -1
    assert [t.at_ms for t in totals.since(0)] == [100, KEPT_MS + 100]


def test_samples_older_than_an_hour_go() -> None:
    totals = Totals()
    for at in (1, 2, KEPT_MS + 2):
        totals.add(busy(at))
    assert [t.at_ms for t in totals.since(0)] == [2, KEPT_MS + 2]
    assert [t.at_ms for t in totals.since(2)] == [KEPT_MS + 2]


def test_totals_know_when_something_last_moved() -> None:
    totals = Totals()
    assert (totals.latest, totals.moved_ms) == (None, 0)
    for total in (busy(1), still(2), still(3)):
        totals.add(total)
    assert totals.moved_ms == 1


def test_segments_and_partitions_count_for_the_topic_people_know() -> None:
    names = {
        "segment://public/default/t/0000-7fff-1": "topic://public/default/t",
        "persistent://public/default/t-partition-3": "persistent://public/default/t",
        "persistent://public/default/t": "persistent://public/default/t",
    }
    assert {name: str(shown_name(TopicName.parse(name))) for name in names} == names


async def test_a_sample_holds_what_flowed_since_the_one_before_and_what_waits(rest: Rest) -> None:
    recorder = rest.broker.recorder
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await rest.publish("t", b"one", b"two")
    await recorder.sample()
    first = recorder.totals(TopicName.parse("t")).latest
    assert first is not None
    assert first.messages_in > 0
    assert first.bytes_in > first.messages_in
    assert (first.messages_out, first.backlog) == (0.0, 2)
    await recorder.sample()
    second = recorder.totals(TopicName.parse("t")).latest
    assert second is not None
    assert (second.is_still, second.backlog) == (True, 2)
    whole = recorder.broker_totals.latest
    assert whole is not None
    assert whole.backlog == 2


class Clock:
    def __init__(self, rest: Rest) -> None:
        self.now_ms = NOW_MS
        broker = rest.broker
        self.recorder = Recorder(
            broker.loaded, broker.scalable, now_ms=lambda: self.now_ms, clock=broker.loop.time
        )

    async def round(self) -> None:
        self.now_ms += 10
        await self.recorder.sample()

    def seen(self, name: str) -> list[tuple[int, bool, int]]:
        totals = self.recorder.totals(TopicName.parse(name)).since(0)
        return [(t.at_ms - NOW_MS, t.is_still, t.backlog) for t in totals]


async def test_a_topic_at_rest_is_seen_in_every_sample_until_it_moves_again(rest: Rest) -> None:
    clock = Clock(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await rest.publish("t", b"one")
    for _ in range(8):
        await clock.round()
    assert clock.seen("t") == [(10, False, 1), (20, True, 1), (80, True, 1)]
    await clock.round()
    assert clock.seen("t")[-1] == (90, True, 1)
    await clock.round()
    await rest.publish("t", b"two")
    await clock.round()
    assert clock.seen("t") == [(10, False, 1), (20, True, 1), (100, True, 1), (110, False, 2)]


async def test_what_waits_is_counted_also_where_nothing_flows(rest: Rest) -> None:
    clock = Clock(rest)
    await rest.call("PUT", "/admin/v2/persistent/public/default/p/partitions", 204, json=2)
    await rest.call("PUT", "/admin/v2/persistent/public/default/p/subscription/s", 204)
    for partition in range(2):
        await rest.publish(f"p-partition-{partition}", b"one", b"two")
    for _ in range(4):
        await clock.round()
    assert clock.seen("p")[-1] == (40, True, 4)
    one = await rest.broker.topic(TopicName.parse("p-partition-1"))
    await one.subscriptions["s"].skip_all()
    await clock.round()
    assert clock.seen("p")[-2:] == [(40, True, 4), (50, True, 2)]
    await one.close()
    (await rest.publish("other", b"x"))
    for _ in range(3):
        await clock.round()
    assert clock.seen("p")[-2:] == [(50, True, 2), (80, True, 2)]
    whole = clock.recorder.broker_totals.latest
    assert whole is not None
    assert whole.backlog == 2


async def test_a_closed_topic_was_at_rest_until_it_was_last_seen_and_is_forgotten_after_an_hour(
    rest: Rest,
) -> None:
    clock = Clock(rest)
    await rest.publish("t", b"one")
    for _ in range(5):
        await clock.round()
    topic = await rest.broker.topic(TopicName.parse("t"))
    await topic.close()
    for _ in range(3):
        await clock.round()
    assert clock.seen("t")[-1] == (50, True, 0)
    await rest.publish("t", b"again")
    await clock.round()
    assert clock.seen("t")[-2:] == [(50, True, 0), (90, False, 0)]
    await (await rest.broker.topic(TopicName.parse("t"))).close()
    await clock.round()
    clock.now_ms += KEPT_MS
    await clock.round()
    assert clock.seen("t") == []


async def test_topics_quiet_for_longest_lose_their_past_first(rest: Rest) -> None:
    broker = rest.broker
    recorder = Recorder(broker.loaded, broker.scalable, broker.now_ms, broker.loop.time, samples_max=3)
    await rest.call("PUT", "/admin/v2/persistent/public/default/quiet/subscription/s", 204)
    for _ in range(2):
        await rest.publish("loud", b"x")
        await recorder.sample()
    assert recorder.totals(TopicName.parse("quiet")).latest is None
    assert len(recorder.totals(TopicName.parse("loud"))) == 2


async def test_pruned_segments_are_remembered_without_anybody_looking(rest: Rest) -> None:
    path = "/admin/v2/scalable/public/default/t"
    await rest.call("PUT", path, 204)
    await rest.call("POST", f"{path}/split/0", 204)
    await rest.broker.recorder.sample()
    assert len(rest.broker.recorder.layouts) == 3
