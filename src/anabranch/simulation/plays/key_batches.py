"""A producer that makes a batch for each key, as Pulsar's clients do, on a classic topic with deduplication.

The ids of such batches interleave (key A: 0 and 2, key B: 1 and 3), and the clients name them in different ways. All of
them repeat the same batches: a batch without a receipt when the connection breaks is sent again unchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

from anabranch.client.errors import ConnectionLost
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.pool import Connections
from anabranch.model.names import TopicName
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, encode_send

C = pb.BaseCommand

TOPIC: Final = "persistent://public/default/keyed"
KEYS: Final = ("A", "B", "C")
ANSWER_MAX_S: Final = 15.0


class Naming(Enum):
    """How a batch of several ids names them."""

    FIRST = "its first id alone: the C++ client, and so the Python wheel"
    LAST = "its last id alone: the Java client"
    BOTH = "its first and its highest: what the protocol means"


class KeyBatch(NamedTuple):
    ids: tuple[int, ...]
    key: str
    naming: Naming

    @property
    def sequence_id(self) -> int:
        return self.ids[-1] if self.naming is Naming.LAST else self.ids[0]

    @property
    def last_named(self) -> int:
        return self.ids[0] if self.naming is Naming.FIRST else self.ids[-1]

    def frame(self, producer: str, producer_id: int, now_ms: int) -> bytes:
        metadata = pb.MessageMetadata(
            producer_name=producer, sequence_id=self.sequence_id, publish_time=now_ms, partition_key=self.key
        )
        fields: dict[str, Any] = {}
        if self.naming is Naming.BOTH:
            fields["highest_sequence_id"] = metadata.highest_sequence_id = self.ids[-1]
        entry = build_batch(
            metadata,
            [
                (
                    pb.SingleMessageMetadata(partition_key=self.key, sequence_id=number),
                    workload.payload_of(producer, number),
                )
                for number in self.ids
            ],
        )
        return encode_send(
            entry,
            producer_id=producer_id,
            sequence_id=self.sequence_id,
            num_messages=len(self.ids),
            **fields,
        )


class BatchSender:
    """The producer's part of a connection: keeps the answers in the order in which they came."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        self.answers.put_nowait((kind, body))

    def lost(self, error: Exception) -> None:
        self.answers.put_nowait((-1, error))


class KeyBatches(Play):
    kind: ClassVar = TroubleKind.KEY_BATCHES

    async def prepare(self) -> None:
        await self.make_subscription(TopicName.parse(TOPIC), "keyed-stream", keeps_order=True)

    def start(self) -> None:
        for naming in self.chance.sample(list(Naming), 2):
            name = f"keyed-{naming.name.lower()}"
            self.client(name, self._produce(name, naming))
        self.read("keyed-stream", "keyed-reader", TOPIC, is_stream=True)

    async def _produce(self, name: str, naming: Naming) -> None:
        chance, world = self.chance, self.world
        rounds = chance.randint(4, 10)
        sent = 0
        pending: deque[KeyBatch] = deque()
        while rounds or pending:
            connections = Connections(world.cluster.service_url)
            try:
                connection, sender = await self._open(connections, name)
                for batch in pending:
                    connection.write_now(batch.frame(name, sender.number, world.loop.now_ms()))
                while rounds or pending:
                    if rounds and len(pending) < 2 * len(KEYS):
                        rounds -= 1
                        batches = self._round(naming, sent)
                        for number, key in sorted((n, batch.key) for batch in batches for n in batch.ids):
                            self.history.sent(name, number, key)
                        sent += sum(len(batch.ids) for batch in batches)
                        pending.extend(batches)
                        for batch in batches:
                            connection.write_now(batch.frame(name, sender.number, world.loop.now_ms()))
                    if pending:
                        await self._answer(name, sender, pending)
                    if not world.is_calm and chance.random() < 0.5:
                        await asyncio.sleep(chance.expovariate(0.5 / world.pace_s))
            except workload.EXPECTED as error:
                world.note(f"{name} connects again: {error!r}")
                await asyncio.sleep(chance.uniform(0.05, 0.3))
            finally:
                connections.abort()

    def _round(self, naming: Naming, first: int) -> list[KeyBatch]:
        """The batches that gather until a client flushes: one for each key, in the order of the last ids that they
        name."""
        ids: dict[str, list[int]] = {}
        for number in range(first, first + self.chance.randint(2, 12)):
            ids.setdefault(self.chance.choice(KEYS), []).append(number)
        batches = [KeyBatch(tuple(found), key, naming) for key, found in ids.items()]
        return sorted(batches, key=lambda batch: batch.last_named)

    async def _open(self, connections: Connections, name: str) -> tuple[ClientConnection, BatchSender]:
        async with asyncio.timeout(ANSWER_MAX_S):
            connection = await connections.owner(TOPIC)
            sender = connection.attach(PartKind.PRODUCER, BatchSender)
            await connection.request(
                C.PRODUCER,
                "producer",
                topic=TOPIC,
                producer_id=sender.number,
                producer_name=name,
                user_provided_producer_name=True,
            )
        return connection, sender

    async def _answer(self, name: str, sender: BatchSender, pending: deque[KeyBatch]) -> None:
        """Reads one answer and judges it as clients do: a receipt of something else ends the connection."""
        async with asyncio.timeout(ANSWER_MAX_S):
            kind, body = await sender.answers.get()
        if kind != C.SEND_RECEIPT:
            raise ConnectionLost(f"the producer is not attached any more: {body}")
        batch = pending[0]
        if body.sequence_id < batch.sequence_id:
            return
        if body.highest_sequence_id > batch.ids[-1]:
            self.history.receipt_beyond(name, body.highest_sequence_id, batch.ids[-1])
        if body.sequence_id > batch.sequence_id or body.highest_sequence_id > batch.ids[-1]:
            raise ConnectionLost(
                f"a receipt of {body.sequence_id} up to {body.highest_sequence_id} for {batch}"
            )
        pending.popleft()
        for number in batch.ids:
            self.history.receipt(name, number)
