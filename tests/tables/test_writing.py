"""Tables of a real broker's topics, written step by step in this process, and read as users read them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from anabranch import blocking
from anabranch.client import Encryption
from anabranch.client.schema.schemas import JsonSchema
from anabranch.client.transport.pool import Connections
from anabranch.model.cut import Cut
from anabranch.spark.driver.latest import Following
from anabranch.table_writer.feed import TableFeed
from anabranch.table_writer.settings import WriterSettings
from anabranch.table_writer.topic_writer import TopicWriter
from anabranch.tables.core.place import parse_place
from anabranch.tables.core.schema import POSITION
from anabranch.tables.snapshot import TableSnapshot, open_snapshot
from anabranch.tables.store import FolderTableStore
from anabranch.tables.table import TableOwner, TopicTable
from anabranch.tables.upkeep import Tended, merge_files
from anabranch.tables.verify import verify_table
from harness import simple_client
from harness.broker_process import BrokerProcess
from spark.conftest import River

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tables"), {"logFileBytes": 1 << 20}) as process:
        yield process


@pytest.fixture
def river(broker: BrokerProcess) -> Iterator[River]:
    made = River(broker, f"table-{next(_numbers)}")
    yield made
    made.close()


def settings_of(river: River, folder: Path) -> WriterSettings:
    return WriterSettings(river.broker.url, parse_place(str(folder)))


@asynccontextmanager
async def writing(settings: WriterSettings, topic: str, **options: Any) -> Any:
    connections, following = Connections(settings.service_url), Following()
    writer = TopicWriter(settings, TableFeed(settings, connections, following, topic), **options)
    try:
        await writer.open()
        yield writer
    finally:
        await writer.close()
        await following.close()
        await connections.close()


async def write_all(settings: WriterSettings, topic: str, **options: Any) -> TableSnapshot:
    """Steps until nothing is left; the table then."""
    async with writing(settings, topic, **options) as writer:
        while (await writer.step()).outcome != "nothing":
            pass
        found = open_snapshot(writer.table.url)
        assert found is not None
        return found


def rows_of(seen: TableSnapshot) -> list[dict[str, Any]]:
    """All rows, in the order of each key."""
    if not seen.files:
        return []
    columns = pa.schema([field for field in seen.schema if field.name != "day"])
    table = ds.dataset(seen.file_uris, format="parquet", schema=columns).to_table()
    found: list[dict[str, Any]] = table.sort_by([(name, "ascending") for name in POSITION]).to_pylist()
    return found


def values_of(seen: TableSnapshot) -> list[int]:
    return sorted(int(row["value"]) for row in rows_of(seen))


async def test_a_table_has_each_row_of_its_topic_once(river: River, tmp_path: Path) -> None:
    river.publish(500)
    river.split(0)
    river.publish(500)
    settings = settings_of(river, tmp_path)
    seen = await write_all(settings, river.topic)
    rows = rows_of(seen)
    assert values_of(seen) == list(range(1000))
    by_key: dict[bytes, list[int]] = {}
    for row in rows:
        assert dict(row["properties"]) == {"n": row["value"].decode()}
        assert row["topic"] == river.topic
        by_key.setdefault(row["key"], []).append(int(row["value"]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert Cut.decode(seen.cut).topic_id == seen.topic_id
    river.publish(10)
    later = await write_all(settings, river.topic)
    assert values_of(later) == list(range(1010))
    assert later.version == seen.version + 1


def in_bytes(settings: WriterSettings, size: int) -> WriterSettings:
    return replace(settings, commit_bytes=size)


async def test_a_commit_ends_at_its_limit_and_the_next_goes_on_there(river: River, tmp_path: Path) -> None:
    river.publish(4000)
    river.split(0)
    river.publish(4000)
    seen = await write_all(in_bytes(settings_of(river, tmp_path), 40_000), river.topic)
    assert values_of(seen) == list(range(8000))
    assert seen.version > 1
    assert verify_table(seen).faults == []


async def test_of_two_writers_one_commits_and_the_other_begins_again(river: River, tmp_path: Path) -> None:
    river.publish(300)
    settings = settings_of(river, tmp_path)
    async with writing(settings, river.topic) as one, writing(settings, river.topic) as other:
        outcomes = await asyncio.gather(one.step(), other.step())
        assert sorted(step.outcome for step in outcomes) == ["committed", "overtaken"]
        river.publish(300)
        outcomes = await asyncio.gather(one.step(), other.step())
        assert "committed" in {step.outcome for step in outcomes}
        await asyncio.gather(one.step(), other.step())
        seen = open_snapshot(one.table.url)
    assert seen is not None
    assert values_of(seen) == list(range(600))
    stored = {path for path in FolderTableStore(seen.url).paths() if path.endswith(".parquet")}
    assert stored - {file.path for file in seen.files} == set()


class Died(Exception):
    """Stands for the end of the process: nothing behind it runs."""


@pytest.mark.parametrize("point", ["read", "written", "put", "committed"])
async def test_a_writer_that_dies_between_any_two_effects_loses_and_doubles_nothing(
    river: River, tmp_path: Path, point: str
) -> None:
    def check(now: str) -> None:
        if now == point:
            raise Died

    river.publish(200)
    settings = settings_of(river, tmp_path)
    async with writing(settings, river.topic, check=check) as writer:
        with pytest.raises(Died):
            await writer.step()
    river.publish(100)
    seen = await write_all(settings, river.topic)
    assert values_of(seen) == list(range(300))
    table = TopicTable(seen.url, TableOwner(seen.topic, seen.topic_id))
    table.refresh()
    assert len(table.sweep()) == (1 if point == "put" else 0)
    after = open_snapshot(seen.url)
    assert after is not None
    assert values_of(after) == list(range(300))


async def test_hidden_writes_are_in_a_table_once_they_are_revealed_and_losers_never(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    name = f"hidden-{next(_numbers)}"
    topic, won, lost = f"persistent://public/default/{name}", uuid4().hex, uuid4().hex
    settings = WriterSettings(broker.url, parse_place(str(tmp_path)))
    async with simple_client.Client(broker.url) as client:
        for attempt, payload in ((None, b"1"), (won, b"2"), (lost, b"3"), (None, b"4")):
            hidden = None if attempt is None else simple_client.Hidden(name, 7, attempt)
            producer = await client.producer(topic, hidden=hidden)
            await producer.send(payload)
            await producer.close()
    assert values_of(await write_all(settings, topic)) == [1]
    broker.put(f"anabranch/writes/{name}/7", {"winners": [won], "topics": [topic]})
    broker.post(f"anabranch/reveal/persistent/public/default/{name}?write={name}&batch=7")
    assert values_of(await write_all(settings, topic)) == [1, 2, 4]


async def test_merging_keeps_every_row_and_the_cut(river: River, tmp_path: Path) -> None:
    settings = settings_of(river, tmp_path)
    for turn in range(4):
        river.publish(100)
        if turn == 1:
            river.split(0)
        before = await write_all(settings, river.topic)
    rows = rows_of(before)
    table = TopicTable(before.url, TableOwner(before.topic, before.topic_id))
    table.refresh()
    now_ms = table.known_files()[0].written_ms
    assert merge_files(table, settings.rules, now_ms) == Tended()
    done = merge_files(table, settings.rules, now_ms, is_forced=True)
    assert (done.merged, done.into) == (len(before.files), 1)
    after = open_snapshot(before.url)
    assert after is not None
    assert after.cut == before.cut
    assert rows_of(after) == rows
    assert verify_table(after).faults == []
    assert open_snapshot(before.url, version=before.version) == before
    assert rows_of(before) == rows
    assert table.sweep() == []
    removed = table.vacuum(0)
    assert sorted(removed) == sorted(file.path for file in before.files)
    river.publish(50)
    last = await write_all(settings, river.topic)
    assert values_of(last) == list(range(450))


async def test_a_topic_made_again_has_another_table(river: River, tmp_path: Path) -> None:
    settings = settings_of(river, tmp_path)
    river.publish(20)
    first = await write_all(settings, river.topic)
    river.delete()
    made = River(river.broker, river.topic.rpartition("/")[2])
    made.publish(5)
    second = await write_all(settings, river.topic)
    made.close()
    assert first.url != second.url
    assert (len(values_of(first)), len(values_of(second))) == (20, 5)


def test_duckdb_reads_a_table_by_its_files(river: River, tmp_path: Path) -> None:
    river.publish(100)
    seen = asyncio.run(write_all(settings_of(river, tmp_path), river.topic))
    (found,) = duckdb.sql(
        f"select count(*), sum(cast(decode(value) as bigint)), min(day) "
        f"from read_parquet({seen.file_uris!r}, hive_partitioning=true)"
    ).fetchall()
    assert found[:2] == (100, sum(range(100)))
    assert found[2] == seen.files[0].day


@dataclass
class First:
    a: int | None = None


@dataclass
class Second:
    a: int | None = None
    b: str | None = None


@dataclass
class Third:
    a: str | None = None
    b: str | None = None


async def test_a_decoded_table_goes_on_through_changes_of_the_schema(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    river = River(broker, f"decoded-{next(_numbers)}")
    settings = settings_of(river, tmp_path)
    broker.put("namespaces/public/default/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")

    def send(*values: Any) -> None:
        with blocking.connect(broker.url) as client:
            producer = client.producer(river.topic, schema=JsonSchema(type(values[0])))
            for value in values:
                producer.post(value)
            producer.flush()

    await asyncio.to_thread(send, First(1), First(2))
    await write_all(settings, river.topic, mode="decoded")
    await asyncio.to_thread(send, Second(3, "x"))
    await asyncio.to_thread(send, Third("text", "y"))
    seen = await write_all(settings, river.topic, mode="decoded")
    river.publish(1)  # Without a schema.
    last = await write_all(settings, river.topic, mode="decoded")
    river.close()
    rows = [(row["a"], row["b"], row["undecoded"] is None) for row in rows_of(seen)]
    assert rows == [(1, None, True), (2, None, True), (3, "x", True), (None, "y", False)]
    assert last.rows == 5
    assert verify_table(last).faults == []


async def test_encrypted_messages_keep_their_bytes_and_the_others_are_rows_as_ever(
    river: River, tmp_path: Path
) -> None:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    river.publish(5)

    def send() -> None:
        encryption = Encryption({"k": pem.decode()})
        with blocking.connect(river.broker.url) as client:
            producer = client.producer(river.topic, encryption=encryption, batching=False)
            for number in range(3):
                producer.post(b"secret", key=f"key-{number}")
            producer.flush()

    await asyncio.to_thread(send)
    river.publish(5)
    seen = await write_all(settings_of(river, tmp_path / "tables"), river.topic)
    rows = rows_of(seen)
    assert [row["value"] is None for row in rows] == [False] * 5 + [True] * 3 + [False] * 5
    sealed = rows[5:8]
    assert [row["key"] for row in sealed] == [b"key-0", b"key-1", b"key-2"]
    assert all(row["undecoded"] and b"secret" not in row["undecoded"] for row in sealed)
    assert verify_table(seen).faults == []
