"""`anabranch consume` against a real broker: what is printed, what is acknowledged, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from unit.cli.running import consume, objects, produce, spawn, topics

Capture = pytest.CaptureFixture[str]
EARLIEST = ("--start", "earliest")


def printed(capfd: Capture) -> list[str]:
    return capfd.readouterr().out.splitlines()


@pytest.mark.parametrize("topic", ["once", "topic://public/default/once-scalable"])
@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_what_is_printed_is_acknowledged(
    broker: BrokerProcess, capfd: Capture, topic: str, kind: str
) -> None:
    assert produce(broker, f"{topic}-{kind}", *(word for n in range(5) for word in ("-m", str(n)))) == 0
    options = ("-s", "s", "-t", kind)
    capfd.readouterr()
    assert consume(broker, f"{topic}-{kind}", *options, "-n", "3", *EARLIEST) == 0
    assert capfd.readouterr() == ("0\n1\n2\n", "3 messages received\n")
    assert consume(broker, f"{topic}-{kind}", *options, "--timeout", "0.3", "-q") == 0
    assert capfd.readouterr() == ("3\n4\n", "")


@pytest.mark.parametrize("kind", ["stream", "queue"])
def test_without_acknowledging_messages_come_again(broker: BrokerProcess, capfd: Capture, kind: str) -> None:
    topic = f"again-{kind}"
    assert produce(broker, topic, "-m", "x", "-n", "3") == 0
    for _ in range(2):
        assert consume(broker, topic, "-s", "s", "-t", kind, "-n", "3", "--no-ack", *EARLIEST) == 0
    assert printed(capfd) == ["x"] * 6


@pytest.mark.parametrize(
    ("name", "kind"), [("exclusive", "Exclusive"), ("failover", "Exclusive"), ("shared", "Shared")]
)
def test_names_of_pulsars_own_types_are_understood(broker: BrokerProcess, name: str, kind: str) -> None:
    topic = f"named-{name}"
    assert produce(broker, topic, "-m", "x") == 0
    with spawn(broker, "consume", topic, "-s", "s", "-t", name, *EARLIEST) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        stats = broker.rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
        ended(process)
    assert stats["subscriptions"]["s"]["type"] == kind


def ended(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


def test_json_tells_all_of_a_message(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "told", "-m", "grüße", "-k", "key", "-p", "a=b") == 0
    consume(broker, "told", "-s", "s", "-n", "1", *EARLIEST, "--json", "-t", "shared")
    shown = json.loads(capfd.readouterr().out)
    assert (shown["payload"], shown["key"], shown["properties"]) == ("grüße", "key", {"a": "b"})
    assert (shown["topic"], shown["segment"]) == ("persistent://public/default/told", 0)


def test_what_is_no_text_is_base64_in_json(broker: BrokerProcess, tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\n")
    assert produce(broker, "binary", "-f", str(path)) == 0
    assert consume(broker, "binary", "-s", "s", "-n", "1", "--json", *EARLIEST) == 0
    assert json.loads(capfd.readouterr().out)["payloadBase64"] == "//4="


def test_keys_can_be_printed_before_values(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "pairs", "-m", "x", "-k", "k") == 0
    assert produce(broker, "pairs", "-m", "y") == 0
    assert consume(broker, "pairs", "-s", "s", "-n", "2", "--key-separator", r"\t", *EARLIEST) == 0
    assert printed(capfd) == ["k\tx", "\ty"]


def test_partitioned_topics_are_spread_and_keys_stay_together(broker: BrokerProcess, capfd: Capture) -> None:
    assert topics(broker, "create", "parted", "--partitions", "3") == 0
    assert produce(broker, "parted", "-m", "x", "--num", "6") == 0
    assert produce(broker, "parted", "-m", "y", "-k", "k", "--num", "4") == 0
    capfd.readouterr()
    assert consume(broker, "parted", "-s", "s", "-n", "10", *EARLIEST, "--json") == 0
    shown = objects(capfd.readouterr().out)
    assert {message["topic"] for message in shown} == {"persistent://public/default/parted"}
    assert len({message["segment"] for message in shown if message["key"] is None}) == 3
    assert len({message["segment"] for message in shown if message["key"] == "k"}) == 1


def test_keys_keep_their_order_through_a_split(broker: BrokerProcess, capfd: Capture) -> None:
    topic = "topic://public/default/flows"
    assert produce(broker, topic, "-m", "one", "-m", "two", "-k", "a") == 0
    topics(broker, "split", "flows", "0")
    assert produce(broker, topic, "-m", "three", "-k", "a") == 0
    capfd.readouterr()
    assert consume(broker, topic, "-s", "stream", "-n", "3", *EARLIEST) == 0
    assert printed(capfd) == ["one", "two", "three"]
    # A name without a domain is that of the scalable topic, if there is one.
    assert consume(broker, "flows", "-s", "queue", "-t", "queue", "--json", "-n", "3", *EARLIEST) == 0
    assert {(m["topic"], m["payload"], m["segment"]) for m in objects(capfd.readouterr().out)} == {
        (topic, "one", 0),
        (topic, "two", 0),
        (topic, "three", 1),
    }


def test_a_namespace_is_read_by_the_properties_of_its_topics(broker: BrokerProcess, capfd: Capture) -> None:
    for name, team in (("blue-1", "blue"), ("blue-2", "blue"), ("red-1", "red")):
        topic = f"topic://public/default/{name}"
        assert topics(broker, "create", "--scalable", topic, "--property", f"team={team}") == 0
        assert produce(broker, topic, "-m", name) == 0
    capfd.readouterr()
    which = ("--namespace", "public/default", "--filter", "team=blue")
    assert consume(broker, *which, "-s", "s", "-n", "2", "--json", *EARLIEST) == 0
    assert {(m["topic"], m["payload"]) for m in objects(capfd.readouterr().out)} == {
        ("topic://public/default/blue-1", "blue-1"),
        ("topic://public/default/blue-2", "blue-2"),
    }
    assert consume(broker, *which, "-s", "q", "-t", "queue", "-n", "2", *EARLIEST) == 0
    assert sorted(printed(capfd)) == ["blue-1", "blue-2"]


# -- checkpoints


@pytest.mark.parametrize("topic", ["kept", "topic://public/default/kept-scalable"])
def test_a_checkpoint_file_is_gone_on_from(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture, topic: str
) -> None:
    place = ("--checkpoint", str(tmp_path / "place"))
    assert produce(broker, topic, *(word for n in range(5) for word in ("-m", str(n)))) == 0
    assert consume(broker, topic, *place, "-n", "3", *EARLIEST) == 0
    assert produce(broker, topic, "-m", "5") == 0
    assert printed(capfd) == ["0", "1", "2"]
    assert consume(broker, topic, *place, "--timeout", "0.3") == 0
    assert printed(capfd) == ["3", "4", "5"]
    assert consume(broker, topic, *place, "--timeout", "0.3") == 0
    assert printed(capfd) == []
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_a_checkpoint_holds_what_was_printed_when_a_signal_came(
    broker: BrokerProcess, tmp_path: Path, capfd: Capture
) -> None:
    place = ("--checkpoint", str(tmp_path / "place"))
    assert produce(broker, "cut", "-m", "x", "-m", "y") == 0
    with spawn(broker, "consume", "cut", *place, *EARLIEST) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"x\n", b"y\n"]
        ended(process)
    assert produce(broker, "cut", "-m", "z") == 0
    assert consume(broker, "cut", *place, "-n", "1") == 0
    assert printed(capfd) == ["z"]


def test_a_file_that_is_no_checkpoint_is_told(broker: BrokerProcess, tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "place"
    path.write_bytes(b"what is this")
    assert consume(broker, "bad", "--checkpoint", str(path)) == 1
    error = capfd.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1
    assert path.read_bytes() == b"what is this"


def test_reading_may_start_at_a_time(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "timed", "-m", "x") == 0
    reader = ("-t", "checkpoint", "--timeout", "0.3", "-q")
    assert consume(broker, "timed", *reader, "--start", "2020-01-01T00:00") == 0
    assert printed(capfd) == ["x"]
    assert consume(broker, "timed", *reader, "--start", "2100-01-01T00:00") == 0
    assert printed(capfd) == []


# -- the end


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
def test_consuming_a_terminated_topic_ends_by_itself(
    broker: BrokerProcess, capfd: Capture, kind: str
) -> None:
    topic = f"ended-{kind}"
    assert produce(broker, topic, "-m", "last") == 0
    assert topics(broker, "terminate", topic) == 0
    capfd.readouterr()
    which = ("-t", kind) if kind == "checkpoint" else ("-t", kind, "-s", "s")
    assert consume(broker, topic, *which, *EARLIEST) == 0
    assert printed(capfd) == ["last"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consuming_without_an_error(broker: BrokerProcess, number: int) -> None:
    topic = f"signal-{number}"
    produce(broker, topic, "-m", "x")
    with spawn(broker, "consume", topic, "-s", "s", *EARLIEST) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 0
    assert error.startswith(b"1 message received")


def test_fewer_messages_than_asked_for_are_a_failure(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "few", "-m", "x") == 0
    assert consume(broker, "few", "-s", "s", "-n", "2", "--timeout", "0.3", *EARLIEST) == 1
    assert printed(capfd) == ["x"]


def test_a_reader_that_leaves_costs_no_message(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "left", "-m", "x" * 100, "-n", "20000") == 0
    options = ("left", "-s", "s")
    with spawn(broker, "consume", *options, *EARLIEST) as process:
        assert process.stdout is not None
        read = len(process.stdout.read(5 * 101)) // 101
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""
    capfd.readouterr()
    assert consume(broker, *options, "--timeout", "0.5", "-q") == 0
    # Some were in the pipe, acknowledged and never read; no more than it holds.
    assert 20_000 - read - 2000 < len(printed(capfd)) < 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t", "-s", "s"], "Connection refused; is a broker running there?"),
        (["t", "-s", "s", "--service-url", "http://x"], "pulsar://"),
        (["t"], "--subscription"),
        (["-s", "s"], "--namespace"),
        (["t", "--namespace", "a/b", "-s", "s"], "--namespace"),
        (["t", "-s", "s", "--filter", "a=b"], "--namespace"),
        (["t", "-s", "s", "-t", "key_shared"], "queue shares single messages"),
        (["t", "-s", "s", "-n", "-1"], "--num"),
        (["t", "-s", "s", "--timeout", "0"], "--timeout"),
        (["t", "-s", "s", "--last", "3"], "--last"),
        (["t", "-t", "checkpoint", "--start", "noon"], "--start noon"),
        (["t", "-t", "checkpoint", "-s", "s"], "--subscription"),
        (["t", "-t", "checkpoint", "--no-ack"], "--no-ack"),
        (["--namespace", "a/b", "-t", "checkpoint"], "one topic"),
        (["t", "-t", "queue", "-s", "s", "--checkpoint", "f"], "--checkpoint"),
        (["t", "--checkpoint", "/nowhere/place"], "no folder"),
        (["t", "-s", "s", "--json", "--key-separator", ":"], "--output json"),
        (["a/b", "-s", "s"], "neither a full name"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", "pulsar://127.0.0.1:1")
    assert main(["consume", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert message in error
    assert error.count("\n") == 1
