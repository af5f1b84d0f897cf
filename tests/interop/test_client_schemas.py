"""Our schemas and those of Pulsar's Python client: each reads what the other writes, through a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pulsar
import pulsar.schema as theirs
import pytest

import anabranch
from harness.broker_process import BrokerProcess

pytestmark = pytest.mark.interop

WITHIN_S = 20


class Colour(Enum):
    RED = "RED"
    BLUE = "BLUE"


@dataclass
class Line:
    item: str | None = None
    count: int | None = None


@dataclass
class Order:
    number: int | None = None
    weight: float | None = None
    paid: bool | None = None
    colour: Colour | None = None
    lines: list[Line] | None = None
    best: Line | None = None
    counts: dict[str, int] | None = None


# Their class names are part of the definitions, as ours are.
TheirLine: Any = type("Line", (theirs.Record,), {"item": theirs.String(), "count": theirs.Long()})
TheirOrder: Any = type(
    "Order",
    (theirs.Record,),
    {
        "number": theirs.Long(),
        "weight": theirs.Double(),
        "paid": theirs.Boolean(),
        "colour": theirs.CustomEnum(Colour),
        "lines": theirs.Array(TheirLine()),
        "best": TheirLine(),
        "counts": theirs.Map(theirs.Long()),
    },
)

OURS = Order(7, 1.5, True, Colour.BLUE, [Line("tea", 2)], Line("milk", 1), {"a": 1})
THEIRS = TheirOrder(
    number=7,
    weight=1.5,
    paid=True,
    colour=Colour.BLUE,
    lines=[TheirLine(item="tea", count=2)],
    best=TheirLine(item="milk", count=1),
    counts={"a": 1},
)
PAIRS = [
    pytest.param(anabranch.JsonSchema(Order), theirs.JsonSchema(TheirOrder), OURS, THEIRS, id="json"),
    pytest.param(anabranch.AvroSchema(Order), theirs.AvroSchema(TheirOrder), OURS, THEIRS, id="avro"),
    pytest.param(anabranch.StringSchema(), theirs.StringSchema(), "grün", "grün", id="string"),
    pytest.param(anabranch.BytesSchema(), theirs.BytesSchema(), b"\0", b"\0", id="bytes"),
]


@pytest.fixture
async def ours(broker: BrokerProcess) -> AsyncIterator[anabranch.Client]:
    async with anabranch.connect(broker.url) as client:
        yield client


def the_same(found: Any, sent: Any) -> bool:
    """Their records compare by value, but for records within."""
    if isinstance(sent, theirs.Record):
        return all(
            the_same(getattr(found, name), getattr(sent, name))
            for name in vars(sent)
            if not name.startswith("_")
        )
    if isinstance(sent, list):
        return len(found) == len(sent) and all(map(the_same, found, sent))
    return bool(found == sent)


@pytest.mark.parametrize(("our_schema", "their_schema", "value", "their_value"), PAIRS)
async def test_their_consumer_reads_what_our_producer_wrote(
    ours: anabranch.Client,
    client: pulsar.Client,
    topic: str,
    our_schema: Any,
    their_schema: Any,
    value: Any,
    their_value: Any,
) -> None:
    topic = f"persistent://public/default/{topic}"
    consumer = await asyncio.to_thread(client.subscribe, topic, "s", schema=their_schema)
    async with ours.producer(topic, schema=our_schema) as producer:
        await producer.send(value)
    message = await asyncio.to_thread(consumer.receive, WITHIN_S * 1000)
    assert the_same(message.value(), their_value)


@pytest.mark.parametrize(("our_schema", "their_schema", "value", "their_value"), PAIRS)
async def test_our_consumer_reads_what_their_producer_wrote(
    ours: anabranch.Client,
    client: pulsar.Client,
    topic: str,
    our_schema: Any,
    their_schema: Any,
    value: Any,
    their_value: Any,
) -> None:
    topic = f"persistent://public/default/{topic}"
    producer = await asyncio.to_thread(client.create_producer, topic, schema=their_schema)
    async with ours.queue_consumer(topic, "s", start="earliest", schema=our_schema) as consumer:
        await asyncio.to_thread(producer.send, their_value)
        message = await consumer.receive(timeout_s=WITHIN_S)
        assert message.value == value


@dataclass
class Person:
    name: str


NewPerson: Any = dataclass(
    type("Person", (), {"__annotations__": {"name": str, "age": int}, "age": 30, "__module__": __name__})
)


@pytest.mark.parametrize("scheme", ["persistent", "topic"])
async def test_older_and_newer_messages_are_read_in_order_by_a_consumer_of_either_version(
    ours: anabranch.Client, topic: str, scheme: str
) -> None:
    topic = f"{scheme}://public/default/{topic}"
    old, new = anabranch.AvroSchema(Person), anabranch.AvroSchema(NewPerson)
    for schema, value in ((old, Person("a")), (new, NewPerson("b", 5)), (old, Person("c"))):
        async with ours.producer(topic, schema=schema) as producer:
            await producer.send(value, key="k")
    for schema, expected in (
        (new, [NewPerson("a", 30), NewPerson("b", 5), NewPerson("c", 30)]),
        (old, [Person("a"), Person("b"), Person("c")]),
    ):
        async with ours.stream_consumer(
            topic, f"s{len(expected[0].__dict__)}", start="earliest", schema=schema
        ) as s:
            found = [await s.receive(timeout_s=WITHIN_S) for _ in expected]
        assert [message.value for message in found] == expected
        assert len({message.schema_version for message in found}) == 2


async def test_a_schema_that_does_not_fit_is_refused_when_producer_and_consumer_are_opened(
    ours: anabranch.Client, topic: str
) -> None:
    topic = f"topic://public/default/{topic}"
    async with ours.producer(topic, schema=Person) as producer:
        await producer.send(Person("a"))
    wrong: Any = dataclass(type("Person", (), {"__annotations__": {"name": int}}))
    other = anabranch.JsonSchema(wrong)
    with pytest.raises(anabranch.SchemaMismatch, match="name"):
        await ours.producer(topic, schema=other)
    with pytest.raises(anabranch.SchemaMismatch, match="name"):
        await ours.queue_consumer(topic, "s", start="earliest", schema=other)


async def test_a_value_that_does_not_fit_is_refused_and_nothing_is_sent(
    ours: anabranch.Client, topic: str
) -> None:
    topic = f"topic://public/default/{topic}"
    async with ours.producer(topic, schema=Person) as producer:
        with pytest.raises(anabranch.SchemaMismatch):
            await producer.send("a")  # type: ignore[arg-type]
        await producer.send(Person("b"))
    async with ours.queue_consumer(topic, "s", start="earliest", schema=Person) as consumer:
        assert (await consumer.receive(timeout_s=WITHIN_S)).value == Person("b")


@pytest.mark.parametrize("make", [anabranch.JsonSchema, anabranch.AvroSchema])
async def test_dead_letters_are_read_with_the_schema_that_their_topic_is_read_with(
    ours: anabranch.Client, topic: str, make: Any
) -> None:
    topic = f"topic://public/default/{topic}"
    async with ours.producer(topic, schema=make(Person)) as producer:
        await producer.send(Person("Ada"))
    async with ours.producer(topic, schema=make(NewPerson)) as producer:
        await producer.send(NewPerson("Bob", 40))
    dead = anabranch.DeadLetter(redeliveries_max=1)
    soon = anabranch.NackDelay(first_s=0.01, max_s=0.05)
    # A consumer of bytes sends them on with their schema, too.
    async with ours.queue_consumer(
        topic, "q", start="earliest", negative_ack=soon, dead_letter=dead
    ) as consumer:
        for _ in range(4):
            await consumer.nack(await consumer.receive(timeout_s=WITHIN_S))
        await consumer.flush()
    async with ours.queue_consumer(
        f"{topic}-q-DLQ", "s", start="earliest", schema=make(NewPerson)
    ) as letters:
        found = [(await letters.receive(timeout_s=WITHIN_S)).value for _ in range(2)]
    assert sorted(found, key=lambda one: str(one.name)) == [NewPerson("Ada", 30), NewPerson("Bob", 40)]
