"""Queries on a broker that keeps nothing which no subscription needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch import blocking
from anabranch.client import DataLost, Message
from anabranch.model.cut import Cut, Place
from anabranch.model.layout import SegmentLayout
from anabranch.model.segments import SegmentId
from harness.broker_process import BrokerProcess, until
from spark.conftest import River, assert_in_order
from spark.dry import DryQuery, values
from spark.test_stream import WITHIN_S, Sink, run, run_into

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def keeping_nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "logLingerBytes": 0,
        "retentionCheckIntervalInSeconds": 1,
    }
    with BrokerProcess(tmp_path_factory.mktemp("keeping_nothing"), settings) as process:
        yield process


@pytest.fixture
def fleeting(keeping_nothing: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[River]:
    made = River(keeping_nothing, request.node.name[:60])
    yield made
    made.close()


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def is_gone(river: River, client: blocking.Client, checkpoint: bytes) -> bool:
    try:
        with client.checkpoint_consumer(river.topic, start=checkpoint):
            return False
    except DataLost:
        return True


def test_a_subscription_holds_what_a_stopped_query_has_not_read(
    spark: SparkSession, fleeting: River, sink: Sink
) -> None:
    run(spark, fleeting, sink, subscription="table")
    fleeting.publish(50)
    fleeting.split(0)
    fleeting.publish(50)
    run(spark, fleeting, sink, subscription="table")
    assert_in_order(sink.rows, 100)


def test_a_query_says_that_another_is_ahead_of_it_with_its_subscription(
    river: River, caplog: pytest.LogCaptureFixture
) -> None:
    options = river.options(start="earliest", subscription="table")
    slow, quick = DryQuery(maxRowsPerTrigger=10, **options), DryQuery(**options)
    try:
        # Planning a batch moves the subscription over the one before.
        for _ in range(3):
            river.publish(20)
            slow.trigger()
        quick.catch_up()
        river.publish(20)
        quick.catch_up()
        until(lambda: backlog(river, "table") <= 1, WITHIN_S)
        assert "subscription of its own" not in caplog.text
        slow.trigger()
        until(lambda: "give each query a subscription of its own" in caplog.text, WITHIN_S)
    finally:
        slow.stop()
        quick.stop()


def backlog(river: River, subscription: str) -> int:
    stats = river.broker.get(f"{river.path}/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_rows_that_are_gone_fail_the_query_unless_it_is_told_to_go_on(
    spark: SparkSession, fleeting: River, sink: Sink
) -> None:
    with blocking.connect(fleeting.broker.url) as client:
        keeper = client.queue_consumer(fleeting.topic, "keeper", start="earliest")
        fleeting.publish(50)
        reader = client.checkpoint_consumer(fleeting.topic, start="earliest")
        for _ in range(50):
            reader.receive(timeout_s=WITHIN_S)
        run(spark, fleeting, sink, start="earliest")
        assert_in_order(sink.rows, 50)
        fleeting.publish(50)
        for _ in range(100):
            keeper.ack(keeper.receive(timeout_s=WITHIN_S))
        assert keeper.flush()
        checkpoint = reader.checkpoint()
        until(lambda: is_gone(fleeting, client, checkpoint), WITHIN_S)
        error = run_into(spark, fleeting, sink, start="earliest")
        assert "were deleted: segment 0" in error
        assert "set failOnDataLoss=false" in error
        fleeting.publish(50)
        run(spark, fleeting, sink, start="earliest", failOnDataLoss="false")
        assert sorted(number for _, number in sink.rows) == [*range(50), *range(100, 150)]
        keeper.close()


def received(keeper: blocking.QueueConsumer, count: int) -> dict[int, Message]:
    found = [keeper.receive(timeout_s=WITHIN_S) for _ in range(count)]
    return {int(message.payload): message for message in found}


@pytest.mark.parametrize("mode", ["auto", "direct", "broker"])
def test_an_empty_segment_that_is_collected_before_its_task_runs_is_no_loss(
    keeping_nothing: BrokerProcess, mode: str
) -> None:
    river = River(keeping_nothing, f"collected-{mode}")
    query = DryQuery(**river.options(start="earliest", readMode=mode))
    with blocking.connect(river.broker.url) as client:
        keeper = client.queue_consumer(river.topic, "keeper", start="earliest")
        river.publish(10, keys=1)
        river.split(0)
        river.publish(10, keys=1)
        kept = received(keeper, 20)
        empty = 1 if kept[10].id.segment == 2 else 2
        river.split(empty)
        assert values(query.trigger()) == list(range(10))
        assert values(query.trigger()) == list(range(10, 20))
        tasks = query.tasks(*map(json.loads, query.log[-2:]))
        assert {one.slice.segment for task in tasks for one in task.value} == {1, 2}
        for number in range(10):
            keeper.ack(kept[number])
        assert keeper.flush()
        until(lambda: str(empty) not in river.broker.get(river.path)["segments"], WITHIN_S)
        assert values(query.read(tasks)) == list(range(10, 20))
        # Planned again, as after a crash.
        assert values(query.rows(*map(json.loads, query.log[-2:]))) == list(range(10, 20))
        keeper.close()
    query.stop()
    river.close()


def publish_one_by_one(river: River, count: int) -> None:
    """An entry each: retention deletes whole entries."""
    for _ in range(count):
        river.publish(1)


def test_what_was_gone_before_a_reader_began_at_the_earliest_message_is_no_loss(fleeting: River) -> None:
    with blocking.connect(fleeting.broker.url) as client:
        keeper = client.queue_consumer(fleeting.topic, "keeper", start="earliest")
        publish_one_by_one(fleeting, 20)
        fleeting.split(0)
        publish_one_by_one(fleeting, 20)
        fleeting.split(1)
        publish_one_by_one(fleeting, 20)
        kept = received(keeper, 60)
        # The first messages of each segment: 2 has none of the last 20 at its beginning.
        firsts = {n for n in kept if n % 20 < 10 and (n < 40 or kept[n].id.segment != 2)}
        expected = sorted(kept.keys() - firsts)
        for number in firsts:
            keeper.ack(kept[number])
        assert keeper.flush()
        topic_id = fleeting.broker.get(fleeting.path)["topicId"]
        layout = SegmentLayout.initial(1, 0).split(0, 0).split(1, 0)
        for number in range(5):
            begun = Cut((Place.of(layout.segments[SegmentId(number)]),), topic_id).encode()
            until(lambda begun=begun: is_gone(fleeting, client, begun), WITHIN_S)  # type: ignore[misc]
        with client.checkpoint_consumer(fleeting.topic, start="earliest") as reader:
            found = [reader.receive(timeout_s=WITHIN_S) for _ in range(5)]
            checkpoint = reader.checkpoint()
        with client.checkpoint_consumer(fleeting.topic, start=checkpoint) as reader:
            found += [reader.receive(timeout_s=WITHIN_S) for _ in expected[5:]]
        assert sorted(int(message.payload) for message in found) == expected
        # The same from a time on that is before all of them.
        with client.checkpoint_consumer(fleeting.topic, start=datetime(2020, 1, 1, tzinfo=UTC)) as reader:
            found = [reader.receive(timeout_s=WITHIN_S) for _ in expected]
        assert sorted(int(message.payload) for message in found) == expected
        query = DryQuery(**fleeting.options(start="2020-01-01T00:00:00Z"))
        assert values(query.catch_up()) == expected
        query.stop()
        query = DryQuery(**fleeting.options(start="earliest"))
        assert values(query.trigger()) == expected[:10]
        query.restart()
        assert values(query.catch_up()) == expected[10:]
        query.stop()
        # What is gone later is a loss to whoever was on its way.
        for number in expected:
            keeper.ack(kept[number])
        assert keeper.flush()
        until(lambda: is_gone(fleeting, client, checkpoint), WITHIN_S)
        keeper.close()
