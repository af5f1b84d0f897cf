"""What each system is asked to do, as Spark queries that anybody would write; each returns how many rows there were
and, where only a part of the time counts, how many seconds.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.spark import data
from bench.spark.data import DataSet
from bench.spark.ready import ReadySource

# Larger fetches than the defaults of Kafka's consumer: 1 MB of a partition, 500 records at once.
TUNED = {
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(100 << 20),
    "kafka.max.poll.records": "10000",
    "kafka.receive.buffer.bytes": str(4 << 20),
}
_turns = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Done:
    rows: int
    # By the query's own clock; None: all of the time counts.
    seconds: float | None = None


Query = Callable[[DataSet], Done]


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything is."""

    spark: Any
    url: str
    admin_url: str
    kafka: str
    root: Path


def noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Ours:
    def __init__(self, places: Places) -> None:
        self._places = places

    def _options(self, one: DataSet, **more: str) -> dict[str, str]:
        topic = f"topic://public/default/{one.topic}"
        return {"serviceUrl": self._places.url, "topic": topic, "columns": "key,value", **more}

    def read(self, one: DataSet) -> Done:
        noop(self._places.spark.read.format("anabranch").options(**self._options(one)).load())
        return Done(one.rows)

    def read_all_columns(self, one: DataSet) -> Done:
        options = self._options(one)
        del options["columns"]
        noop(self._places.spark.read.format("anabranch").options(**options).load())
        return Done(one.rows)

    def read_through_broker(self, one: DataSet) -> Done:
        options = self._options(one, readMode="broker")
        noop(self._places.spark.read.format("anabranch").options(**options).load())
        return Done(one.rows)

    def stream(self, one: DataSet) -> Done:
        options = self._options(one, start="earliest")
        return streamed(
            self._places, self._places.spark.readStream.format("anabranch").options(**options).load(), one
        )

    def write(self, one: DataSet) -> Done:
        name = f"spark-written-{next(_turns)}"
        data.create_topic(self._places.admin_url, name)
        options = {"serviceUrl": self._places.url, "topic": f"topic://public/default/{name}"}
        start = time.perf_counter()
        _input(self._places, one).write.format("anabranch").options(**options).mode("append").save()
        seconds = time.perf_counter() - start
        data.delete_topic(self._places.admin_url, name)
        return Done(one.rows_written, seconds)


class Kafka:
    def __init__(self, places: Places, *, tuned: bool = False) -> None:
        self._places = places
        self._more = TUNED if tuned else {}

    def _options(self, one: DataSet) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._places.kafka,
            "startingOffsets": "earliest",
            "subscribe": one.topic,
        } | (self._more)

    def load(self, one: DataSet) -> None:
        frame = self._places.spark.read.parquet(str(one.folder(self._places.root)))
        options = {
            "kafka.bootstrap.servers": self._places.kafka,
            "topic": one.topic,
            # Nothing is measured here, and a slow minute of the disk must not end the run: the default is two minutes.
            "kafka.delivery.timeout.ms": "900000",
        }
        frame.write.format("kafka").options(**options).save()

    def read(self, one: DataSet) -> Done:
        frame = self._places.spark.read.format("kafka").options(**self._options(one)).load()
        noop(frame.select("key", "value"))
        return Done(one.rows)

    def stream(self, one: DataSet) -> Done:
        frame = self._places.spark.readStream.format("kafka").options(**self._options(one)).load()
        return streamed(self._places, frame.select("key", "value"), one)

    def write(self, one: DataSet) -> Done:
        options = {"kafka.bootstrap.servers": self._places.kafka, "topic": f"spark-written-{next(_turns)}"}
        _input(self._places, one).write.format("kafka").options(**options).save()
        return Done(one.rows_written)


class Parquet:
    def __init__(self, places: Places) -> None:
        self._places = places

    def read(self, one: DataSet) -> Done:
        noop(self._places.spark.read.parquet(str(one.folder(self._places.root))))
        return Done(one.rows)


class Ready:
    """The most that a Python source could reach."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def read(self, one: DataSet) -> Done:
        self._places.spark.dataSource.register(ReadySource)
        options = {"rows": str(one.rows), "size": str(one.size), "parts": str(data.PARTS)}
        noop(self._places.spark.read.format("ready").options(**options).load())
        return Done(one.rows)

    def read_all_columns(self, one: DataSet) -> Done:
        """With all the columns that our source has."""
        self._places.spark.dataSource.register(ReadySource)
        options = {"rows": str(one.rows), "size": str(one.size), "parts": str(data.PARTS), "columns": "all"}
        noop(self._places.spark.read.format("ready").options(**options).load())
        return Done(one.rows)


def _input(places: Places, one: DataSet) -> Any:
    return places.spark.read.parquet(str(one.folder(places.root, written=True)))


def streamed(places: Places, frame: Any, one: DataSet) -> Done:
    """All there is, in triggers of Spark's choosing; the time that counts is that within triggers that had rows."""
    checkpoint = places.root / f"checkpoint-{next(_turns)}"
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    told = [one for one in query.recentProgress if one["numInputRows"]]
    rows = sum(one["numInputRows"] for one in told)
    assert rows == one.rows, f"{rows} rows came, {one.rows} were there"
    shutil.rmtree(checkpoint)
    return Done(rows, sum(one["durationMs"]["triggerExecution"] for one in told) / 1000)
