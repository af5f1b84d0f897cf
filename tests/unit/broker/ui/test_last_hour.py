"""The page's last hour over a restart: on disk and back, what waits in topics that nobody has opened since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from anabranch.autoscale.load import IDLE, Load
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.broker.topic.topic import Topic
from anabranch.broker.ui import last_hour
from anabranch.broker.ui.recorder import KEPT_MS, Recorder
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.segments import SegmentId
from unit.broker.admin.conftest import NOW_MS, Rest, serving

ORDERS = TopicName.parse("topic://public/default/orders")
T = TopicName.parse("t")


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


def recorder_of(rest: Rest) -> Recorder:
    """One that starts later, on a broker where nobody has opened anything since."""
    return Recorder(dict, rest.broker.scalable, lambda: NOW_MS + 5000, rest.broker.loop.time)


async def recorded(rest: Rest, path: Path, *, is_clean: bool) -> last_hour.LastHour:
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await rest.call("PUT", "/admin/v2/scalable/public/default/orders")
    await rest.call("POST", "/admin/v2/scalable/public/default/orders/split/0")
    await rest.publish("t", b"one", b"two")
    await rest.broker.recorder.sample()
    told = last_hour.image(rest.broker.recorder, None, NOW_MS, is_clean=is_clean)
    await last_hour.save(path, told)
    found = await last_hour.load(path)
    assert found is not None
    return found


async def test_samples_layouts_and_backlogs_come_back(rest: Rest, tmp_path: Path) -> None:
    found = await recorded(rest, tmp_path / "page" / "last-hour-0", is_clean=True)
    later = recorder_of(rest)
    last_hour.restore(found, later, None, NOW_MS + 5000)
    before, after = rest.broker.recorder.totals(T).since(0), later.totals(T).since(0)
    assert list(after[: len(before)]) == list(before)
    # Nothing flowed while the broker was down, and what waited still does.
    assert [(t.at_ms, t.is_still, t.backlog) for t in after[len(before) :]] == [
        (NOW_MS + 1, True, 2),
        (NOW_MS + 5000, True, 2),
    ]
    assert len(later.layouts) == 3
    assert later.backlog(T) == 2
    await later.sample()
    assert later.broker_totals.latest is not None
    assert later.broker_totals.latest.backlog == 2
    assert later.unopened()[T] == {"s": 2}


async def test_a_topic_that_is_opened_again_counts_for_itself(rest: Rest, tmp_path: Path) -> None:
    found = await recorded(rest, tmp_path / "f", is_clean=True)
    topic = rest.broker.loaded()[T]
    loaded: dict[TopicName, Topic] = {}
    later = Recorder(lambda: loaded, None, lambda: NOW_MS + 9, rest.broker.loop.time)
    last_hour.restore(found, later, None, NOW_MS + 5)
    await topic.subscriptions["s"].skip_all()
    loaded[T] = topic
    later.opened(T)
    # Until it is measured, the page shows what was remembered.
    assert later.backlog(T) == 2
    assert T not in later.unopened()
    await later.sample()
    assert later.backlog(T) == 0


async def test_after_a_crash_what_waits_is_not_known(rest: Rest, tmp_path: Path) -> None:
    found = await recorded(rest, tmp_path / "f", is_clean=False)
    later = recorder_of(rest)
    last_hour.restore(found, later, None, NOW_MS + 5000)
    assert later.backlog(T) is None
    assert later.unopened() == {}
    assert later.totals(T).latest is not None


@pytest.mark.parametrize("content", [b"", b"x", msgspec.msgpack.encode([0, 1, False, [], {}, {}, {}, {}])])
async def test_a_file_that_is_none_of_ours_is_left_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    assert await last_hour.load(tmp_path / "f") is None
    assert await last_hour.load(tmp_path / "absent") is None


async def test_what_is_older_than_an_hour_is_not_shown(rest: Rest, tmp_path: Path) -> None:
    found = await recorded(rest, tmp_path / "f", is_clean=True)
    later = recorder_of(rest)
    last_hour.restore(found, later, None, NOW_MS + KEPT_MS)
    assert later.totals(T).latest is None
    # However long ago: what waited still waits.
    assert later.backlog(T) == 2


def test_loads_of_segments_come_back() -> None:
    history, later = LoadHistory(), LoadHistory()
    busy = Load(5.0, 50.0, 1.0, 10.0)
    history.add(ORDERS, SegmentId(3), 100, busy)
    history.add(ORDERS, SegmentId(3), 110, IDLE)
    later.restore(history.image(), 110, 400)
    found = later.since(ORDERS, 0)[SegmentId(3)]
    assert [(sample.at_ms, sample.load) for sample in found[:2]] == [(100, busy), (110, IDLE)]
    assert found[-1] == (400, IDLE)
    # The page of a segment at rest goes on as if there had been no restart.
    later.begin_round(500)
    later.add(ORDERS, SegmentId(3), 500, IDLE)
    assert [sample.at_ms for sample in later.since(ORDERS, 0)[SegmentId(3)]] == [100, 110, 500]


async def test_metrics_tell_what_waits_before_anybody_opens_the_topic(rest: Rest) -> None:
    waiting = {str(T): {"s": 7}, "segment://public/default/o/0000-7fff-1": {"a": 1}}
    found = last_hour.LastHour(last_hour.FORM, NOW_MS, True, [], {}, waiting, {}, {})
    last_hour.restore(found, rest.broker.recorder, None, NOW_MS)
    text = (await rest.call("GET", "/metrics")).text
    told = [line for line in text.splitlines() if line.startswith("pulsar_subscription_back_log{")]
    assert told == [
        'pulsar_subscription_back_log{cluster="standalone",namespace="public/default",'
        'topic="persistent://public/default/t",subscription="s"} 7',
        'pulsar_subscription_back_log{cluster="standalone",namespace="public/default",'
        'topic="topic://public/default/o",segment="0000-7fff-1",subscription="a"} 1',
    ]
    assert 'pulsar_broker_msg_backlog{cluster="standalone"} 8' in text


async def test_the_overview_says_that_it_does_not_know(rest: Rest) -> None:
    await rest.publish("t", b"x")
    await (await rest.broker.topic(T)).close()
    await rest.broker.recorder.sample()
    (topic,) = (await rest.get("/ui/api/overview"))["topics"]
    assert (topic["name"], topic["backlog"]) == (str(T), None)
