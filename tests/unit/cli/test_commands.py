"""produce, consume and topics against a real broker, and how they fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main

Capture = pytest.CaptureFixture[str]


def produce(broker: BrokerProcess, *arguments: str) -> int:
    return main(["produce", *arguments, "--service-url", broker.service_url])


def consume(broker: BrokerProcess, *arguments: str) -> int:
    return main(["consume", *arguments, "--service-url", broker.service_url])


def topics(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topics", "--admin-url", broker.admin_url, *arguments])


def spawn(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "anabranch.cli", *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_what_is_produced_is_consumed_once(
    broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert produce(broker, "once", "-m", "a", "-m", "b", "--num", "2") == 0
    assert capfdbinary.readouterr().err == b"4 messages stored\n"
    assert consume(broker, "once", "-s", "s", "-n", "3", "--initial-position", "earliest") == 0
    assert capfdbinary.readouterr().out == b"a\nb\na\n"
    assert consume(broker, "once", "-s", "s", "-n", "1") == 0
    assert capfdbinary.readouterr().out == b"b\n"


def test_json_tells_all_of_a_message(
    broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert produce(broker, "told", "-m", "grüße", "-k", "key", "-p", "a=b") == 0
    consume(broker, "told", "-s", "s", "-n", "1", "--initial-position", "earliest", "--json", "-t", "shared")
    shown = json.loads(capfdbinary.readouterr().out)
    assert (shown["payload"], shown["key"], shown["properties"]) == ("grüße", "key", {"a": "b"})
    assert shown["topic"] == "persistent://public/default/told"


def test_lines_of_standard_input_are_messages(broker: BrokerProcess) -> None:
    with spawn("produce", "lines", "--service-url", broker.service_url) as process:
        _, error = process.communicate(b"one\r\n\ntwo", timeout=30)
    assert (process.returncode, error) == (0, b"3 messages stored\n")


def test_partitioned_topics_are_spread_and_keys_stay_together(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    assert topics(broker, "create", "parted", "--partitions", "3") == 0
    assert produce(broker, "parted", "-m", "x", "--num", "6") == 0
    assert produce(broker, "parted", "-m", "y", "-k", "k", "--num", "4") == 0
    capfd.readouterr()
    assert consume(broker, "parted", "-s", "s", "-n", "10", "--initial-position", "earliest", "--json") == 0
    shown = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len({message["topic"] for message in shown if message["key"] is None}) == 3
    assert len({message["topic"] for message in shown if message["key"] == "k"}) == 1


def test_topics_are_made_listed_described_and_deleted(broker: BrokerProcess, capsys: Capture) -> None:
    assert topics(broker, "create", "public/default/made") == 0
    assert topics(broker, "create", "public/default/wide", "--partitions", "2") == 0
    assert topics(broker, "list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert "persistent://public/default/made" in listed
    assert "persistent://public/default/wide  (2 partitions)" in listed
    for topic in ("made", "wide"):
        assert topics(broker, "stats", topic) == 0
        assert json.loads(capsys.readouterr().out)["msgInCounter"] == 0
        assert topics(broker, "unload", topic) == 0
        assert topics(broker, "delete", topic) == 0
        assert topics(broker, "delete", topic) == 1
    assert "not" in capsys.readouterr().err


def test_consuming_a_terminated_topic_ends_by_itself(
    broker: BrokerProcess, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert produce(broker, "ended", "-m", "last") == 0
    assert topics(broker, "terminate", "ended") == 0
    capfdbinary.readouterr()
    assert consume(broker, "ended", "-s", "s", "--initial-position", "earliest") == 0
    assert capfdbinary.readouterr().out == b"last\n"
    assert produce(broker, "ended", "-m", "too late") == 1
    assert b"TopicTerminatedError" in capfdbinary.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_consuming_without_an_error(broker: BrokerProcess, number: int) -> None:
    topic = f"signal-{number}"
    produce(broker, topic, "-m", "x")
    options = ("-s", "s", "--initial-position", "earliest", "--service-url", broker.service_url)
    with spawn("consume", topic, *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["produce", "t", "-m", "x", "--service-url", "pulsar://127.0.0.1:1"], "Connection refused"),
        (["produce", "t", "-m", "x", "--service-url", "http://x"], "no service URL"),
        (["produce", "t", "-m", "x", "--num", "0"], "--num"),
        (["produce", "t", "--num", "2"], "--num"),
        (["produce", "a/b", "-m", "x"], "neither a full name"),
        (["produce", "t", "-m", "x", "-p", "nonsense"], "NAME=VALUE"),
        (["topics", "--admin-url", "http://127.0.0.1:1", "list"], "Connection refused"),
        (["topics", "--admin-url", "ftp://x", "list"], "no admin URL"),
        (["topics", "list", "a/b/c"], "cluster"),
        (["topics", "stats", "non-persistent://a/b/c"], "persistent://"),
        (["topics", "create", "t", "--segments", "2"], "--scalable"),
        (["topics", "create", "t", "--property", "a=b"], "--scalable"),
        (["topics", "create", "t", "--scalable", "--partitions", "2"], "--segments"),
        (["topics", "create", "t", "--scalable", "--property", "a"], "NAME=VALUE"),
        (["topics", "split", "persistent://a/b/c", "0"], "migrate"),
        (["topics", "unload", "topic://a/b/c"], "classic"),
        (["topics", "watch", "t", "--interval", "0"], "--interval"),
        (["standalone", "--config", "/nowhere/broker.conf"], "cannot read"),
        (["standalone", "--set", "maxMessageSize=tiny"], "maxMessageSize"),
        (["standalone", "--set", "maxMessageSize"], "NAME=VALUE"),
        (["standalone", "--port", "7000", "--http-port", "7000"], "both ports"),
        (["demo", "--messages", "1"], "--messages"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", "pulsar://127.0.0.1:1")
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert message in error
    assert error.count("\n") == 1


def test_help_names_every_command(capsys: Capture) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    for command in ("standalone", "produce", "consume", "topics", "demo"):
        assert command in shown
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    capsys.readouterr()
