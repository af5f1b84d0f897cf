"""`anabranch produce` against a real broker: what is sent, what is told, and how it ends."""

from __future__ import annotations

import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from anabranch.cli.messages import unheard
from harness.broker_process import until
from unit.cli.running import consume, objects, produce, spawn, topics

Capture = pytest.CaptureFixture[str]
EARLIEST = ("--start", "earliest", "-q")


@pytest.fixture
def mortal() -> Iterator[BrokerProcess]:
    """A broker that a test may kill."""
    process = BrokerProcess()
    try:
        process.start()
        yield process
    finally:
        process.discard()


def test_what_is_produced_is_counted(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "counted", "-m", "a", "-m", "b", "--num", "2") == 0
    assert capfd.readouterr().err.splitlines()[0] == "4 messages stored"
    assert produce(broker, "counted", "-m", "a", "-q") == 0
    assert capfd.readouterr() == ("", "")
    assert consume(broker, "counted", "-s", "s", "-n", "5", *EARLIEST) == 0
    assert capfd.readouterr().out.split() == ["a", "b", "a", "b", "a"]


@pytest.mark.parametrize(
    ("topic", "kept"), [("alone", "for 7 days"), ("topic://public/default/alone-too", "for 7 days")]
)
def test_who_sends_to_nobody_is_told_how_long_messages_stay(
    broker: BrokerProcess, capfd: Capture, topic: str, kept: str
) -> None:
    assert produce(broker, topic, "-m", "a") == 0
    _, newness, told, command = capfd.readouterr().err.splitlines()
    assert "is a new topic" in newness
    name = topic.rpartition("/")[2]
    assert told.startswith(f"{name} has no subscription: a later subscription finds its messages {kept}")
    # The command reads them: at this broker, from the start.
    assert command == f"anabranch consume {topic} -s NAME --start earliest --service-url {broker.service_url}"
    assert main([*command.split()[1:], "-n", "1"]) == 0
    assert capfd.readouterr().out == "a\n"
    assert produce(broker, topic, "-m", "b") == 0
    assert capfd.readouterr().err == "1 message stored\n"


