"""`anabranch produce` with schemas, and from records: CSV, JSON lines, Parquet; against a real broker."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from anabranch.cli.messages.encoding import Encoding
from anabranch.cli.messages.records import CsvRecords, RecordKeying, json_records
from anabranch.cli.messages.sources import RecordRows
from anabranch.cli.parsing.options import UsageError
from unit.cli.running import consume, objects, produce, spawn

Capture = pytest.CaptureFixture[str]

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": ["null", "double"], "default": None},
        {"name": "note", "type": "string", "default": ""},
    ],
}


@pytest.fixture
def definition(tmp_path: Path) -> str:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    return str(path)


class Plain:
    """Records as they are."""

    def of_record(self, record: dict[str, Any]) -> bytes:
        return json.dumps(record).encode()


def keying() -> RecordKeying:
    return RecordKeying(cast(Encoding, Plain()), None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'"x"y,2', "row 1 is no row of CSV: ',' expected"),
        (b"x\ry,2", "row 1 is no row of CSV: new-line character"),
        (b'"x', "a quoted cell of row 1 does not end"),
    ],
)
def test_a_row_that_is_no_csv_is_named(line: bytes, reason: str) -> None:
    rows = CsvRecords(keying())

    def read_all() -> None:
        list(rows([b"a,b", line], 1))
        rows.ended()

    with pytest.raises(UsageError, match=reason):
        read_all()


def test_a_long_cell_of_csv_is_sent_whole() -> None:
    ((_, value),) = CsvRecords(keying())([b"a,b", b"x" * 200_000 + b",2"], 1)
    assert json.loads(value) == {"a": "x" * 200_000, "b": "2"}


class Counted(bytes):
    """A line that counts how often it is looked at."""

    looks = 0

    def decode(self, *arguments: Any) -> str:
        return Looked(super().decode(*arguments))


class Looked(str):
    def count(self, *arguments: Any) -> int:
        Counted.looks += 1
        return super().count(*arguments)


def test_a_quoted_cell_of_many_lines_looks_at_each_line_once() -> None:
    lines: list[bytes] = [Counted(b"x") for _ in range(500)]
    Counted.looks = 0
    assert list(CsvRecords(keying())([b"a,b", b'"y', *lines], 1)) == []
    assert Counted.looks == 500


def test_json_that_is_nested_too_deep_is_named() -> None:
    with pytest.raises(UsageError, match="line 7 is no JSON object"):
        list(json_records(keying())([b'{"a":' + b"[" * 100_000], 7))


async def test_no_row_behind_an_arrow_batch_without_rows_is_lost(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "rows.arrow"
    schema = pa.schema([("a", pa.int64())])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for values in ([], [1, 2], [], [3], [], []):
            writer.write_batch(pa.record_batch([pa.array(values, pa.int64())], schema=schema))
    rows, found = RecordRows(path, keying()), []
    while some := await rows.next():
        found += [json.loads(value)["a"] for _, value in some]
    assert found == [1, 2, 3]


def read(broker: BrokerProcess, capfd: Capture, topic: str, count: int) -> list[tuple[object, object]]:
    """Key and value of each message."""
    capfd.readouterr()
    options = ("-t", "checkpoint", "--start", "earliest", "-n", str(count), "--timeout", "30", "--json")
    assert consume(broker, topic, *options) == 0
    return [(m["key"], m.get("value", m.get("payload"))) for m in objects(capfd.readouterr().out)]


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_rows_of_csv_are_encoded_by_a_schema(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path, definition: str, kind: str
) -> None:
    topic = f"topic://public/default/csv-{kind}"
    path = tmp_path / "orders.csv"
    path.write_text('\ufeffid,price,note\r\n1,2.5,plain\r\n2,,"two\r\nlines, and ""quotes"""\r\n')
    options = ("--format", "csv", "--schema", definition, "--schema-type", kind, "--key-field", "id")
    assert produce(broker, topic, "--file", str(path), *options) == 0
    assert read(broker, capfd, topic, 2) == [
        ("1", {"id": 1, "price": 2.5, "note": "plain"}),
        ("2", {"id": 2, "price": None, "note": 'two\nlines, and "quotes"'}),
    ]
    # From now on the topic knows.
    assert produce(broker, topic, "--schema", "topic", "-m", '{"id": 3}') == 0
    assert read(broker, capfd, topic, 3)[2] == (None, {"id": 3, "price": None, "note": ""})


def test_a_field_that_the_schema_lacks_may_be_the_key(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path, definition: str
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"id": 1, "who": "ann"}\n\n{"id": 2, "who": "bob"}\n')
    options = ("--format", "json", "--schema", definition, "--key-field", "who")
    assert produce(broker, "keyed-rows", "--file", str(path), *options) == 0
    found = read(broker, capfd, "keyed-rows", 2)
    assert [key for key, _ in found] == ["ann", "bob"]
    assert found[1][1] == {"id": 2, "price": None, "note": ""}


