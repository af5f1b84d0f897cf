"""What many topics, many segments and idleness cost: not rates of rows, but seconds of a batch and parts of a core."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anabranch import blocking
from bench import usage
from bench.spark import data
from bench.spark.queries import Places

TOPICS = 500
SEGMENTS = 200
SEGMENT_ROWS = 2_000
IDLE = (64, 512)
ROUNDS = 3
TRIES = 3 * ROUNDS
# Long enough that all rows are there when a batch is planned.
EVERY = "6 seconds"
WITHIN_S = 300.0
SETTLE_S, IDLE_S = 10.0, 15.0


def many_topics(places: Places) -> list[float]:
    """Seconds of a micro-batch over all topics of a pattern, with one new row in each."""
    names = [f"wide-{number}" for number in range(TOPICS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: data.create_topic(places.admin_url, name, 1), names))
    options = {
        "serviceUrl": places.url,
        "topicsPattern": "public/default/wide-[0-9]+",
        "start": "earliest",
    }
    with blocking.connect(places.url) as client, started(places, "wide", options, EVERY) as query:
        producers = [client.producer(f"topic://public/default/{name}") for name in names]
        seconds: list[float] = []
        for number in range(1, TRIES + 1):
            for producer in producers:
                producer.post(b"x", key="k")
            for producer in producers:
                producer.flush()
            wait_for(query, number * TOPICS)
            # A trigger that fell into the sending made two batches of the rows, and measures nothing.
            seconds = [spent for rows, spent in batches(query) if rows == TOPICS]
            if len(seconds) > ROUNDS:
                break
    return seconds[1:]


def many_segments(places: Places) -> list[float]:
    """Seconds of a batch over a topic of many segments, with a few rows in each."""
    data.create_topic(places.admin_url, "segments", SEGMENTS)
    topic = "topic://public/default/segments"
    with blocking.connect(places.url) as client, client.producer(topic) as producer:
        for number in range(SEGMENT_ROWS):
            producer.post(b"x", key=f"key-{number}")
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        reader = places.spark.read.format("anabranch").options(serviceUrl=places.url, topic=topic)
        rows = reader.load().count()
        seconds.append(time.perf_counter() - start)
        if rows != SEGMENT_ROWS:
            raise RuntimeError(f"{rows} rows came, {SEGMENT_ROWS} were there")
    return seconds[1:]


def idle(places: Places, segments: int, broker_pid: int) -> dict[str, float]:
    """Parts of a core that a query takes while nothing is published: of the broker, of Python, and of Spark's JVM."""
    name = f"idle-{segments}"
    data.create_topic(places.admin_url, name, segments)
    options = {"serviceUrl": places.url, "topic": f"topic://public/default/{name}", "start": "earliest"}
    with started(places, name, options):
        time.sleep(SETTLE_S)
        start, before = time.perf_counter(), _cpu(broker_pid)
        time.sleep(IDLE_S)
        spent, after = time.perf_counter() - start, _cpu(broker_pid)
    cores = {"broker": 0.0, "python": 0.0, "jvm": 0.0}
    # Of processes that are still there: Spark ends idle workers of earlier queries, and what those took before is gone.
    for process, seconds in after.items():
        cores[process[0]] += (seconds - before.get(process, 0.0)) / spent
    return cores


def _cpu(broker_pid: int) -> dict[tuple[str, int], float]:
    """Seconds by process: the broker, which is no child of this process's Spark, and Spark's two kinds of them."""
    found = {("broker", broker_pid): usage.cpu_seconds(broker_pid)}
    brokers = set(usage.family(broker_pid))
    for pid in [one for one in usage.family(os.getpid())[1:] if one not in brokers]:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        part = "jvm" if "(java)" in text else "python"
        found[part, pid] = sum(int(ticks) for ticks in text.rsplit(")", 1)[1].split()[11:13]) / usage.HZ
    return found


@contextmanager
def started(places: Places, name: str, options: dict[str, str], every: str = "0 seconds") -> Iterator[Any]:
    """A query, with the default trigger unless `every` is given: it goes on as soon as there is anything."""
    frame = places.spark.readStream.format("anabranch").options(**options).load()
    checkpoint = str(places.root / f"checkpoint-{name}")
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = query.trigger(processingTime=every).start()
    try:
        yield query
    finally:
        query.stop()


def batches(query: Any) -> list[tuple[int, float]]:
    """Rows and seconds of those that had rows."""
    told = [one for one in query.recentProgress if one["numInputRows"]]
    return [(one["numInputRows"], one["durationMs"]["triggerExecution"] / 1000) for one in told]


def wait_for(query: Any, rows: int) -> None:
    end = time.monotonic() + WITHIN_S
    while sum(found for found, _ in batches(query)) < rows:
        if not query.isActive or time.monotonic() > end:
            raise RuntimeError(f"{rows} rows did not come: {query.exception()}")
        time.sleep(0.1)
