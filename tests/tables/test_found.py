"""Tables as their writer makes them: readers find them by the topic alone, and stitch them exactly."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.table_writer.settings import WriterSettings
from anabranch.tables.core.names import NoTable
from anabranch.tables.core.place import parse_place
from harness.broker_process import BrokerProcess
from tables.keeping import tables_kept
from tables.test_writing import write_all

NAME = "kept"
TOPIC = f"topic://public/default/{NAME}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Iterator[BrokerProcess]:
    settings = {"tablesUrl": place, "tablesWriterEnabled": False, "tablesCommitSeconds": 0.2}
    with BrokerProcess(tmp_path_factory.mktemp("keeping"), settings) as process:
        yield process


def write(keeping: BrokerProcess, place: Path, topic: str) -> None:
    """Commits what the topic has now, as the table writer does."""
    asyncio.run(write_all(WriterSettings(keeping.url, parse_place(str(place))), topic))


def values(rows: Any) -> list[int]:
    return sorted(int(value) for value in rows.to_arrow(["value"]).column("value").to_pylist())


def test_a_table_is_found_by_its_topic_and_each_row_is_there_once(
    keeping: BrokerProcess, place: Path
) -> None:
    path = f"scalable/public/default/{NAME}"
    with blocking.connect(keeping.url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(NoTable, match="`anabranch tables enable topic://public/default/kept`"):
            client.table(TOPIC)
        keeping.post(f"{path}/table", "raw")
        # It has no version yet.
        assert values(client.table(TOPIC)) == []
        for number in range(200):
            producer.send(b"%d" % number, key=str(number % 7))
            if number % 20 == 19:
                assert values(client.table(TOPIC)) == list(range(number + 1))
            if number == 50:
                keeping.post(f"{path}/split/0")
            if number in (30, 90, 199):
                write(keeping, place, TOPIC)
        rows = client.table(TOPIC)
        assert rows.tail.num_rows == 0
        assert len(rows.files) >= 3
        assert values(rows) == values(client.table(TOPIC, part="history")) == list(range(200))
        assert rows.snapshot is not None
        assert rows.snapshot.topic_id == producer.topic_id
        # A name without a domain is the same topic, and a table that is no longer kept stays.
        keeping.post(f"{path}/table", "off")
        producer.send(b"200")
        assert values(client.table(f"public/default/{NAME}")) == list(range(201))


def test_rows_of_the_writer_and_of_the_tail_are_the_same(keeping: BrokerProcess, place: Path) -> None:
    topic = "topic://public/default/the-same"
    with blocking.connect(keeping.url) as client, client.producer(topic) as producer:
        keeping.post("scalable/public/default/the-same/table", "raw")
        for number in range(20):
            producer.send(b"%d" % number, key=str(number % 3) if number % 4 else None, properties={"a": "b"})
        order = [(name, "ascending") for name in ("segment", "ledger", "entry", "index")]
        tail = client.table(topic).to_arrow().sort_by(order)
        write(keeping, place, topic)
        rows = client.table(topic)
        assert rows.tail.num_rows == 0
        assert rows.to_arrow().sort_by(order).equals(tail)


def test_a_topic_made_again_has_another_table(keeping: BrokerProcess, place: Path) -> None:
    topic, path = "topic://public/default/again", "scalable/public/default/again"
    with blocking.connect(keeping.url) as client:
        keeping.put(f"{path}?numInitialSegments=1")
        keeping.post(f"{path}/table", "raw")
        with client.producer(topic) as producer:
            producer.send(b"1")
        write(keeping, place, topic)
        former = client.table(topic).files
        keeping.rest("DELETE", f"{path}?force=true")
        keeping.put(f"{path}?numInitialSegments=1")
        keeping.post(f"{path}/table", "raw")
        with client.producer(topic) as producer:
            producer.send(b"2")
        assert values(client.table(topic)) == [2]
        url = former[0].partition("/day=")[0]
        assert values(client.table(topic, part="history", table_url=url)) == [1]


def test_brokers_without_a_place_for_tables_say_so(broker: BrokerProcess) -> None:
    topic = "topic://public/default/untabled"
    with blocking.connect(broker.url) as client:
        client.producer(topic).close()
        with pytest.raises(NoTable, match="no place for tables"):
            client.table(topic)


def test_the_example_does_what_it_says(
    keeping: BrokerProcess,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = f"http://127.0.0.1:{keeping.http_port}"
    monkeypatch.setattr(sys, "argv", ["tables.py", keeping.url, admin])
    with tables_kept(keeping, place, monkeypatch):
        runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tables.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "60000 rides, 870000 in fares;" in shown
    assert "100 rides since" in shown
