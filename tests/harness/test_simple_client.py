"""The plain client against a scripted broker: receipts, refusals, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from anabranch.client import RequestRefused
from anabranch.client.errors import ConnectionLost
from anabranch.client.message_id import MessageId
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch
from anabranch.wire.connection import Connection, Role
from anabranch.wire.encode import encode_command, encode_payload_header
from harness.simple_client import Client

C = pb.BaseCommand


class ScriptedBroker:
    """Accepts every lookup, producer and subscription; `act` sees all other frames."""

    def __init__(self) -> None:
        self.url = ""
        self.act: Callable[[tuple[Any, ...]], None] = lambda frame: None
        self.writer: asyncio.StreamWriter
        self.seen: list[int] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        wire = Connection(Role.BROKER, now=0)
        while data := await reader.read(65536):
            for frame in wire.feed(data, 0):
                self.seen.append(frame[0])
                if frame[0] == C.CONNECT:
                    writer.write(wire.accept("script"))
                elif not self._answer(frame):
                    self.act(frame)
        writer.close()

    def send(self, kind: Any, field: str, **fields: Any) -> None:
        command = C(type=kind)
        getattr(command, field).MergeFrom(type(getattr(command, field))(**fields))
        self.writer.write(encode_command(command))

    def _answer(self, frame: tuple[Any, ...]) -> bool:
        kind, command = frame[0], frame[1]
        if kind == C.PARTITIONED_METADATA:
            number = command.partitionMetadata.request_id
            self.send(
                C.PARTITIONED_METADATA_RESPONSE,
                "partitionMetadataResponse",
                request_id=number,
                partitions=0,
                response=0,
            )
        elif kind == C.LOOKUP:
            number = command.lookupTopic.request_id
            self.send(
                C.LOOKUP_RESPONSE,
                "lookupTopicResponse",
                request_id=number,
                response=1,
                brokerServiceUrl=self.url,
            )
        elif kind == C.PRODUCER:
            number = command.producer.request_id
            self.send(
                C.PRODUCER_SUCCESS,
                "producer_success",
                request_id=number,
                producer_name="p",
                last_sequence_id=-1,
            )
        elif kind == C.SUBSCRIBE:
            self.send(C.SUCCESS, "success", request_id=command.subscribe.request_id)
        else:
            return False
        return True


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    script = ScriptedBroker()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield script
    server.close()


async def test_receipts_answer_their_messages_in_order(broker: ScriptedBroker) -> None:
    def receipt(frame: tuple[Any, ...]) -> None:
        if frame[0] == C.SEND:
            at = pb.MessageIdData(ledgerId=7, entryId=frame[2])
            broker.send(
                C.SEND_RECEIPT, "send_receipt", producer_id=frame[1], sequence_id=frame[2], message_id=at
            )

    broker.act = receipt
    async with Client(broker.url) as client:
        producer = await client.producer("t")
        receipts = [await producer.send(b"x") for _ in range(5)]
        await producer.flush()
        assert [receipt.result() for receipt in receipts] == [(7, i) for i in range(5)]


async def test_a_send_error_fails_every_message_without_a_receipt(broker: ScriptedBroker) -> None:
    def refuse(frame: tuple[Any, ...]) -> None:
        if frame[0] == C.SEND and frame[2] == 1:
            broker.send(
                C.SEND_ERROR,
                "send_error",
                producer_id=frame[1],
                sequence_id=1,
                error=pb.ChecksumError,
                message="bad",
            )

    broker.act = refuse
    async with Client(broker.url) as client:
        producer = await client.producer("t")
        first, second = await producer.send(b"x"), await producer.send(b"y")
        for receipt in (first, second):
            with pytest.raises(RequestRefused, match="ChecksumError: bad"):
                await receipt
        with pytest.raises(RequestRefused):
            await producer.send(b"z")
        with pytest.raises(RequestRefused):
            await producer.flush()


async def test_a_lost_connection_fails_what_waits_on_it(broker: ScriptedBroker) -> None:
    broker.act = lambda frame: broker.writer.close()
    async with Client(broker.url) as client:
        consumer = await client.consumer("t", "s")
        with pytest.raises(ConnectionLost):
            await consumer.receive()
        with pytest.raises(ConnectionLost):
            await consumer.close()


async def test_garbage_from_a_broker_costs_the_connection_and_nothing_else(broker: ScriptedBroker) -> None:
    async with Client(broker.url) as client:
        consumer = await client.consumer("t", "s")
        broker.writer.write(b"\x7f\xff\xff\xff garbage")
        with pytest.raises(AnabranchError):
            await consumer.receive()


async def test_a_batch_is_taken_apart_and_acknowledged_whole(broker: ScriptedBroker) -> None:
    acked: list[Any] = []

    def act(frame: tuple[Any, ...]) -> None:
        if frame[0] == C.FLOW:
            metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
            singles = [
                (pb.SingleMessageMetadata(payload_size=0, partition_key="k"), b"%d" % i) for i in range(3)
            ]
            entry = build_batch(metadata, singles)
            message = pb.CommandMessage(
                consumer_id=frame[1].flow.consumer_id, message_id=pb.MessageIdData(ledgerId=1, entryId=2)
            )
            header = encode_payload_header(C(type=C.MESSAGE, message=message), len(entry))
            broker.writer.write(header + entry)
        elif frame[0] == C.ACK:
            acked.append(frame[1].ack.message_id[0])
            number = frame[1].ack.request_id
            broker.send(
                C.ACK_RESPONSE, "ackResponse", consumer_id=frame[1].ack.consumer_id, request_id=number
            )

    broker.act = act
    async with Client(broker.url) as client:
        consumer = await client.consumer("t", "s")
        messages = [await consumer.receive() for _ in range(3)]
        assert [(m.payload, m.key, m.id) for m in messages] == [
            (b"%d" % i, "k", MessageId(-1, 1, 2, i)) for i in range(3)
        ]
        for message in messages:
            assert acked == []
            await consumer.ack(message)
        assert [(m.ledgerId, m.entryId) for m in acked] == [(1, 2)]


async def test_a_broker_that_is_not_there_is_told_plainly() -> None:
    async with Client("pulsar://127.0.0.1:1") as client:
        with pytest.raises(ConnectionLost, match="Connection refused"):
            await client.producer("t")
