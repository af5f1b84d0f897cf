"""Topics as Pulsar's client sees them: creation, lists, patterns, the end of a topic, schemas."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String, StringSchema

from harness.broker_process import BrokerProcess, RestFailed, rest_path, until
from interop.conftest import Connect
from interop.receiving import WAIT_MS, assert_silent, numbered, payloads, receive, send_all

pytestmark = pytest.mark.interop


# -- creation and lists


def test_topics_are_not_created_by_use_where_that_is_switched_off(tmp_path: Path, connect: Connect) -> None:
    with BrokerProcess(tmp_path, {"allowAutoTopicCreation": False}) as strict:
        client = connect(strict)
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer("t")
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe("t", "s")
        strict.put(rest_path("t"))
        client.create_producer("t").send(b"m")


def test_an_unknown_namespace_is_an_error(client: pulsar.Client) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://public/nowhere/t")


def test_a_consumer_of_several_topics_gets_all_of_them(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{n}" for n in range(3)]
    consumer = client.subscribe(topics, "s")
    for name in topics:
        send_all(client.create_producer(name), numbered(5))
    got = receive(consumer, 15)
    assert {m.topic_name() for m in got} == {f"persistent://public/default/{name}" for name in topics}


def test_a_pattern_finds_every_topic_that_matches(broker: BrokerProcess, client: pulsar.Client) -> None:
    broker.put("namespaces/public/patterns")
    space = "persistent://public/patterns"
    broker.put("persistent/public/patterns/a-parts/partitions", 2)
    producers = [client.create_producer(f"{space}/{name}") for name in ("other", "a-1", "a-2", "a-parts")]
    # This client looks again after a minute only, so topics that come later are left to another test.
    consumer = client.subscribe(re.compile("public/patterns/a-.*"), "s")
    for producer in producers:
        producer.send(producer.topic().removeprefix(f"{space}/").encode())
    assert sorted(payloads(consumer, 3)) == [b"a-1", b"a-2", b"a-parts"]
    assert_silent(consumer)


def test_rest_requests_that_offer_http_2_keep_their_body(broker: BrokerProcess, topic: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=15)
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAA"}
    connection.request("PUT", f"/admin/v2/{rest_path(topic)}/partitions", "3", headers)
    assert connection.getresponse().status < 300
    connection.close()
    assert broker.get(f"{rest_path(topic)}/partitions")["partitions"] == 3


# -- ends


def test_a_terminated_topic_is_read_to_its_end_and_takes_no_more(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    send_all(producer, numbered(5))
    broker.post(f"{rest_path(topic)}/terminate")
    with pytest.raises((pulsar.TopicTerminated, pulsar.AlreadyClosed)):
        producer.send(b"late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert payloads(consumer, 5) == numbered(5)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(5)] == numbered(5)
    assert not reader.has_message_available()


def test_an_unloaded_topic_comes_back_for_its_clients(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    send_all(producer, numbered(5))
    assert payloads(consumer, 3) == numbered(3)
    # The client collects acknowledgements for a moment before it sends them.
    until(lambda: broker.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 2)
    broker.put(f"{rest_path(topic)}/unload")
    send_all(producer, numbered(5, start=5))
    assert payloads(consumer, 7) == numbered(7, start=3)


def test_a_topic_in_use_is_deleted_only_by_force(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"m")
    with pytest.raises(RestFailed, match="412"):
        broker.rest("DELETE", rest_path(topic))
    producer.close()
    broker.rest("DELETE", rest_path(topic))
    assert rest_path(topic).replace("persistent/", "persistent://") not in broker.get(
        "persistent/public/default"
    )


# -- schemas


class Person(Record):  # type: ignore[misc]  # The client has no type information.
    name = String()
    age = Integer()


class PersonWithTown(Record):  # type: ignore[misc]
    name = String()
    age = Integer()
    town = String(default="?", required_default=True)


class Misfit(Record):  # type: ignore[misc]
    name = Integer()
    age = Integer()


def test_schemas_are_versioned_and_travel_with_messages(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Person))
    client.create_producer(topic, schema=JsonSchema(Person)).send(Person(name="a", age=1))
    client.create_producer(topic, schema=JsonSchema(PersonWithTown)).send(PersonWithTown(name="b", age=2))
    first, second = receive(consumer, 2)
    assert (first.value().name, second.value().name) == ("a", "b")
    assert first.schema_version() != second.schema_version()
    shown = broker.get(f"schemas/public/default/{topic}/schema")
    assert (shown["version"], shown["type"]) == (1, "JSON")


def test_schemas_that_do_not_fit_are_refused(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(Person))
    for schema in (JsonSchema(Misfit), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=schema)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=schema)
    producer.send(Person(name="a", age=1))
    # Without a schema of its own, anybody may read bytes.
    consumer = client.subscribe(topic, "bytes", initial_position=pulsar.InitialPosition.Earliest)
    assert payloads(consumer, 1)[0].startswith(b"{")


def test_operators_ask_for_compatibility_and_choose_the_rule(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    broker.put("namespaces/public/rules")
    topic = "persistent://public/rules/t"
    client.create_producer(topic, schema=JsonSchema(Person))
    misfit = {"type": "JSON", "schema": json.dumps(Misfit.schema()), "properties": {}}
    path = "schemas/public/rules/t"
    assert not broker.post(f"{path}/compatibility", misfit)["compatibility"]
    with pytest.raises(RestFailed, match="409"):
        broker.post(f"{path}/schema", misfit)
    broker.put("namespaces/public/rules/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    assert broker.post(f"{path}/compatibility", misfit)["compatibility"]
    client.create_producer(topic, schema=JsonSchema(Misfit)).send(Misfit(name=1, age=2))
    assert broker.get(f"{path}/schema")["version"] == 1
