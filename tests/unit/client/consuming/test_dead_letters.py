"""Dead letters arrive as they were, and none gets lost between its topic and theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from anabranch.client.consuming.core.redelivery import DeadLetter
from anabranch.client.consuming.dead_letters import SENDERS_MAX, DeadLetters
from anabranch.client.errors import BadArgument, RequestRefused, TopicDeleted
from anabranch.client.message import EntryOrigin, Message, read_entry
from anabranch.client.schema.schemas import Schema
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message


class Sender:
    """Fails with whatever it is told to, from then on."""

    def __init__(self, schema: Schema[bytes] | None = None) -> None:
        self.schema = schema
        self.error: Exception | None = None
        self.sent: list[tuple[Any, str | bytes | None]] = []
        self.is_closed = False

    async def send(
        self,
        value: Any,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        ordering_key: bytes | None = None,
    ) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.sent.append((value, key))

    async def close(self) -> None:
        self.is_closed = True


class Bench:
    def __init__(self) -> None:
        self.senders: list[Sender] = []
        self.settled: list[tuple[bytes, bool]] = []
        self.schemas: dict[bytes, pb.Schema] = {}
        self.refuses_schemas = False
        self.letters = DeadLetters(DeadLetter(1), "t", "s", self._make, self._find_schema, self._settled)

    async def _make(self, topic: str, *, schema: Schema[bytes] | None) -> Sender:
        if schema is not None and self.refuses_schemas:
            raise RequestRefused(pb.IncompatibleSchema, "it has another")
        self.senders.append(Sender(schema))
        return self.senders[-1]

    async def _find_schema(self, message: Message) -> pb.Schema | None:
        return self.schemas.get(message.schema_version)

    def _settled(self, message: Message, is_stored: bool) -> None:
        self.settled.append((message.payload, is_stored))

    async def send(self, payload: bytes, **fields: Any) -> None:
        self.letters.send(message_of(payload, **fields))
        await self.letters.flush()


def message_of(payload: bytes, **fields: Any) -> Message:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    body = pb.CommandMessage(consumer_id=0, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    (message,) = read_entry(EntryOrigin("t"), body, memoryview(build_message(metadata, payload))).messages()
    return message


async def test_a_null_stays_a_null_and_a_key_that_is_no_base64_stays_as_it_was() -> None:
    bench = Bench()
    await bench.send(b"", null_value=True, partition_key="k")
    await bench.send(b"x", partition_key="a", partition_key_b64_encoded=True)
    assert bench.senders[0].sent == [(None, "k"), (b"x", b"a")]
    assert bench.settled == [(b"", True), (b"x", True)]
    await bench.letters.close()


@pytest.mark.parametrize("error", [TopicDeleted("it was deleted"), RuntimeError("a bug in a plug-in")])
async def test_a_sender_that_is_over_is_replaced_and_the_message_comes_again(error: Exception) -> None:
    bench = Bench()
    await bench.send(b"0")
    bench.senders[0].error = error
    for payload in (b"1", b"2"):
        bench.letters.send(message_of(payload))
    await bench.letters.flush()
    assert bench.settled == [(b"0", True), (b"1", False), (b"2", False)]
    await bench.send(b"1")
    assert bench.settled[-1] == (b"1", True)
    await bench.letters.close()
    assert [one.is_closed for one in bench.senders] == [True, True]


async def test_a_message_that_no_sender_takes_costs_no_sender() -> None:
    bench = Bench()
    await bench.send(b"0")
    bench.senders[0].error = BadArgument("too large")
    await bench.send(b"1")
    assert bench.settled[-1] == (b"1", False)
    await bench.send(b"2")
    assert len(bench.senders) == 1
    await bench.letters.close()


def schemas_of(bench: Bench) -> list[pb.Schema | None]:
    return [None if one.schema is None else one.schema.info() for one in bench.senders]


async def test_each_version_of_the_schema_is_kept_by_a_sender_of_its_own() -> None:
    bench = Bench()
    bench.schemas = {b"1": pb.Schema(name="old"), b"2": pb.Schema(name="new")}
    for version in (b"1", b"2", b"1", b"gone"):
        await bench.send(version, schema_version=version)
    await bench.send(b"plain")
    assert schemas_of(bench) == [pb.Schema(name="old"), pb.Schema(name="new"), None, None]
    assert [payload for payload, _ in bench.senders[0].sent] == [b"1", b"1"]
    await bench.letters.close()
    assert all(one.is_closed for one in bench.senders)


async def test_a_topic_of_dead_letters_that_refuses_the_schema_gets_bytes() -> None:
    bench = Bench()
    bench.schemas = {b"1": pb.Schema(name="old")}
    bench.refuses_schemas = True
    await bench.send(b"x", schema_version=b"1")
    assert (schemas_of(bench), bench.settled) == ([None], [(b"x", True)])
    await bench.letters.close()


async def test_versions_that_the_topic_never_had_do_not_make_senders_without_end() -> None:
    bench = Bench()
    for number in range(SENDERS_MAX + 5):
        await bench.send(b"x", schema_version=b"%d" % (number + 1))
    assert len(bench.senders) == SENDERS_MAX + 1
    assert all(is_stored for _, is_stored in bench.settled)
    await bench.letters.close()
