"""Entries read from a running broker's files are the ones that its consumers get, whatever the broker is doing."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from anabranch.client.reading.direct import entries, plan_entries, record_batches
from anabranch.client.reading.failures import PlanOutdatedError
from anabranch.client.reading.plans import Planner, PlanRefusedError
from anabranch.columns import SCHEMA
from anabranch.model.position import Position
from anabranch.storage.core.read_plan import TopicPlan
from harness.broker_process import BrokerProcess, until
from interop.receiving import receive

pytestmark = pytest.mark.interop

Connect = Callable[..., pulsar.Client]
Row = tuple[int, int, int, bytes, str, dict[str, str]]

KB = 1 << 10
COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def named(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def planner_of(broker: BrokerProcess, topic: str) -> Planner:
    name = topic if "://" in topic else named(topic)
    return Planner(f"http://127.0.0.1:{broker.http_port}", name)


def table_of(planner: Planner, start: Position | None, end: Position | None) -> Any:
    return pa.Table.from_batches([piece.batch for piece in record_batches(planner, start, end)], SCHEMA)


def read(broker: BrokerProcess, topic: str) -> list[Row]:
    """All that is confirmed, from the files."""
    return rows_of(table_of(planner_of(broker, topic), None, None))


def rows_of(table: Any) -> list[Row]:
    return [
        (
            one["ledger_id"],
            one["entry_id"],
            one["batch_index"],
            one["value"],
            (one["key"] or b"").decode(),
            dict(one["properties"]),
        )
        for one in table.to_pylist()
    ]


def received(consumer: pulsar.Consumer, count: int) -> list[Row]:
    return [
        (
            message.message_id().ledger_id(),
            message.message_id().entry_id(),
            message.message_id().batch_index(),
            message.data(),
            message.partition_key(),
            message.properties(),
        )
        for message in receive(consumer, count)
    ]


def publish(producer: pulsar.Producer, count: int, size: int = 100, tag: str = "") -> None:
    for number in range(count):
        text = f"{tag}{number} ".encode()
        producer.send_async(
            text + b"x" * size,
            lambda *_: None,
            partition_key=f"key-{number % 7}",
            properties={"number": str(number)} if number % 3 else {},
        )
    producer.flush()


def test_every_kind_of_entry_is_read_as_consumers_get_it(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    count = 0
    for name, compression in COMPRESSIONS.items():
        for batching in (True, False):
            producer = client.create_producer(
                topic, compression_type=compression, batching_enabled=batching, batching_max_messages=20
            )
            publish(producer, 50, tag=f"{name} {batching} ")
            producer.close()
            count += 50
    assert read(broker, topic) == received(consumer, count)


def test_a_consumer_and_a_direct_reader_agree_on_what_lies_between_two_positions(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, 60)
    rows = received(consumer, 60)
    start, end = rows[17][:2], rows[44][:2]
    assert rows_of(table_of(planner_of(broker, topic), start, end)) == rows[17:44]


def test_large_entries_are_read_whole(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for size in (10, 5_000_000, 100, 4_900_000):
        producer.send(bytes(size))
    assert read(broker, topic) == received(consumer, 4)


def test_the_page_about_direct_reads_does_what_it_says(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "direct-reads.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    with BrokerProcess(tmp_path) as broker:
        publish(connect(broker).create_producer(named("orders")), 30)
        exec(program.replace("http://localhost:8080", f"http://127.0.0.1:{broker.http_port}"), {})
    assert sum(int(line.split()[0]) for line in capsys.readouterr().out.splitlines()) == 30


def test_nothing_is_told_where_direct_reads_are_turned_off(tmp_path: Path, connect: Connect) -> None:
    with BrokerProcess(tmp_path, {"logDirectReadsAllowed": False}) as broker:
        connect(broker).create_producer("t").send(b"1")
        with pytest.raises(PlanRefusedError, match="logDirectReadsAllowed"):
            planner_of(broker, "t")()


# -- sealed segments


def test_a_sealed_segment_and_its_children_are_read_to_their_ends(broker: BrokerProcess, topic: str) -> None:
    import asyncio

    import anabranch

    path = f"scalable/public/default/{topic}"
    broker.put(f"{path}?numInitialSegments=1")

    async def send(first: int, count: int) -> None:
        async with (
            anabranch.connect(broker.url) as client,
            client.producer(f"topic://public/default/{topic}") as producer,
        ):
            for number in range(first, first + count):
                await producer.post(b"%d" % number, key=f"key-{number}")
            await producer.flush()

    asyncio.run(send(0, 200))
    broker.post(f"{path}/split/0")
    asyncio.run(send(200, 200))
    parent, *children = [
        [int(row[3]) for row in read(broker, f"segment://public/default/{topic}/{segment}")]
        for segment in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")
    ]
    assert sorted(parent) == list(range(200))
    assert all(children)
    assert sorted(number for child in children for number in child) == list(range(200, 400))


# -- while things happen to the broker


def test_what_was_read_directly_is_never_taken_back(tmp_path: Path, connect: Connect) -> None:
    """Entries that are not confirmed are invisible: whatever was seen is there after any crash."""
    with BrokerProcess(tmp_path, {"logFileBytes": 1024 * KB}) as broker:
        connect(broker).subscribe("t", "keeps")
        reader = Watcher(planner_of(broker, "t"))
        for turn in range(3):
            producer = connect(broker).create_producer("t", batching_enabled=turn % 2 == 0)
            is_over = threading.Event()
            writing = threading.Thread(target=write_until, args=(producer, is_over))
            writing.start()
            try:
                # Some looks at a log that grows, of which the last is as close to the crash as can be.
                reader.growths = 0
                until(lambda: reader.look() >= 10, within_s=30, every_s=0.001)
            finally:
                broker.kill()
                is_over.set()
                writing.join()
            broker.start()
            reader.look()


class Watcher:
    """Reads all there is, again and again, and sees that nothing changes but the end."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._seen: list[tuple[Position, bytes]] = []
        self.growths = 0

    def look(self) -> int:
        now = [(at, bytes(data)) for at, _, data in entries(self._planner, None, None)]
        assert now[: len(self._seen)] == self._seen
        self.growths += len(now) > len(self._seen)
        self._seen = now
        return self.growths


