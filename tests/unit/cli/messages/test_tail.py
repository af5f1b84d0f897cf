"""`anabranch tail`, and the places where `consume` may begin, against a real broker."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

import anabranch.blocking
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from anabranch.client import AvroSchema, JsonSchema, Schema
from unit.cli.running import consume, objects, produce, spawn, topics

Capture = pytest.CaptureFixture[str]


def tail(broker: BrokerProcess, *arguments: str) -> int:
    return main(["tail", *arguments, "--service-url", broker.service_url])


def printed(capfd: Capture) -> list[str]:
    return capfd.readouterr().out.splitlines()


def filled(broker: BrokerProcess, topic: str, texts: list[str], *options: str) -> None:
    assert produce(broker, topic, *options, "-q", *(word for text in texts for word in ("-m", text))) == 0


@pytest.mark.parametrize("topic", ["tailed", "topic://public/default/tailed-scalable"])
def test_the_last_messages_come_first_and_then_those_that_are_sent(
    broker: BrokerProcess, capfd: Capture, topic: str
) -> None:
    filled(broker, topic, [str(n) for n in range(30)])
    with spawn(broker, "tail", topic, "-n", "3") as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == [b"27\n", b"28\n", b"29\n"]
        filled(broker, topic, ["30"])
        assert process.stdout.readline() == b"30\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_the_last_messages_are_those_of_all_segments_through_splits(
    broker: BrokerProcess, capfd: Capture
) -> None:
    topic = "topic://public/default/tail-split"
    filled(broker, topic, ["a", "b", "c"], "--key", "one")
    topics(broker, "split", topic, "0")
    filled(broker, topic, ["d"], "--key", "one")
    filled(broker, topic, ["e"], "--key", "another")
    topics(broker, "split", topic, "1")
    capfd.readouterr()
    for count, expected in ((1, "e"), (2, "de"), (4, "bcde"), (9, "abcde")):
        assert tail(broker, topic, "--no-follow", "-n", str(count)) == 0
        assert printed(capfd) == list(expected)


def test_messages_from_long_ago_are_the_last_ones_too(broker: BrokerProcess, capfd: Capture) -> None:
    """The looks back get longer until there are enough."""
    filled(broker, "old", ["1", "2", "3"])
    assert tail(broker, "old", "--no-follow", "-n", "1000") == 0
    assert printed(capfd) == ["1", "2", "3"]


def test_an_empty_topic_has_no_last_messages(broker: BrokerProcess, capfd: Capture) -> None:
    assert topics(broker, "create", "topic://public/default/empty-tail") == 0
    capfd.readouterr()
    assert tail(broker, "topic://public/default/empty-tail", "--no-follow") == 0
    assert capfd.readouterr() == ("", "0 messages received\n")


def test_tail_makes_no_topic_and_leaves_no_subscription(broker: BrokerProcess, capfd: Capture) -> None:
    assert tail(broker, "topic://public/default/nowhere", "--no-follow") == 1
    assert "topic://public/default/nowhere does not exist" in capfd.readouterr().err
    assert tail(broker, "nowhere-classic", "--no-follow") == 1
    assert topics(broker, "list") == 0
    assert "nowhere" not in capfd.readouterr().out
    filled(broker, "topic://public/default/unwatched", ["x"])
    assert tail(broker, "topic://public/default/unwatched", "--no-follow") == 0
    capfd.readouterr()
    assert topics(broker, "subscriptions", "topic://public/default/unwatched") == 0
    assert printed(capfd) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t", "--start", "earliest", "-n", "3"], "--last and --start"),
        (["t", "--start", "earliest", "--no-follow"], "--no-follow"),
        (["t", "-n", "-1"], "--last"),
        (["t", "--start", "noon"], "SEGMENT:LEDGER:ENTRY:INDEX"),
        (["t", "--json", "-o", "table"], "--json"),
        (["t", "-o", "table", "--key-separator", ":"], "--output table"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(["tail", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# -- other places to begin at


@pytest.mark.parametrize("topic", ["placed", "topic://public/default/placed-scalable"])
def test_reading_begins_at_the_id_that_json_shows(broker: BrokerProcess, capfd: Capture, topic: str) -> None:
    filled(broker, topic, list("abcde"), "--key", "k")
    assert tail(broker, topic, "--no-follow", "--json") == 0
    shown = objects(capfd.readouterr().out)
    ids = {message["payload"]: message["id"] for message in shown}
    assert consume(broker, topic, "-t", "checkpoint", "--start", ids["c"], "-n", "3") == 0
    assert printed(capfd) == ["c", "d", "e"]
    if "scalable" not in topic:
        return
    # In a sealed segment: what was sent behind it, to other segments too, follows.
    topics(broker, "split", topic, "0")
    filled(broker, topic, ["f"], "--key", "k")
    filled(broker, topic, ["g"], "--key", "another")
    capfd.readouterr()
    assert tail(broker, topic, "--start", ids["d"], "--num", "4") == 0
    assert sorted(printed(capfd)) == ["d", "e", "f", "g"]


@pytest.mark.parametrize("kind", ["stream", "queue"])
@pytest.mark.parametrize("topic", ["since", "topic://public/default/since-scalable"])
def test_a_new_subscription_may_begin_at_a_time(
    broker: BrokerProcess, capfd: Capture, topic: str, kind: str
) -> None:
    topic = f"{topic}-{kind}"
    filled(broker, topic, ["before"])
    assert tail(broker, topic, "--no-follow", "--json") == 0
    (before,) = objects(capfd.readouterr().out)
    while time.time_ns() // 1_000_000 <= before["publishTime"]:
        pass  # A later message must have a later time.
    filled(broker, topic, ["after", "more"])
    since = datetime.fromtimestamp((before["publishTime"] + 1) / 1000).isoformat()
    capfd.readouterr()
    assert consume(broker, topic, "-s", "s", "-t", kind, "--start", since, "-n", "1") == 0
    assert printed(capfd) == ["after"]
    # The second time it goes on where it was.
    assert consume(broker, topic, "-s", "s", "-t", kind, "--start", since, "-n", "1") == 0
    assert printed(capfd) == ["more"]


def test_ids_and_namespaces_are_told_what_they_can_begin_at(broker: BrokerProcess, capfd: Capture) -> None:
    filled(broker, "no-ids", ["x"])
    capfd.readouterr()
    for arguments, message in (
        (["no-ids", "-s", "s", "--start", "0:0:0:0"], "--type checkpoint"),
        (["no-ids", "-t", "checkpoint", "--start", "7:0:0:0"], "has no segment 7"),
        (["--namespace", "public/default", "-s", "s", "--start", "2026-01-01"], "with --namespace"),
    ):
        assert consume(broker, *arguments) == 1
        assert message in capfd.readouterr().err


# -- formats


@dataclass
class Ride:
    number: int
    city: str


@pytest.mark.parametrize("schema", [AvroSchema(Ride), JsonSchema(Ride)], ids=["avro", "json"])
def test_values_are_decoded_by_the_schema_of_the_topic(
    broker: BrokerProcess, capfd: Capture, schema: Schema[Ride]
) -> None:
    topic = f"topic://public/default/rides-{type(schema).__name__}"
    with anabranch.blocking.connect(broker.service_url) as client:
        producer = client.producer(topic, schema=schema)
        producer.send(Ride(7, "Köln"), key="k", properties={"a": "b"})
        plain = schema.encode(Ride(7, "Köln"))
    assert tail(broker, topic, "--no-follow", "-q") == 0
    assert [json.loads(line) for line in printed(capfd)] == [{"number": 7, "city": "Köln"}]
    assert consume(broker, topic, "-s", "s", "--start", "earliest", "-n", "1", "--output", "json") == 0
    (shown,) = objects(capfd.readouterr().out)
    assert (shown["value"], shown["key"]) == ({"number": 7, "city": "Köln"}, "k")
    assert consume(broker, topic, "--last", "1", "-n", "1", "-o", "value", "--key-separator", "|") == 0
    assert printed(capfd)[0].startswith("k|{")
    assert tail(broker, topic, "--no-follow", "-o", "raw") == 0
    assert capfd.readouterr().out.encode() == plain + b"\n"


def test_a_table_has_a_row_for_each_message(broker: BrokerProcess, capfd: Capture) -> None:
    filled(broker, "rows", ["one\ttwo\nthree"], "--key", "customer-7", "--property", "region=eu")
    filled(broker, "rows", ["\x1b[31mred"])
    assert tail(broker, "rows", "--no-follow", "--output", "table") == 0
    head, first, second = printed(capfd)
    assert head.split() == ["PUBLISHED", "ID", "KEY", "PROPERTIES", "VALUE"]
    assert first.split()[3:] == ["customer-7", "region=eu", r"one\ttwo\nthree"]
    assert second.endswith(r"\x1b[31mred")
    assert head.index("VALUE") == first.index("one") == second.index(r"\x1b")


def test_a_message_that_does_not_fit_its_schema_is_shown_as_it_is(
    broker: BrokerProcess, capfd: Capture, tmp_path: Path
) -> None:
    topic = "topic://public/default/misfits"
    with anabranch.blocking.connect(broker.service_url) as client:
        client.producer(topic, schema=JsonSchema(Ride)).send(Ride(1, "x"))
    with anabranch.blocking.connect(broker.service_url) as client:
        reader = client.checkpoint_consumer(topic, start="earliest")
        assert reader.receive(timeout_s=30).schema_version
    filled(broker, topic, ["no json"])  # Without a schema.
    assert tail(broker, topic, "--no-follow") == 0
    assert printed(capfd)[-1] == "no json"


# -- the end


@pytest.mark.parametrize("kind", ["stream", "queue", "checkpoint"])
def test_consuming_a_terminated_scalable_topic_ends_by_itself(
    broker: BrokerProcess, capfd: Capture, kind: str
) -> None:
    topic = f"topic://public/default/over-{kind}"
    filled(broker, topic, ["first"], "--key", "k")
    assert topics(broker, "split", topic, "0") == 0
    filled(broker, topic, ["last"], "--key", "k")
    assert topics(broker, "terminate", topic) == 0
    capfd.readouterr()
    which = ("-t", kind) if kind == "checkpoint" else ("-t", kind, "-s", "s")
    assert consume(broker, topic, *which, "--start", "earliest") == 0
    assert sorted(printed(capfd)) == ["first", "last"]
