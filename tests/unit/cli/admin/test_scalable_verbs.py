"""`anabranch topics`, `subscriptions` and `topic-policies` on scalable topics, against a real broker."""

from __future__ import annotations

import json

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from unit.cli.running import consume, produce, topics

Capture = pytest.CaptureFixture[str]


def subscriptions(broker: BrokerProcess, *arguments: str) -> int:
    return main(["subscriptions", "--admin-url", broker.admin_url, *arguments])


def policies(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topic-policies", "--admin-url", broker.admin_url, *arguments])


def filled(broker: BrokerProcess, name: str) -> str:
    """Six messages in two sealed and four active segments."""
    topic = f"topic://public/default/{name}"
    assert topics(broker, "create", topic, "--segments", "2") == 0
    assert subscriptions(broker, "create", topic, "s", "--type", "queue", "--start", "earliest") == 0
    for n in range(3):
        assert produce(broker, topic, "-q", "-m", f"m{n}", "--key", str(n), "--no-batching") == 0
    assert topics(broker, "split", topic, "0") == 0
    assert topics(broker, "split", topic, "1") == 0
    for n in range(3, 6):
        assert produce(broker, topic, "-q", "-m", f"m{n}", "--key", str(n), "--no-batching") == 0
    return topic


def values(output: str) -> list[str]:
    return [line.split()[-1] for line in output.splitlines()]


def test_messages_are_peeked_found_and_read_by_id(broker: BrokerProcess, capfd: Capture) -> None:
    topic = filled(broker, "verb-peek")
    capfd.readouterr()
    assert topics(broker, "peek", topic, "-n", "9", "--start", "earliest") == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == [f"m{n}" for n in range(6)]
    # A name without a domain is the scalable topic's.
    assert topics(broker, "message", "verb-peek", lines[4].split()[0]) == 0
    assert values(capfd.readouterr().out) == ["m4"]
    assert topics(broker, "last-message-id", topic, "--json") == 0
    last = json.loads(capfd.readouterr().out)
    assert topics(broker, "last-message-id", topic) == 0
    assert len(capfd.readouterr().out.splitlines()) == len(last)
    assert topics(broker, "find", topic, "0") == 0
    assert capfd.readouterr().out.startswith("segment 0: ")
    assert topics(broker, "find", topic, "2100-01-01T00:00") == 0
    assert "no message that was published then or later" in capfd.readouterr().out
    assert topics(broker, "message", topic, "what") == 1
    assert "LEDGER:ENTRY" in capfd.readouterr().err


def test_subscriptions_are_looked_into_skipped_and_expired(broker: BrokerProcess, capfd: Capture) -> None:
    topic = filled(broker, "verb-skip")
    capfd.readouterr()

    def left() -> list[str]:
        capfd.readouterr()
        code = subscriptions(broker, "peek", topic, "s", "-n", "9")
        found = values(capfd.readouterr().out)
        assert code == (0 if found else 1)
        return found

    assert subscriptions(broker, "skip", topic, "s", "4") == 0
    assert left() == ["m4", "m5"]
    assert subscriptions(broker, "analyze-backlog", topic, "s", "--json") == 0
    assert json.loads(capfd.readouterr().out)["messages"] == 2
    assert subscriptions(broker, "analyze-backlog", topic, "s") == 0
    summary, heading, *rows = capfd.readouterr().out.splitlines()
    assert summary == "messages that wait: 2, in entries: 2"
    assert heading.split() == ["SEGMENT", "ENTRIES", "MESSAGES", "FIRST", "LAST"]
    # Segments in which nothing waits have no row.
    assert sum(int(row.split()[2]) for row in rows) == 2
    assert all(row.split()[1] != "0" for row in rows)
    assert subscriptions(broker, "reset", topic, "s", "earliest") == 0
    assert subscriptions(broker, "expire", topic, "s", "1h") == 0
    assert left() == [f"m{n}" for n in range(6)]
    assert subscriptions(broker, "skip-all", topic, "s") == 0
    assert left() == []


def test_a_subscription_begins_where_it_is_told_to(broker: BrokerProcess, capfd: Capture) -> None:
    topic = filled(broker, "verb-start")
    assert subscriptions(broker, "create", topic, "news") == 0
    assert subscriptions(broker, "create", topic, "since", "--start", "2020-01-01T00:00") == 0
    capfd.readouterr()
    assert subscriptions(broker, "peek", topic, "news") == 1
    assert subscriptions(broker, "peek", topic, "since", "-n", "9") == 0
    assert len(values(capfd.readouterr().out)) == 6
    # Made again, it would lose what it has not read.
    assert subscriptions(broker, "create", topic, "since") == 1
    assert "has a subscription since already" in capfd.readouterr().err
    assert subscriptions(broker, "create", topic, "odd", "--start", "3:4") == 1
    assert "in each segment" in capfd.readouterr().err


def test_a_topic_is_emptied_and_ended(broker: BrokerProcess, capfd: Capture) -> None:
    topic = filled(broker, "verb-end")
    assert topics(broker, "truncate", topic) == 0
    assert produce(broker, topic, "-q", "-m", "last") == 0
    capfd.readouterr()
    assert topics(broker, "terminate", topic) == 0
    assert "segment " in capfd.readouterr().out
    assert produce(broker, topic, "-m", "x") == 1
    assert "was terminated and accepts no more messages" in capfd.readouterr().err
    assert consume(broker, topic, "-s", "s", "-t", "queue", "-n", "1", "--timeout", "30") == 0
    assert capfd.readouterr().out == "last\n"
    assert topics(broker, "split", topic, "2") == 1
    assert "was terminated" in capfd.readouterr().err


def test_policies_are_those_of_the_scalable_topic(broker: BrokerProcess, capfd: Capture) -> None:
    topic = filled(broker, "verb-policies")
    assert policies(broker, "set-retention", topic, "--time", "1h", "--size", "10M") == 0
    assert policies(broker, "set-message-ttl", "verb-policies", "90s") == 0
    capfd.readouterr()
    assert policies(broker, "get-retention", topic, "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"retentionTimeInMinutes": 60, "retentionSizeInMB": 10}
    assert policies(broker, "get-message-ttl", topic) == 0
    assert capfd.readouterr().out == "90\n"
    assert policies(broker, "set-compaction-threshold", topic, "1G") == 1
    assert "scalable topics are not compacted" in capfd.readouterr().err
    assert (
        policies(broker, "set-retention", "topic://public/default/none", "--time", "1h", "--size", "1M") == 1
    )
    assert "topic://public/default/none" in capfd.readouterr().err