def write_until(producer: pulsar.Producer, is_over: threading.Event) -> None:
    room = threading.Semaphore(500)
    number = 0
    while not is_over.is_set():
        if not room.acquire(timeout=0.1):
            continue
        producer.send_async(b"%d" % number + bytes(number % 700), lambda *_: room.release())
        number += 1


def test_reading_goes_on_over_a_crash_of_the_broker(tmp_path: Path, connect: Connect) -> None:
    with BrokerProcess(tmp_path) as broker:
        client = connect(broker)
        consumer = client.subscribe("t", "keeps")
        for turn in range(20):
            # A producer each, so that there are several commits.
            producer = client.create_producer("t", batching_enabled=False)
            publish(producer, 10, tag=f"{turn}.")
            producer.close()
        expected = received(consumer, 200)
        planner = planner_of(broker, "t")
        known = planner()

        def small_plans(start: Position | None, end: Position | None) -> TopicPlan:
            return planner(start, end, bytes_max=2_000)

        reading = record_batches(small_plans, known.start, known.log_end)
        pieces = [next(reading)]
        broker.kill()
        starting = threading.Thread(target=broker.start)
        starting.start()
        pieces += reading
        starting.join()
        table = pa.Table.from_batches([piece.batch for piece in pieces])
        assert rows_of(table) == expected
        assert len(pieces) > 2


@pytest.fixture
def rewriting(tmp_path: Path, connect: Connect) -> Iterator[BrokerProcess]:
    """A broker that soon rewrites what is mostly dead; topics of public/kept stay whole."""
    settings = {
        "logFileBytes": 1024 * KB,
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "logLingerBytes": 0,
        "retentionCheckIntervalInSeconds": 1,
    }
    with BrokerProcess(tmp_path, settings) as broker:
        broker.put("namespaces/public/kept")
        broker.post(
            "namespaces/public/kept/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        )
        yield broker


def fill_with_dead(broker: BrokerProcess, connect: Connect, kept: str, rounds: int) -> None:
    """A little that is kept among much that is acknowledged at once, so that files become mostly dead."""
    client = connect(broker)
    # In the same log: each of several brokers has its own.
    names = (named(f"dead-{number}") for number in itertools.count())
    name = next(name for name in names if broker.port_for(name) == broker.port_for(kept))
    consumer = client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    dead = client.create_producer(name, batching_enabled=False)
    alive = client.create_producer(kept, batching_enabled=True, batching_max_messages=10)
    for number in range(rounds):
        publish(alive, 20, tag=f"{number}.")
        publish(dead, 40, size=8 * KB)
        receive(consumer, 40)
    consumer.close()


def is_rewritten(plan: TopicPlan) -> bool:
    return any(name.endswith(".led") for name in plan.files)


def test_a_log_that_is_rewritten_is_read_before_during_and_after(
    rewriting: BrokerProcess, connect: Connect
) -> None:
    kept = "persistent://public/kept/t"
    planner = planner_of(rewriting, kept)
    # Less than a file: one that is still written is not rewritten, however long this takes.
    fill_with_dead(rewriting, connect, kept, 2)
    old = planner()
    assert not is_rewritten(old)
    expected = [(at, bytes(data)) for at, _, data in plan_entries(old)]
    assert len(expected) >= 4

    def is_done() -> bool:
        """Reads all the while."""
        plan = planner(old.start, old.end)
        assert [(at, bytes(data)) for at, _, data in entries(planner, old.start, old.end)] == expected
        return is_rewritten(plan)

    filling = threading.Thread(target=fill_with_dead, args=(rewriting, connect, kept, 40))
    filling.start()
    try:
        until(is_done, within_s=30)
    finally:
        filling.join()
    # The old plan has not expired: its files are still there, although nothing else wants them.
    assert [(at, bytes(data)) for at, _, data in plan_entries(old)] == expected
    consumer = connect(rewriting).subscribe(
        kept, "late", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=100
    )
    assert read(rewriting, kept)[: 20 * 20] == received(consumer, 20 * 20)


def test_a_plan_that_outlives_its_broker_is_made_again(rewriting: BrokerProcess, connect: Connect) -> None:
    kept = "persistent://public/kept/t"
    planner = planner_of(rewriting, kept)
    fill_with_dead(rewriting, connect, kept, 20)
    old = planner()
    expected = [bytes(data) for _, _, data in plan_entries(old)]
    fill_with_dead(rewriting, connect, kept, 20)
    until(lambda: is_rewritten(planner(old.start, old.end)), within_s=30)
    # The new process knows nothing of the old plan, and unlinks what has been rewritten.
    rewriting.restart()
    fill_with_dead(rewriting, connect, kept, 10)
    until(lambda: not all((Path(old.root) / name).exists() for name in old.files), within_s=30)
    with pytest.raises(PlanOutdatedError):
        list(plan_entries(old))
    plans = iter([old])

    def stale_first(start: Position | None, end: Position | None) -> TopicPlan:
        return next(plans, None) or planner(start, end)

    assert [bytes(data) for _, _, data in entries(stale_first, old.start, old.end)] == expected
