"""A log in an object store is read without its broker: the rows are the same, each once, on a real session."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from anabranch import blocking
from harness.broker_process import BrokerProcess
from harness.minio import bucket_url
from spark.conftest import River, assert_in_order, read
from spark.test_stream import Sink, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["folder", pytest.param("minio", marks=pytest.mark.objects)])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("objects")
    url = (
        bucket_url(f"spark-{secrets.token_hex(8)}")
        if request.param == "minio"
        else f"objects://{folder}/objects"
    )
    with BrokerProcess(folder, {"logUrl": url, "logObjectPutsPerSecond": 0}, brokers=1) as process:
        yield process


@pytest.fixture
def river(broker: BrokerProcess) -> Iterator[River]:
    made = River(broker, f"objects-{next(_numbers)}", 2)
    yield made
    made.close()


def rows_by(spark: SparkSession, river: River, mode: str, **options: str) -> list[Any]:
    return read(spark, river, readMode=mode, **options).orderBy("position").collect()


def test_every_row_and_column_is_the_same_from_objects_and_through_the_broker(
    spark: SparkSession, river: River
) -> None:
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, compression="lz4")
        for number in range(200):
            producer.post(b"%d" % number, key=f"k{number % 7}", properties={"n": str(number)})
        producer.flush()
    river.split(0)
    for _ in range(5):
        river.publish(100)
    direct = rows_by(spark, river, "direct")
    assert len(direct) == 700
    assert direct == rows_by(spark, river, "broker")
    assert direct == rows_by(spark, river, "direct", objectAccess="own")
    by_buckets = rows_by(spark, river, "direct", ordering="key", minPartitions="8")
    assert sorted(by_buckets) == sorted(direct)


def test_a_stream_has_each_row_once_over_splits_and_the_death_of_the_broker(
    spark: SparkSession, river: River, tmp_path: Path
) -> None:
    sink = Sink(tmp_path)
    options = {"start": "earliest", "maxRowsPerTrigger": 120, "readMode": "direct"}
    river.publish(300)
    run(spark, river, sink, **options)
    river.split(0)
    river.publish(200)
    run(spark, river, sink, **options)
    river.broker.kill()
    river.broker.start()
    river.publish(200)
    run(spark, river, sink, **options)
    assert_in_order(sink.rows, 700)
    assert max(len(rows) for rows in sink.batches.values()) <= 120
