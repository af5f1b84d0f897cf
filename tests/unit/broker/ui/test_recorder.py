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


async def test_topics_quiet_for_longest_lose_their_past_first(rest: Rest) -> None:
    recorder = Recorder(rest.broker, samples_max=3)
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
