"""Slices read from the log's files have the rows that the broker gives. No session: only a broker."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from anabranch import blocking
from anabranch.client import Encryption
from anabranch.client.errors import CryptoFailed, DataLost
from anabranch.client.producing.batching import Compression
from anabranch.model.cut import MessagePosition
from anabranch.spark.columns.rows import COLUMNS, for_spark
from anabranch.spark.plan.task import ReadMode
from anabranch.spark.task import read_broker as broker_reader
from anabranch.spark.task.read_files import DirectReader
from anabranch.spark.task.read_slice import FIRST_STRETCH, MessageTooLarge, NotDirect, Task, read
from harness.broker_process import BrokerProcess, until
from spark.conftest import River, assert_in_order
from spark.test_slices import after, before, rows, task

_numbers = itertools.count(1)
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zlib", "zstd", "snappy")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    # Small files: slices lie in several, some with an index and some without.
    settings = {"logFileBytes": 1 << 20}
    with BrokerProcess(tmp_path_factory.mktemp("direct"), settings) as process:
        yield process


@pytest.fixture
def river(broker: BrokerProcess) -> Iterator[River]:
    made = River(broker, f"direct-{next(_numbers)}")
    yield made
    made.close()


def by(
    mode: ReadMode, river: River, start: MessagePosition | None = None, end: MessagePosition | None = None
) -> Task:
    admin_url = f"http://127.0.0.1:{river.broker.http_port}"
    return replace(task(river, start, end), read_mode=mode, admin_url=admin_url)


def assert_same(
    river: River, start: MessagePosition | None, end: MessagePosition | None
) -> list[dict[str, Any]]:
    direct = rows(read(by("direct", river, start, end)))
    assert direct == rows(read(by("broker", river, start, end)))
    return direct


def test_every_kind_of_message_is_the_same_by_either_way(river: River) -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with blocking.connect(river.broker.url) as client:
        for packing, batching in itertools.product(COMPRESSIONS, (True, False)):
            producer = client.producer(river.topic, compression=packing, batching=batching)
            for number in range(30):
                producer.post(
                    b"%d " % number * 40,
                    key=f"key-{number % 5}" if number % 3 else None,
                    properties={"n": str(number), "of": packing} if number % 4 else {},
                    event_time=noon if number % 2 else None,
                )
            producer.flush()
            producer.close()
    river.split(0)
    whole = assert_same(river, None, None)
    assert len(whole) == 300
    assert {row["key"] is None for row in whole} == {True, False}
    assert {row["event_time"] is None for row in whole} == {True, False}


def test_a_message_that_unpacks_to_more_than_brokers_store_is_read_up_to_the_querys_limit(
    river: River,
) -> None:
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, compression="zstd", batching=False)
        for size in (10, 20 << 20, 11):
            producer.send(bytes(size), key="k")
    assert [len(row["value"]) for row in assert_same(river, None, None)] == [10, 20 << 20, 11]
    modes: tuple[ReadMode, ...] = ("direct", "broker", "auto")
    for mode in modes:
        with pytest.raises(MessageTooLarge, match=r"20971520 bytes.* maxMessageBytes allows more"):
            rows(read(replace(by(mode, river), message_bytes_max=6 << 20)))


def test_times_that_are_none_to_sql_are_null_by_either_way(river: River) -> None:
    """Of the last two, one is in nanoseconds and one in microseconds, where milliseconds are meant."""
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    given = [1_777_000_000_000, 253_402_300_799_999, 1_777_000_000_000_000_000, 1_777_000_000_000_000]
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic)
        for event_time in given:
            producer.post(b"", key="k", event_time=event_time)
        producer.flush()
    times = [row["event_time"] for row in assert_same(river, None, None)]
    assert times == [datetime.fromtimestamp(1_777_000_000, UTC), last, None, None]


def test_slices_from_files_may_be_cut_at_any_message(river: River) -> None:
    for _ in range(3):
        river.publish(40)
    whole = rows(read(by("direct", river)))
    assert_in_order([(row["key"].decode(), int(row["value"])) for row in whole], 120)
    for n in (0, 1, 39, 40, 41, 77, 119):
        at = before(whole[n])
        assert assert_same(river, None, at) == whole[:n]
        assert assert_same(river, at, after(whole[-1])) == whole[n:]
        assert assert_same(river, at, after(whole[n])) == whole[n : n + 1]


def test_an_end_that_nothing_was_written_to_yet_is_the_end_of_all(river: River) -> None:
    river.publish(10)
    ledger, entry, _ = before(rows(read(by("direct", river)))[-1])
    end = (ledger, entry + 5, 0)
    assert len(assert_same(river, None, end)) == 10
    assert assert_same(river, (ledger, entry + 1, 0), end) == []


def test_only_wanted_columns_come_and_in_the_order_asked_for(river: River) -> None:
    river.publish(10)
    whole = rows(read(by("direct", river)))
    for names in (("value",), ("position", "key"), tuple(reversed(COLUMNS.names))):
        some = [row for batch in read(replace(by("auto", river), columns=names)) for row in batch.to_pylist()]
        assert some == [{name: row[name] for name in names} for row in whole]


def test_what_needs_a_client_is_read_by_one_and_the_rest_from_files(river: River) -> None:
    large = bytes(6 << 20)
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, chunking=True, batching=False)
        for turn in range(3):
            for number in range(2 * FIRST_STRETCH):
                producer.post(b"%d" % number)
            producer.send(large, key=f"large-{turn}")
        producer.flush()
        producer.close()
    river.split(0)
    whole = rows(read(by("broker", river)))
    assert len(whole) == 3 * (2 * FIRST_STRETCH + 1)
    assert rows(read(by("auto", river))) == whole
    at = [before(row) for row in whole if len(row["value"]) == len(large)]
    for ledger, last, _ in at:
        for entry in range(last - 2, last + 2):
            cut = (ledger, entry, 0)
            assert (
                rows(read(by("auto", river, None, cut))) + rows(read(by("auto", river, cut, None))) == whole
            )
    with pytest.raises(NotDirect, match=r"readMode=direct: .* is a piece of a message.*readMode=auto"):
        rows(read(by("direct", river)))


def test_encrypted_messages_fail_by_either_way_and_all_before_them_comes(river: River) -> None:
    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    river.publish(20)
    with blocking.connect(river.broker.url) as client:
        producer = client.producer(river.topic, encryption=Encryption({"k": public.decode()}))
        producer.send(b"secret")
        producer.close()
    for mode in ("auto", "broker"):
        given: list[dict[str, Any]] = []
        batches = (row for batch in read(by(mode, river)) for row in batch.to_pylist())
        with pytest.raises(CryptoFailed, match="encrypted for k"):
            given.extend(batches)
        assert sorted(int(row["value"]) for row in given) == list(range(20))


def test_what_a_refused_or_unreachable_plan_leaves_the_broker_gives(river: River) -> None:
    river.publish(30)
    whole = rows(read(by("broker", river)))
    nowhere = replace(by("auto", river), admin_url="http://127.0.0.1:9", timeout_s=1.0)
    assert rows(read(nowhere)) == whole
    with pytest.raises(NotDirect, match=r"no read plan of segment://.*readMode=auto"):
        rows(read(replace(nowhere, read_mode="direct")))
    with pytest.raises(NotDirect, match="set adminUrl"):
        rows(read(replace(nowhere, read_mode="direct", admin_url="")))


def test_a_reader_that_may_not_read_files_reads_through_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, {"logDirectReadsAllowed": False}) as process:
        river = River(process, "forbidden")
        river.publish(30)
        assert len(rows(read(by("auto", river)))) == 30
        with pytest.raises(NotDirect, match=r"direct reads are turned off.*readMode=auto"):
            rows(read(by("direct", river)))
        river.close()


def test_the_broker_goes_on_from_the_position_that_files_were_left_at(river: River) -> None:
    for _ in range(4):
        river.publish(25)
    whole = rows(read(by("broker", river)))
    files = DirectReader(by("direct", river), before(whole[7]))
    first = next(files.batches())
    assert files.at is not None
    rest = by("broker", river, files.at, after(whole[-1]))
    taken = [*rows([for_spark(first, river.topic, 0)]), *rows(read(rest))]
    assert taken == whole[7:]


@pytest.mark.parametrize("mode", ["auto", "direct"])
def test_a_slice_whose_segment_is_gone_fails_or_is_empty_as_the_user_wants(
    river: River, mode: ReadMode
) -> None:
    river.publish(5)
    river.split(0)
    (one, *_) = rows(read(by("direct", river)))
    river.broker.rest("DELETE", f"{river.path}?force=true")
    gone = by(mode, river, before(one), None)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        rows(read(gone))
    assert broker_reader.is_gone(gone)
    assert rows(read(replace(gone, fail_on_data_loss=False))) == []


def test_messages_that_were_trimmed_fail_the_slice_unless_the_user_goes_on(tmp_path: Path) -> None:
    settings = {
        "defaultRetentionTimeInMinutes": 0,
        "logLingerSeconds": 0,
        "logLingerBytes": 0,
        "retentionCheckIntervalInSeconds": 1,
    }
    with BrokerProcess(tmp_path, settings) as process:
        river = River(process, "trimmed")
        with blocking.connect(process.url) as client:
            reader = client.stream_consumer(river.topic, subscription="s", start="earliest")
            river.publish(40)
            whole = rows(read(by("direct", river)))
            for _ in range(40):
                message = reader.receive(timeout_s=10)
            reader.ack_cumulative(message)
            start = by("direct", river, before(whole[0]), None)
            until(lambda: is_lost(start), within_s=20)
            river.publish(40)
            for mode in ("direct", "auto", "broker"):
                late = by(mode, river, before(whole[0]), None)
                assert is_lost(late)
                found = rows(read(replace(late, fail_on_data_loss=False)))
                assert sorted(int(row["value"]) for row in found) == list(range(40, 80))
        river.close()


def is_lost(late: Task) -> bool:
    try:
        rows(read(late))
    except DataLost as error:
        return "failOnDataLoss=false" in str(error)
    return False