@pytest.mark.parametrize(
    ("minutes", "megabytes", "told"),
    [
        (10080, -1, "for 7 days, and"),
        (90, 512, "for 90 minutes, the last 512 MB of them, and"),
        (120, -1, "for 2 hours, and"),
        (-1, -1, "for ever, and"),
        (0, -1, "keeps nothing"),
        (5, 0, "keeps nothing"),
    ],
)
def test_a_retention_in_words(minutes: int, megabytes: int, told: str) -> None:
    assert told in unheard.told({"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})


def test_lines_of_standard_input_are_messages(broker: BrokerProcess, capfd: Capture) -> None:
    with spawn(broker, "produce", "lines") as process:
        _, error = process.communicate(b"one\r\n\ntwo", timeout=30)
    assert (process.returncode, error.splitlines()[0]) == (0, b"3 messages stored")
    assert consume(broker, "lines", "-s", "s", "-n", "3", *EARLIEST) == 0
    assert capfd.readouterr().out == "one\n\ntwo\n"


def test_lines_of_a_file_carry_their_keys(broker: BrokerProcess, tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\tone\nb\ttwo\tand a half\n")
    assert produce(broker, "keyed", "--file", str(path), "--key-separator", r"\t", "-p", "from=file") == 0
    path.write_bytes(b'{"who": "c", "n": 3}\n{"who": 4}')
    assert produce(broker, "keyed", "--file", str(path), "--key-field", "who") == 0
    capfd.readouterr()
    assert consume(broker, "keyed", "-s", "s", "-n", "4", "--json", *EARLIEST) == 0
    found = objects(capfd.readouterr().out)
    assert [(m["key"], m["payload"]) for m in found] == [
        ("a", "one"),
        ("b", "two\tand a half"),
        ("c", '{"who": "c", "n": 3}'),
        ("4", '{"who": 4}'),
    ]
    assert [m["properties"] for m in found] == [{"from": "file"}] * 2 + [{}] * 2


def test_a_line_that_is_wrong_is_named_and_those_before_are_stored(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"k:%d\n" % n for n in range(40_000)) + b"oops\n")
    assert produce(broker, "mistaken", "--file", str(path), "--key-separator", ":") == 1
    error = capfd.readouterr().err
    assert "line 40,001 has no ':'" in error
    told = re.search(r"\(the ([\d,]+) messages up to line \1 are stored\)\n", error)
    assert told is not None
    stored = int(told[1].replace(",", ""))
    assert consume(broker, "mistaken", "-s", "s", "--timeout", "0.5", *EARLIEST) == 0
    assert len(capfd.readouterr().out.splitlines()) == stored


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream"])
def test_rows_of_a_table_are_messages(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture, kind: str
) -> None:
    table = pa.table({"who": ["a", "b", None], "what": [b"one", b"two", b"three"], "n": [1, 2, 3]})
    path = tmp_path / "table"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table)
    topic = f"topic://public/default/table-{kind}"
    assert produce(broker, topic, "--arrow", str(path), "--key", "who", "--value", "what") == 0
    assert capfd.readouterr().err.startswith("3 messages stored")
    assert consume(broker, topic, "-s", "s", "-n", "3", "--json", *EARLIEST) == 0
    found = objects(capfd.readouterr().out)
    assert [(m["key"], m["payload"]) for m in found] == [("a", "one"), ("b", "two"), (None, "three")]
    assert produce(broker, topic, "--arrow", str(path)) == 1
    assert "no column 'value'; it has who, what, n" in capfd.readouterr().err


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy", "zlib"])
def test_batches_may_be_compressed(broker: BrokerProcess, capfd: Capture, compression: str) -> None:
    topic = f"packed-{compression}"
    assert produce(broker, topic, "-m", "x" * 1000, "-n", "3", "--compression", compression) == 0
    assert consume(broker, topic, "-s", "s", "-n", "3", *EARLIEST) == 0
    assert capfd.readouterr().out.split() == ["x" * 1000] * 3


def test_batches_are_as_large_as_they_are_told_to_be(broker: BrokerProcess, capfd: Capture) -> None:
    for topic, options in (("small", ["--batch-messages", "2"]), ("single", ["--no-batching"])):
        assert produce(broker, topic, "-m", "x", "-n", "4", "-k", "k", *options) == 0
        assert consume(broker, topic, "-s", "s", "-n", "4", "--json", *EARLIEST) == 0
    entries = [m["id"].split(":")[2:] for m in objects(capfd.readouterr().out)]
    assert entries == [
        *(["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]),
        *([str(entry), "-1"] for entry in range(4)),
    ]


def test_a_message_too_large_for_the_broker_needs_chunking(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"small\n" + b"x" * (6 << 20))
    assert produce(broker, "large", "--file", str(path)) == 1
    error = capfd.readouterr().err
    assert error.startswith("anabranch: ")
    assert "--chunking" in error
    assert "(1 of 2 messages stored; the first that may not be is line 2)" in error
    assert produce(broker, "chunked", "--file", str(path), "--chunking") == 0
    assert consume(broker, "chunked", "-s", "s", "-n", "2", *EARLIEST) == 0
    assert len(capfd.readouterr().out) == 6 + (6 << 20) + 1


def test_a_terminated_topic_takes_no_more(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "over", "-m", "last") == 0
    assert topics(broker, "terminate", "over") == 0
    capfd.readouterr()
    assert produce(broker, "over", "-m", "too late") == 1
    assert "TopicTerminatedError" in capfd.readouterr().err


def test_ctrl_c_stores_what_was_sent_and_says_how_much(broker: BrokerProcess, capfd: Capture) -> None:
    command = [sys.executable, "-m", "anabranch.cli", "produce", "stopped", "-m", "x", "-n", "100000"]
    pid, terminal = pty.fork()
    if not pid:
        os.environ["TERM"] = "xterm"
        os.execv(command[0], [*command, "--rate", "100", "--service-url", broker.service_url])
    shown = b""
    while b"msg/s" not in shown:  # The bar.
        shown += os.read(terminal, 1 << 16)
    os.write(terminal, b"\x03")
    shown = read_to_end(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    told = re.search(rb"interrupted: (\d+) messages stored", shown)
    assert told is not None
    assert consume(broker, "stopped", "-s", "s", "-n", told[1].decode(), *EARLIEST) == 0
    assert consume(broker, "stopped", "-s", "s", "--timeout", "0.3", "-q") == 0
    assert len(capfd.readouterr().out.split()) == int(told[1])


def read_to_end(terminal: int) -> bytes:
    found = b""
    try:
        while data := os.read(terminal, 1 << 16):
            found += data
    except OSError:  # What Linux says when the other side is closed.
        pass
    os.close(terminal)
    return found


def test_what_a_lost_broker_did_not_confirm_is_told(mortal: BrokerProcess) -> None:
    with spawn(mortal, "produce", "lost", "--timeout", "0.5") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        stats = "/admin/v2/persistent/public/default/lost/stats"
        until(lambda: topic_exists(mortal) and mortal.rest("GET", stats)["msgInCounter"] == 1)
        mortal.kill()
        output, error = process.communicate(b"two\nthree\n", timeout=30)
    assert (process.returncode, output) == (1, b"")
    told = re.fullmatch(
        rb"anabranch: the broker sent no receipts in time: (.*); --timeout allows more "
        rb"\((\d) of 3 messages stored; the first that may not be is line (\d)\)\n",
        error,
    )
    assert told is not None, error
    assert b"cannot connect to" in told[1] or b"connection" in told[1]
    # The receipt of what the broker has stored may have died with it.
    assert (told[2], told[3]) in [(b"0", b"1"), (b"1", b"2")]


def topic_exists(broker: BrokerProcess) -> bool:
    return "persistent://public/default/lost" in broker.rest("GET", "/admin/v2/persistent/public/default")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "x"], "Connection refused; is a broker running there?"),
        (["-m", "x", "--service-url", "http://x"], "pulsar://"),
        (["-m", "x", "--num", "0"], "--num"),
        (["--num", "2"], "--num"),
        (["-m", "x", "-p", "nonsense"], "NAME=VALUE"),
        (["-m", "x", "--rate", "0"], "--rate"),
        (["-m", "x", "--timeout", "-1"], "--timeout"),
        (["-m", "x", "--file", "f"], "one of them"),
        (["-m", "x", "--key-field", "f"], "lines"),
        (["-f", "x", "--key", "k", "--key-field", "f"], "one of them"),
        (["-f", "x", "--value", "c"], "--arrow"),
        (["-f", __file__, "--key-separator", ""], "empty"),
        (["-f", "/nowhere/at/all"], "No such file"),
        (["-f", "/"], "Is a directory"),
        (["--arrow", "/nowhere/at/all"], "No such file"),
        (["--arrow", __file__], "neither a Parquet nor an Arrow file"),
        (["--arrow", __file__, "-p", "a=b"], "--property"),
    ],
)
def test_mistakes_are_told_in_one_line(
    broker: BrokerProcess,
    arguments: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_reached = arguments[0] in ("-f", "--arrow")
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", broker.service_url if is_reached else "pulsar://127.0.0.1:1")
    assert main(["produce", "t", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_name_that_is_none_is_told(capsys: Capture) -> None:
    assert main(["produce", "a/b", "-m", "x"]) == 1
    assert "neither a full name" in capsys.readouterr().err


def test_a_large_file_is_sent_whole_and_in_order(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture
) -> None:
    """As tables, but for lines that are too long for one."""
    path, count = tmp_path / "large", 34_000
    lines = [b"%d:%d %s\n" % (n % 7, n, b"x" * 1000) for n in range(count)]
    lines[count // 2] = b"%d:%d %s\n" % (count // 2 % 7, count // 2, b"x" * 100_000)
    path.write_bytes(b"".join(lines))
    topic = "topic://public/default/tables"
    assert topics(broker, "create", "--scalable", "--segments", "2", topic) == 0
    assert consume(broker, topic, "-s", "s", "--timeout", "0.1", *EARLIEST) == 0
    assert produce(broker, topic, "--file", str(path), "--key-separator", ":") == 0
    assert capfd.readouterr().err.startswith("34,000 messages stored")
    assert consume(broker, topic, "-s", "s", "-n", str(count), "--key-separator", ":", "-q") == 0
    found = capfd.readouterr().out.encode().splitlines(keepends=True)
    assert sorted(found) == sorted(lines)
    for key in range(7):
        mine = [int(line.split()[0][2:]) for line in found if line.startswith(b"%d:" % key)]
        assert mine == sorted(mine)
