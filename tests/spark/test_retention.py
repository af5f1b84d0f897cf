"""Queries on a broker that keeps nothing which no subscription needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anabranch import blocking
from anabranch.client import DataLost
from harness.broker_process import BrokerProcess, until
from spark.conftest import River, assert_in_order
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