def test_rows_of_parquet_are_sent_as_json_or_by_a_schema(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path, definition: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "orders.parquet"
    count = 2500  # More than are taken at once.
    pq.write_table(pa.table({"id": range(count), "note": [f"n{n}" for n in range(count)]}), path)
    options = ("--file", str(path), "--format", "parquet")
    assert produce(broker, "parquet-json", *options, "--key-field", "note") == 0
    assert produce(broker, "parquet-avro", *options, "--schema", definition) == 0
    found = read(broker, capfd, "parquet-json", count)
    assert [json.loads(str(value))["id"] for _, value in found] == list(range(count))
    assert found[-1][0] == f"n{count - 1}"
    assert read(broker, capfd, "parquet-avro", 1) == [(None, {"id": 0, "price": None, "note": "n0"})]


def test_numbers_and_text_have_schemas_of_their_own(broker: BrokerProcess, capfd: Capture) -> None:
    for word, text, value in (("int32", "-7", -7), ("double", "1.5", 1.5), ("bool", "true", True)):
        assert produce(broker, f"typed-{word}", "--schema", word, "-m", text) == 0
        assert read(broker, capfd, f"typed-{word}", 1) == [(None, value)]
    assert produce(broker, "typed-string", "--schema", "string", "-m", "grüße") == 0
    assert read(broker, capfd, "typed-string", 1) == [(None, "grüße")]


def test_what_is_before_a_wrong_row_is_stored_and_the_row_is_named(
    broker: BrokerProcess, capfd: Capture, definition: str
) -> None:
    topic = "wrong-rows"
    with spawn(broker, "produce", topic, "--format", "csv", "--schema", definition) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"id,note\n1,a\n")
        process.stdin.flush()
        assert read(broker, capfd, topic, 1) == [(None, {"id": 1, "price": None, "note": "a"})]
        process.stdin.write(b"x,b\n")
        process.stdin.close()
        error = process.stderr.read().decode()
        assert process.wait(60) == 1
    assert "row 2: id: 'x' is not a whole number" in error
    assert "the 1 message up to row 1 is stored" in error


@pytest.mark.parametrize("kind", ["keys", "json", "csv", "schema", "parquet"])
def test_whatever_is_before_the_wrong_one_is_stored_in_small_files_too(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path, kind: str
) -> None:
    """What was read together with a wrong line was dropped without a word, which in a small file is all of it."""
    path, topic = tmp_path / "input", f"before-wrong-{kind}"
    texts = {
        "keys": ("a:1\nb:2\nwrong\nc:3\n", ["--key-separator", ":"]),
        "json": ('{"n": 1}\n{"n": 2}\nwrong\n{"n": 3}\n', ["--format", "json"]),
        "csv": ("n\n1\n2\n3,3\n4\n", ["--format", "csv"]),
        "schema": ("1\n2\nwrong\n3\n", ["--schema", "int32"]),
    }
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        definition = tmp_path / "n.avsc"
        definition.write_text('{"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}')
        pq.write_table(pa.table({"n": [1, 2, 1 << 40, 3]}), path)
        arguments = ["--format", "parquet", "--schema", str(definition)]
    else:
        text, arguments = texts[kind]
        path.write_text(text)
    assert produce(broker, topic, "--file", str(path), *arguments) == 1
    what = "row" if kind in ("csv", "parquet") else "line"
    assert f"(the 2 messages up to {what} 2 are stored)" in capfd.readouterr().err
    assert (
        consume(broker, topic, "-s", "s", "--timeout", "0.3", "--start", "earliest", "--output", "raw", "-q")
        == 0
    )
    assert len(capfd.readouterr().out.encode().splitlines()) >= 2


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a,a\n1,2\n", ["--format", "csv"], "repeated name"),
        ("a,b\n1\n", ["--format", "csv"], "row 1 has 1 cells, the heading 2"),
        ('a,b\n1,"2\n', ["--format", "csv"], "quoted cell of row 1 does not end"),
        ("a,b\n1,2\n", ["--format", "csv", "--key-field", "c"], "row 1 has no field 'c'; it has a, b"),
        ("[1]\n", ["--format", "json"], "line 1 is no JSON object"),
        ("{}\n", ["--schema", "topic"], "has no schema"),
        ("{}\n", ["--schema", "/nowhere"], "neither topic, string"),
        ("x\n", ["--schema", "int32"], "line 1: the text is no JSON"),
        ("4294967296\n", ["--schema", "int32"], "line 1: 4294967296 is no Int32"),
        ("x\n", ["--format", "csv", "--key-separator", ":"], "--key-field"),
        ("x\n", ["--schema", "int8", "--schema-type", "avro"], "--schema FILE"),
    ],
)
def test_mistakes_are_told_in_one_line(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path, text: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "input"
    path.write_text(text)
    assert produce(broker, "mistaken-records", "--file", str(path), *arguments) == 1
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_topic_with_a_schema_says_so_to_whoever_sends_without_it(
    broker: BrokerProcess, capfd: Capture
) -> None:
    assert produce(broker, "has-schema", "--schema", "int32", "-m", "1") == 0
    capfd.readouterr()
    assert produce(broker, "has-schema", "-m", "x") == 0
    assert "persistent://public/default/has-schema has a schema of type Int32" in capfd.readouterr().err


def test_parquet_needs_a_file(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["produce", "t", "--format", "parquet"]) == 1
    assert "--file" in capsys.readouterr().err
