"""Options that say which rows are wanted, how many come at once, and how many tasks read them. No session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from anabranch.model.keyhash import segment_hash
from anabranch.spark.options.source import parse
from anabranch.spark.source import BatchReader
from harness.broker_process import BrokerProcess, until
from spark.conftest import River
from spark.dry import DryQuery, Row, values

WITHIN_S = 60.0
KEYS = [f"key-{n}" for n in range(23)]

Ask = Callable[..., DryQuery]


@pytest.fixture
def ask(river: River) -> Iterator[Ask]:
    made: list[DryQuery] = []

    def ask_one(**options: object) -> DryQuery:
        made.append(DryQuery(**river.options(**{"readMode": "broker", **options})))
        return made[-1]

    yield ask_one
    for query in made:
        query.stop()


def read(river: River, **options: object) -> tuple[list[Row], int]:
    """The rows of a batch read, and how many tasks it has."""
    reader = BatchReader(parse(river.options(**options), "batch"), None)
    partitions = reader.partitions()
    rows = [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]
    return rows, len(partitions)


def test_keys_and_hashes_choose_segments_and_rows(river: River, ask: Ask) -> None:
    river.publish(100)
    river.split(0)
    river.publish(100)
    by_key = {key: segment_hash(key.encode()) for key in KEYS}
    low = [key for key, at in by_key.items() if at < 0x8000]
    rows, tasks = read(river, keyRange="0000-7fff")
    assert len(rows) == sum(1 for n in range(200) if f"key-{n % 23}" in low)
    assert tasks == 2, "the other child is not read at all"
    rows, tasks = read(river, keys=",".join(low[:2]))
    assert {row["key"].decode() for row in rows} == set(low[:2])
    assert tasks == 2
    rows, tasks = read(river, segments="1,2")
    assert values(rows) == list(range(100, 200))
    assert tasks == 2
    query = ask(start="earliest", keys=low[0])
    assert {row["key"].decode() for row in query.catch_up()} == {low[0]}
    assert values(query.catch_up()) == []


def test_publish_times_choose_rows(river: River, ask: Ask) -> None:
    river.publish(50)
    last = read(river)[0][-1]["publish_time"]
    until(lambda: datetime.now(UTC) > last + timedelta(milliseconds=2))
    river.split(0)
    river.publish(50)
    rows, _ = read(river)
    times = sorted(row["publish_time"] for row in rows)
    since, before = (last + timedelta(milliseconds=1)).isoformat(), times[-1].isoformat()
    assert values(read(river, startTime=since)[0]) == list(range(50, 100))
    assert values(read(river, endTime=since)[0]) == list(range(50))
    expected = [row for row in rows if last < row["publish_time"] < times[-1]]
    assert values(read(river, startTime=since, endTime=before)[0]) == values(expected)
    assert values(ask(startTime=since).catch_up()) == list(range(50, 100))
    assert values(ask(start="earliest", endTime=since).catch_up()) == list(range(50))


@pytest.mark.parametrize("mode", ["broker", "auto"])
def test_a_batch_has_as_many_tasks_as_asked_for_and_the_same_rows(river: River, mode: str) -> None:
    for _ in range(10):
        river.publish(10)
    river.split(0)
    for _ in range(10):
        river.publish(10)
    river.broker.restart()  # The next entries are in other ledgers.
    for _ in range(10):
        river.publish(10)
    whole, tasks = read(river, readMode=mode)
    assert tasks == 3
    cut, tasks = read(river, readMode=mode, minPartitions=12)
    assert tasks >= 12
    assert cut == whole


def test_small_segments_share_tasks_and_each_is_in_one(broker: BrokerProcess) -> None:
    river = River(broker, "many-segments", 24)
    river.publish(500, keys=500)
    rows, tasks = read(river, readMode="auto", maxPartitions=5)
    assert (values(rows), tasks) == (list(range(500)), 5)
    assert read(river, maxPartitions=100)[1] == 24
    assert read(river)[1] <= 24
    query = DryQuery(**river.options(start="earliest", maxPartitions=3))
    for _ in range(2):
        start = query.offset
        assert len(query.catch_up()) == 500
        segments = [{one.slice.segment for one in part.value} for part in query.tasks(start, query.offset)]
        assert sorted(number for some in segments for number in some) == list(range(24))
        assert len(segments) == 3
        river.publish(500, keys=500)
    query.restart()
    assert len(query.catch_up()) == 500, "a query that begins anew knows no sizes yet"
    query.stop()
    river.close()


def test_what_was_published_before_spark_asks_is_told_and_nothing_is_made_up(river: River, ask: Ask) -> None:
    query = ask(start="earliest", readMode="auto")
    for turn in range(10):
        river.publish(7)
        if turn in (3, 6):
            river.split(turn // 3 - 1)
        assert len(query.catch_up()) == 7
        # It waits for news here, and there is none.
        assert [query.trigger() for _ in range(3)] == [None, None, None]
    assert values([row for batch in query.batches for row in batch]) == list(range(70))


def test_a_query_that_waits_has_what_comes(river: River, ask: Ask) -> None:
    query = ask(start="earliest")

    def wait_for(count: int) -> list[Row]:
        found: list[Row] = []
        while len(found) < count:
            found += query.trigger() or ()
        return found

    with ThreadPoolExecutor(1) as pool:
        for turn in range(5):
            assert query.catch_up() == []
            waiting = pool.submit(wait_for, 3)
            river.publish(3)
            assert values(waiting.result(WITHIN_S)) == list(range(3 * turn, 3 * turn + 3))


def test_a_stream_without_order_may_have_several_tasks_for_a_segment(river: River, ask: Ask) -> None:
    for _ in range(10):
        river.publish(10)
    query = ask(start="earliest", ordering="none", minPartitions=4)
    start = query.offset
    assert values(query.catch_up()) == list(range(100))
    assert len(query.tasks(start, query.offset)) >= 4


def test_a_batch_that_is_as_large_as_it_may_be_does_not_wait_for_more_rows(river: River, ask: Ask) -> None:
    for _ in range(30):
        river.publish(1)
    query = ask(
        start="earliest", minRowsPerTrigger=100, maxTriggerDelay="1d", maxBytesPerTrigger=500, readMode="auto"
    )
    assert 0 < len(query.trigger() or ()) < 30
    assert query.topics == {river.topic.rpartition("/")[2]}


def test_a_batch_waits_for_enough_rows_but_not_for_ever(river: River, ask: Ask) -> None:
    query = ask(start="earliest", minRowsPerTrigger=20, maxTriggerDelay="1d")
    river.publish(19)
    assert query.trigger() is None
    river.publish(1)
    assert values(query.trigger()) == list(range(20))
    river.publish(5)
    assert query.trigger() is None
    # What a split finished is not held back: more may wait behind it.
    river.split(0)
    river.publish(15)
    until(lambda: len(query.catch_up()) == 5, WITHIN_S)
    assert query.trigger() is None
    river.publish(5)
    assert values(query.catch_up()) == list(range(25, 45))
    soon = ask(start="earliest", minRowsPerTrigger=1000, maxTriggerDelay="300ms")
    river.publish(5)
    until(lambda: (soon.trigger() or 1) and sum(map(len, soon.batches)) == 50, WITHIN_S)


def test_what_is_available_now_is_read_however_little_it_is(river: River, ask: Ask) -> None:
    query = ask(start="earliest", minRowsPerTrigger=1000)
    river.publish(5)
    query.until_now()
    assert values(query.catch_up()) == list(range(5))


def test_a_catch_up_through_ten_generations_stays_together_in_time(river: River, ask: Ask) -> None:
    """Two halves of the key range: one is never split again, the other is split and merged all the time."""
    river.split(0)
    newest = 2
    for _ in range(5):
        publish_apart(river)
        river.split(newest)
        publish_apart(river)
        river.merge(newest + 1, newest + 2)
        newest += 3
    publish_apart(river)
    query = ask(start="earliest", maxTimeSkew="1ms")
    rows = query.catch_up()
    assert values(rows) == list(range(river.published))
    assert is_together(query)
    apart = ask(start="earliest")
    apart.catch_up()
    assert not is_together(apart)


def is_together(query: DryQuery) -> bool:
    """Whether no row is older than one of an earlier batch by more than a millisecond."""
    batches = [[row["publish_time"] for row in rows] for rows in query.batches]
    return all(
        min(later) >= max(earlier) - timedelta(milliseconds=1)
        for n, earlier in enumerate(batches)
        for later in batches[n + 1 :]
        if earlier and later
    )


def publish_apart(river: River) -> None:
    """Messages of another millisecond than all before."""
    river.publish(23)
    now = datetime.now(UTC)
    until(lambda: datetime.now(UTC) > now + timedelta(milliseconds=3))
