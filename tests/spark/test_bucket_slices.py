"""Slices of a segment by entry buckets, read from files and through brokers: each row once, a key's in one slice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from anabranch import blocking
from anabranch.client import Encryption, merge_checkpoints
from anabranch.client.producing.batching import Compression
from anabranch.model import buckets
from anabranch.model.cut import Cut
from anabranch.model.keyhash import bucket_hash
from anabranch.model.segments import HashRange
from anabranch.spark.options.source import parse
from anabranch.spark.plan.task import ReadMode
from anabranch.spark.source import BatchReader
from anabranch.spark.task.read_slice import Task, read
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, open_entry
from harness.broker_process import BrokerProcess
from harness.peer import Peer
from spark.conftest import River, assert_in_order
from spark.conftest import read as read_frame
from spark.dry import DryQuery
from spark.test_direct_slices import by
from spark.test_slices import before, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)
BUCKETS = 4
MODES: tuple[ReadMode, ...] = ("direct", "broker", "auto")
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"logFileBytes": 1 << 20, "scalableTopicEntryBucketBudget": BUCKETS}
    with BrokerProcess(tmp_path_factory.mktemp("buckets"), settings) as process:
        yield process


@pytest.fixture
def river(broker: BrokerProcess) -> Iterator[River]:
    made = River(broker, f"buckets-{next(_numbers)}")
    yield made
    made.close()


def sliced(mode: ReadMode, river: River, count: int = BUCKETS, **more: Any) -> list[list[dict[str, Any]]]:
    """The rows of each of so many even slices."""
    task = replace(by(mode, river), **more)
    return [rows(read(of(task, span))) for span in buckets.ranges(buckets.even(count))]


def of(task: Task, span: HashRange) -> Task:
    return replace(task, slice=replace(task.slice, hashes=span))


def place(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row["position"].values())


def assert_each_once(parts: list[list[dict[str, Any]]], whole: list[dict[str, Any]]) -> None:
    """The parts have the rows of the whole, in order, and no key is in two of them."""
    assert sorted((row for part in parts for row in part), key=place) == whole
    assert all(part == sorted(part, key=place) for part in parts)
    keys = [{row["key"] for row in part} - {None} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_slices_of_stamped_entries_have_each_row_once_by_either_way(river: River) -> None:
    with blocking.connect(river.broker.url) as client:
        for packing, batching in itertools.product(COMPRESSIONS, (True, False)):
            with client.producer(river.topic, compression=packing, batching=batching) as producer:
                for number in range(60):
                    producer.post(b"%d" % number * 9, key=f"key-{number % 29}" if number % 3 else None)
    whole = rows(read(by("direct", river)))
    assert len(whole) == 360
    for mode, count in itertools.product(MODES, (1, 2, 3, 4, 7)):
        parts = sliced(mode, river, count)
        assert_each_once(parts, whole)
    assert all(sliced("direct", river))


def test_rows_of_a_slice_are_those_whose_keys_hash_is_in_it(river: River) -> None:
    river.publish(200, keys=50)
    for span, part in zip(buckets.ranges(buckets.even(BUCKETS)), sliced("direct", river), strict=True):
        assert part
        assert all(bucket_hash(row["key"]) in span for row in part)


def test_a_producers_rows_without_a_key_are_in_one_slice_in_order(river: River) -> None:
    with blocking.connect(river.broker.url) as client, client.producer(river.topic) as producer:
        for number in range(50):
            producer.post(b"%d" % number)
            if not number % 10:
                producer.flush()
    for mode in MODES:
        (only,) = [part for part in sliced(mode, river) if part]
        assert [int(row["value"]) for row in only] == list(range(50))


def test_entries_without_a_stamp_or_across_slices_are_divided_by_their_keys(river: River) -> None:
    """As older clients write them, and others with buckets of their own."""
    topic = f"segment://public/default/{river.topic.rpartition('/')[2]}/0000-ffff-0"
    keys = ["a", "b", "c", None, "d", "e", "f", "g"]
    spans: list[tuple[int, int] | None] = [None, (0, 0xFFFF), (9, 4), None]
    peer = Peer(river.broker.port_for(topic))
    peer.connect()
    peer.produce_to(topic)
    for number, span in enumerate(spans):
        head = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
        singles = []
        for index, key in enumerate(keys):
            single = (
                pb.SingleMessageMetadata() if key is None else pb.SingleMessageMetadata(partition_key=key)
            )
            singles.append((single, b"%d.%d" % (number, index)))
        metadata, payload = open_entry(build_batch(head, singles))
        stamp: dict[str, Any] = {} if span is None else {"entry_hash_min": span[0], "entry_hash_max": span[1]}
        peer.send_message(
            bytes(payload),
            sequence_id=number,
            num_messages_in_batch=metadata.num_messages_in_batch,
            **stamp,
        )
        peer.receive_kind(pb.BaseCommand.SEND_RECEIPT)
    river.publish(40)
    peer.socket.close()
    whole = rows(read(by("direct", river)))
    assert len(whole) == len(spans) * len(keys) + 40
    for mode, count in itertools.product(MODES, (2, 3, 4)):
        assert_each_once(sliced(mode, river, count), whole)


def test_a_message_in_chunks_is_in_the_slice_of_its_key(river: River) -> None:
    large = bytes(6 << 20)
    river.publish(20)
    with (
        blocking.connect(river.broker.url) as client,
        client.producer(river.topic, chunking=True, batching=False) as producer,
    ):
        for number in range(3):
            producer.send(large, key=f"large-{number}")
    river.publish(20)
    whole = rows(read(by("auto", river)))
    assert len(whole) == 43
    for mode in ("auto", "broker"):
        assert_each_once(sliced(mode, river), whole)
    # A slice without chunks needs no client.
    spans = buckets.ranges(buckets.even(BUCKETS))
    hashes = {bucket_hash(f"large-{number}".encode()) for number in range(3)}
    (free, *_) = [span for span in spans if not any(one in span for one in hashes)]
    assert rows(read(of(by("direct", river), free)))


def test_encrypted_messages_are_in_the_slices_that_their_stamps_tell(river: River, tmp_path: Any) -> None:
    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pem = tmp_path / "k.pem"
    pem.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    keys = Encryption({"k": public.decode()})
    with (
        blocking.connect(river.broker.url) as client,
        client.producer(river.topic, encryption=keys) as producer,
    ):
        for number in range(40):
            producer.post(b"%d" % number, key=f"key-{number % 7}")
    opens: dict[str, Any] = {"decryption_keys": (("k", str(pem)),)}
    whole = rows(read(replace(by("auto", river), **opens)))
    assert [int(row["value"]) for row in whole] == list(range(40))
    for mode in ("auto", "broker"):
        parts = sliced(mode, river, **opens)
        assert_each_once(parts, whole)
        assert sum(map(bool, parts)) > 1


def test_a_slice_ends_though_nothing_of_it_comes_for_long(river: River) -> None:
    """Through a broker, which does not send what others read."""
    with blocking.connect(river.broker.url) as client, client.producer(river.topic) as producer:
        for number in range(300):
            producer.post(b"%d" % number, key="k")
            producer.flush()
    spans = buckets.ranges(buckets.even(BUCKETS))
    mine = [span for span in spans if bucket_hash(b"k") in span]
    for span in spans:
        expected = 300 if [span] == mine else 0
        assert len(rows(read(of(by("broker", river), span)))) == expected


# -- queries


def test_a_stream_in_key_order_has_as_many_tasks_as_asked_for_and_the_same_offsets(river: River) -> None:
    """Restarted with other numbers of tasks at each batch; the topic splits meanwhile."""
    chance = random.Random(20)
    options = river.options(start="earliest", maxRowsPerTrigger=70)
    cut, whole = DryQuery(**options, minPartitions=BUCKETS), DryQuery(**options)
    found: list[tuple[str, int]] = []
    sizes = set()
    for turn in range(8):
        if turn < 5:
            river.publish(60)
        if turn == 3:
            river.split(0)
        cut.restart(minPartitions=chance.randint(1, 9))
        start = cut.offset
        rows, expected = cut.trigger(), whole.trigger()
        assert (rows is None) == (expected is None)
        if rows is None or expected is None:
            continue
        assert cut.log[-1] == whole.log[-1]
        assert sorted(map(place, rows)) == sorted(map(place, expected))
        tasks = [cut.read([task]) for task in cut.tasks(start, cut.offset)]
        assert_each_once(tasks, sorted(rows, key=place))
        sizes.add(len(tasks))
        found += [(row["key"].decode(), int(row["value"])) for row in sorted(rows, key=place)]
    while (rows := cut.trigger()) is not None:
        found += [(row["key"].decode(), int(row["value"])) for row in sorted(rows, key=place)]
    assert_in_order(found, river.published)
    assert max(sizes) == BUCKETS
    cut.stop()
    whole.stop()


def test_a_batch_in_key_order_cuts_by_buckets_and_one_without_order_by_positions(river: River) -> None:
    river.publish(100)
    river.publish(100)
    options = river.options(minPartitions=3)
    for ordering, is_by_bucket in (("key", True), ("none", False)):
        reader = BatchReader(parse({**options, "ordering": ordering}, "batch"), None)
        tasks = [task.value for task in reader.partitions()]
        assert [len(task) for task in tasks] == [1, 1, 1]
        assert all((task.slice.hashes is not None) is is_by_bucket for (task,) in tasks)
        assert len({(task.slice.start, task.slice.end) for (task,) in tasks}) == (1 if is_by_bucket else 3)
        parts = [
            [row for batch in reader.read(task) for row in batch.to_pylist()] for task in reader.partitions()
        ]
        assert sorted(int(row["value"]) for part in parts for row in part) == list(range(200))


def test_a_segment_with_one_bucket_is_one_task_of_a_stream_and_cut_by_position_in_a_batch(
    river: River,
) -> None:
    river.broker.post(f"{river.path}/rebucket/0?buckets=1")
    river.publish(100)
    river.publish(100)
    options = river.options(minPartitions=3)
    tasks = BatchReader(parse(options, "batch"), None).partitions()
    assert len(tasks) == 3
    assert all(task.slice.hashes is None for one in tasks for task in one.value)
    query = DryQuery(**options, start="earliest")
    assert len(query.catch_up()) == 200
    tasks = query.tasks({"topics": {}, "version": 1}, query.offset)
    (one,) = [task for one in tasks for task in one.value if task.slice.segment == 1]
    assert one.slice.hashes is None
    query.stop()


def test_buckets_and_single_ones_together_make_as_many_tasks_as_asked_for(river: River) -> None:
    """One child has two buckets, the other one."""
    river.split(0)
    river.broker.post(f"{river.path}/rebucket/1?buckets=1")
    for _ in range(4):
        river.publish(100)
    for wanted in (3, 4, 6):
        reader = BatchReader(parse(river.options(minPartitions=wanted, ordering="key"), "batch"), None)
        tasks = reader.partitions()
        by_bucket = [task for one in tasks for task in one.value if task.slice.hashes is not None]
        assert len(tasks) >= wanted
        assert len(by_bucket) in (0, 2)
        parts = [[row for batch in reader.read(task) for row in batch.to_pylist()] for task in tasks]
        assert sorted(int(row["value"]) for part in parts for row in part) == list(range(400))


def test_each_key_is_in_one_task_of_a_session_and_its_rows_are_in_order(
    spark: SparkSession, river: River, tmp_path: Any
) -> None:
    """A batch, and a stream whose sink sees the rows of each task as they come."""
    for _ in range(3):
        river.publish(200)
    frame = read_frame(spark, river, minPartitions=BUCKETS, ordering="key")
    assert frame.rdd.getNumPartitions() == BUCKETS
    parts = frame.selectExpr("spark_partition_id() task", "cast(key as string) key", "position").collect()
    assert len(parts) == river.published
    assert len({(row.task, row.key) for row in parts}) == len({row.key for row in parts}) == 23
    assert {row.task for row in parts} == set(range(BUCKETS))
    river.broker.post(f"{river.path}/rebucket/0?buckets=2")
    river.publish(200)
    stream = spark.readStream.format("anabranch").options(
        **river.options(start="earliest", minPartitions=BUCKETS)
    )
    tasks = stream.load().selectExpr(
        "spark_partition_id() task", "cast(key as string) key", "cast(cast(value as string) as int) number"
    )
    found: list[list[Any]] = []
    query = (
        tasks.writeStream.foreachBatch(lambda batch, _: found.append(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert all(
        len({(row.task, row.key) for row in batch}) == len({row.key for row in batch}) for batch in found
    )
    assert max(len({row.task for row in batch}) for batch in found) == BUCKETS
    assert_in_order([(row.key, row.number) for batch in found for row in batch], river.published)


def test_a_groups_cut_is_where_a_query_starts(river: River) -> None:
    """Its two members have read different buckets to different positions."""
    for _ in range(4):
        river.publish(50)
    with blocking.connect(river.broker.url) as client:
        one, two = (
            client.checkpoint_consumer(river.topic, start="earliest", group="g", consumer_name=name)
            for name in ("one", "two")
        )
        # The first has had the whole segment until the second came.
        given = [two.receive(timeout_s=30) for _ in range(30)]
        wanted = [two.checkpoint(), one.checkpoint()]
        cut = merge_checkpoints(wanted)
        one.close()
        two.close()
    (reached,) = Cut.decode(cut).places
    assert len(reached.at) == BUCKETS
    done = {int(message.payload) for message in given}
    whole = rows(read(by("direct", river)))
    at = dict(zip(buckets.ranges(buckets.even(BUCKETS)), reached.at, strict=True))
    rest = [
        row for row in whole if before(row) >= next(a for s, a in at.items() if bucket_hash(row["key"]) in s)
    ]
    assert {int(row["value"]) for row in rest}.isdisjoint(done)
    assert len(rest) == river.published - len(done)
    query = DryQuery(**river.options(start=cut.decode(), maxRowsPerTrigger=30))
    assert sorted(query.catch_up(), key=place) == rest
    (placed,) = query.offset["topics"][river.topic]["places"]
    assert len(placed["at"]) == 1
    query.stop()
    for wanted_tasks in (1, 4):
        reader = BatchReader(
            parse(river.options(start=cut.decode(), minPartitions=wanted_tasks, ordering="key"), "batch"),
            None,
        )
        parts = [
            [row for batch in reader.read(one) for row in batch.to_pylist()] for one in reader.partitions()
        ]
        assert sorted((row for part in parts for row in part), key=place) == rest
