"""`client.table`: history and tail as one answer, each row once, up to a cut that one can go on from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import anabranch
from anabranch import blocking
from anabranch.tables.core.names import NoTable
from harness.broker_process import BrokerProcess
from tables.by_hand import HandTable
from tables.topics import TabledTopic

duckdb = pytest.importorskip("duckdb")
Tabled = Callable[..., TabledTopic]


def values(table: Any) -> list[bytes]:
    return sorted(table.column("value").to_pylist(), key=int)


def read(topic: TabledTopic, **options: Any) -> Any:
    return topic.client.table(topic.topic, table_url=topic.table.url, **options)


def test_history_and_tail_are_the_topic(tabled: Tabled) -> None:
    topic = tabled(2)
    topic.publish(120)
    assert topic.commit() == 120
    topic.publish(80)
    seen = read(topic)
    assert values(seen.to_arrow()) == topic.numbers
    assert (seen.version, len(seen.files), seen.tail.num_rows) == (1, 1, 80)
    assert seen.to_arrow().schema.equals(seen.schema)
    frame = seen.to_pandas(columns=["key", "value"])
    assert len(frame) == 200
    assert list(frame.columns) == ["key", "value"]


def test_rows_say_the_same_whether_they_come_from_files_or_from_the_log(tabled: Tabled) -> None:
    topic = tabled(2)
    topic.publish(60)
    order = [(name, "ascending") for name in ("segment", "ledger", "entry", "index")]
    from_log = read(topic).to_arrow().sort_by(order)
    topic.commit()
    seen = read(topic)
    assert seen.tail.num_rows == 0
    assert seen.to_arrow().sort_by(order).equals(from_log)
    first = from_log.filter(pc.equal(pc.field("value"), b"0")).to_pylist()[0]
    assert (first["key"], first["topic"], first["properties"]) == (b"key-0", topic.topic, [("n", "0")])
    assert (first["schema_version"], first["undecoded"]) == (-1, None)
    assert 0 <= first["key_hash"] < 1 << 16
    assert from_log.filter(pc.equal(pc.field("value"), b"49")).to_pylist()[0]["key_hash"] is None


def test_each_row_once_through_splits_and_merges(tabled: Tabled) -> None:
    topic = tabled(1)
    topic.publish(40)
    topic.split(0)
    topic.publish(40)
    topic.commit()
    topic.publish(40)
    topic.split(1)
    assert values(read(topic).to_arrow()) == topic.numbers
    topic.publish(40)
    topic.merge(4, 2)
    topic.publish(40)
    assert values(read(topic).to_arrow()) == topic.numbers
    topic.commit()
    topic.publish(40)
    assert values(read(topic).to_arrow()) == topic.numbers


def test_keys_are_in_order_when_sorted_by_position(tabled: Tabled) -> None:
    topic = tabled(1)
    topic.publish(100)
    topic.commit()
    topic.split(0)
    topic.publish(100)
    rows = (
        read(topic)
        .to_arrow()
        .sort_by([(name, "ascending") for name in ("segment", "ledger", "entry", "index")])
    )
    by_key: dict[bytes, list[int]] = {}
    for row in rows.select(["key", "value"]).to_pylist():
        if row["key"] is not None:
            by_key.setdefault(row["key"], []).append(int(row["value"]))
    assert len(by_key) == 23
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_one_goes_on_from_its_cut(tabled: Tabled) -> None:
    topic = tabled(2)
    topic.publish(30)
    topic.commit()
    topic.publish(30)
    seen = read(topic)
    topic.publish(30)
    with topic.client.checkpoint_consumer(topic.topic, start=seen.cut) as consumer:
        more = sorted(int(consumer.receive(10).value) for _ in range(30))
    assert more == list(range(60, 90))


def test_duckdb_reads_both_as_one_view(tabled: Tabled) -> None:
    topic = tabled(2)
    topic.publish(100)
    topic.commit()
    topic.publish(50)
    connection = duckdb.connect()
    view = read(topic).duckdb(connection, "clicks")
    assert view.aggregate("count(*)").fetchall() == [(150,)]
    found = connection.execute(
        "select count(*), count(distinct value), max(cast(value::varchar as int)) from clicks"
    ).fetchone()
    assert found == (150, 150, 149)
    key = connection.execute(
        "select properties['n'] from clicks where key = 'key-7'::blob order by 1"
    ).fetchall()
    assert len(key) == 6
    assert connection.execute("select typeof(publish_time) from clicks limit 1").fetchone() == (
        "TIMESTAMP WITH TIME ZONE",
    )


@pytest.mark.parametrize("part", ["history", "tail"])
def test_one_part_alone(tabled: Tabled, part: str) -> None:
    topic = tabled(2)
    topic.publish(30)
    topic.commit()
    topic.publish(12)
    seen = read(topic, part=part)
    assert values(seen.to_arrow()) == (topic.numbers[:30] if part == "history" else topic.numbers[30:])
    # It can be gone on from, either way.
    with topic.client.checkpoint_consumer(topic.topic, start=seen.cut) as consumer:
        topic.publish(1)
        more = 13 if part == "history" else 1
        assert sorted(int(consumer.receive(10).value) for _ in range(more))[-1] == 42


# -- as of


def test_as_of_a_version_and_a_time(tabled: Tabled) -> None:
    topic = tabled(2)
    topic.publish(10)
    topic.commit()
    between = datetime.now(UTC)
    topic.publish(10)
    topic.commit()
    topic.publish(10)
    assert values(read(topic, as_of=1).to_arrow()) == topic.numbers[:10]
    assert values(read(topic, as_of=2).to_arrow()) == topic.numbers[:20]
    assert values(read(topic, as_of=between).to_arrow()) == topic.numbers[:10]
    assert read(topic, as_of=0).to_arrow().num_rows == 0


def test_as_of_a_cut_has_exactly_the_rows_before_it(tabled: Tabled) -> None:
    topic = tabled(1)
    cuts = []
    for step in range(6):
        topic.publish(25)
        cuts.append((read(topic).cut, topic.published))
        if step == 1:
            topic.split(0)
        if step in (2, 4):
            topic.commit()
        if step == 3:
            topic.merge(1, 2)
    for cut, published in cuts:
        seen = read(topic, as_of=cut)
        assert values(seen.to_arrow()) == topic.numbers[:published]
        assert seen.cut == cut
        connection = duckdb.connect()
        seen.duckdb(connection, "t")
        assert connection.execute("select count(*) from t").fetchone() == (published,)


# -- what is refused


def test_a_topic_made_again_under_its_name_is_refused(
    broker: BrokerProcess, client: blocking.Client, tabled: Tabled
) -> None:
    topic = tabled(1)
    topic.publish(20)
    topic.commit()
    topic.delete()
    broker.put(f"{topic.path}?numInitialSegments=1")
    with pytest.raises(
        anabranch.TopicMadeAgain, match=r"was deleted and made again: the table at .* with the id"
    ):
        read(topic)
    # The former topic's rows are still there for who asks for them.
    assert values(read(topic, part="history").to_arrow()) == topic.numbers


def test_the_table_of_another_topic_is_refused(tabled: Tabled) -> None:
    one, other = tabled(1), tabled(1)
    one.publish(5)
    one.commit()
    for part in ("all", "history"):
        with pytest.raises(anabranch.BadArgument, match=f"is of {one.topic}, and not of {other.topic}"):
            other.client.table(other.topic, table_url=one.table.url, part=part)


def test_no_table_at_the_place_given(tabled: Tabled, tmp_path: Path) -> None:
    topic = tabled(1)
    with pytest.raises(NoTable, match=r"there is no table\. `anabranch tables enable"):
        topic.client.table(topic.topic, table_url=str(tmp_path / "elsewhere"))


def test_decoded_rows_are_not_made_of_the_tail(tabled: Tabled) -> None:
    """A refusal: nulls where the table has values would make sums wrong without a word."""
    topic = tabled(1)
    topic.publish(5)
    topic.table.mode = "decoded"
    topic.commit()
    with pytest.raises(anabranch.Unsupported, match="part='history'"):
        read(topic)
    assert values(read(topic, part="history").to_arrow()) == topic.numbers


def test_an_empty_table_leaves_all_to_the_log(tabled: Tabled) -> None:
    topic = tabled(1)
    assert read(topic).to_arrow().num_rows == 0
    topic.publish(5)
    assert values(read(topic).to_arrow()) == topic.numbers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"part": "head"}, "part='head': choose one of all, history, tail"),
        ({"as_of": True}, "as_of=True: give a version"),
        ({"as_of": -1}, "as_of=-1: give a version"),
        ({"as_of": "yesterday"}, "as_of='yesterday': give a version"),
        ({"as_of": datetime(2026, 5, 1)}, "has no time zone"),
        ({"as_of": 3, "part": "tail"}, "which has no tail"),
        ({"table_url": " "}, "table_url=' ': give a folder"),
    ],
)
def test_what_cannot_be_meant_is_refused(client: blocking.Client, options: dict[str, Any], says: str) -> None:
    with pytest.raises(anabranch.BadArgument, match=says):
        client.table("topic://public/default/nowhere", **options)


# -- under load


def test_each_row_once_while_the_topic_is_written_and_changes_its_layout(
    broker: BrokerProcess, tabled: Tabled
) -> None:
    topic = tabled(1)

    async def run() -> None:
        async with anabranch.connect(broker.url) as client, client.producer(topic.topic) as producer:
            receipts: list[Any] = []
            done = asyncio.Event()

            async def load() -> None:
                for number in range(3000):
                    receipts.append(await producer.post(b"%d" % number, key=f"k{number % 31}"))
                    if number % 50 == 0:
                        await producer.flush()
                        await asyncio.sleep(0)
                    if number in (800, 1600):
                        await asyncio.to_thread(topic.split, 0 if number == 800 else 1)
                await producer.flush()
                done.set()

            loading = asyncio.create_task(load())
            asked = 0
            while not done.is_set():
                confirmed = sum(one.done() for one in receipts)
                seen = await client.table(topic.topic, table_url=topic.table.url)
                rows = await asyncio.to_thread(seen.to_arrow)
                counts = Counter(rows.column("value").to_pylist())
                assert max(counts.values(), default=1) == 1
                # Everything that had a receipt before it was asked is there.
                assert {b"%d" % n for n in range(confirmed)} <= counts.keys()
                asked += 1
                if asked % 3 == 0:
                    topic.table.append(seen.tail, anabranch_cut(seen.cut))
            await loading
            seen = await client.table(topic.topic, table_url=topic.table.url)
            assert values(seen.to_arrow()) == [b"%d" % n for n in range(3000)]
            assert asked > 1

    asyncio.run(run())


def anabranch_cut(cut: bytes) -> Any:
    from anabranch.model.cut import Cut

    return Cut.decode(cut)


def test_the_tail_survives_a_broker_that_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker, blocking.connect(broker.url) as client:
        producer = client.producer("topic://public/default/killed")
        table = HandTable(tmp_path / "table", "topic://public/default/killed", producer.topic_id)
        for number in range(40):
            producer.send(b"%d" % number, key=str(number))
            if number == 20:
                table.commit(client)
            if number == 30:
                broker.kill()
                broker.start()
        broker.kill()
        broker.start()
        seen = client.table(producer.topic, table_url=table.url)
        assert values(seen.to_arrow()) == [b"%d" % n for n in range(40)]
        assert isinstance(seen.tail, pa.Table)
