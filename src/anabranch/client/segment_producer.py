"""One segment's part of a producer: attached where the segment is served, again after each loss, until it is sealed."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from anabranch.client.connection import ClientConnection, PartKind
from anabranch.client.connections import Backoff, Connections, Trouble, ask, troubled
from anabranch.client.entries import Entries, Target
from anabranch.client.errors import (
    AttemptDropped,
    AttemptInDoubt,
    ConnectionLost,
    RequestRefused,
    WriteDecided,
    refusal,
)
from anabranch.client.lanes import Lanes
from anabranch.client.layout_watch import LayoutWatch
from anabranch.client.message import signed
from anabranch.client.reader_place import OURS
from anabranch.client.runs import Run
from anabranch.client.writes import Write
from anabranch.errors import AnabranchError
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ASK_SEQUENCE_ID
from anabranch.wire.frames import MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)

C = pb.BaseCommand

# A message refused with these would be refused again; the others after it need not suffer.
MESSAGE_ERRORS: Final = frozenset({pb.NotAllowedError, pb.ChecksumError, pb.IncompatibleSchema})
# Coming back will not help: the whole producer fails.
FINAL_ERRORS: Final = frozenset(
    {
        pb.AuthenticationError,
        pb.AuthorizationError,
        pb.ProducerFenced,
        pb.IncompatibleSchema,
        pb.NotAllowedError,
    }
)


# The same for a hidden producer.
HIDDEN_ERRORS: Final = (WriteDecided, AttemptDropped)


class Attaching(NamedTuple):
    """What a producer says of itself to every segment."""

    access_mode: int = pb.Shared
    schema: pb.Schema | None = None
    properties: tuple[tuple[str, str], ...] = ()
    is_encrypted: bool = False
    write: Write | None = None

    def fields(self, topic_epoch: int | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"producer_access_mode": self.access_mode, "encrypted": self.is_encrypted}
        if self.schema is not None:
            fields["schema"] = self.schema
        told = self.properties if self.write is None else (*self.properties, *self.write.metadata)
        if told:
            fields["metadata"] = [pb.KeyValue(key=name, value=value) for name, value in told]
        if topic_epoch is not None and self.access_mode != pb.Shared:
            fields["topic_epoch"] = topic_epoch
        return fields


class Owner(Protocol):
    """The producer that this is a part of. It holds the lanes."""

    name: str
    watch: LayoutWatch
    connections: Connections
    chance: random.Random
    lanes: Lanes
    entries: Entries
    attaching: Attaching
    topics_written: set[str]
    trouble: Trouble

    def settled(self, segment: SegmentId, upto: int, ledger: int, entry: int) -> None:
        """The segment holds everything up to a sequence id; the last run of it lies at that place, if one is given."""

    def refused(self, segment: SegmentId, number: int, error: Exception) -> None:
        """The segment will not have the run that begins with that number."""

    def attached(self, segment: SegmentId) -> None:
        """What is being gathered for the segment may leave."""

    def sealed(self, segment: SegmentId) -> None:
        """What is left in the segment's lane was not stored there, as far as can be known."""

    def failed(self, error: Exception) -> None:
        """Nothing can be sent any more."""


class SegmentProducer:
    """The producer attached to one segment. It sends what its lane holds, in order, until the segment is sealed."""

    def __init__(self, owner: Owner, segment: SegmentId) -> None:
        self._owner = owner
        self._segment = segment
        self._topic = owner.watch.topic_of(segment)
        self._backoff = Backoff(owner.chance)
        self._attached: _Attached | None = None
        self._epoch = 0
        self._topic_epoch: int | None = None
        # Of this attachment: runs not yet written, and runs written of which so many receipts are owed.
        self._unsent: deque[Run] = deque()
        self._flying: deque[tuple[Run, int]] = deque()
        self._is_held_back = False
        # The highest sequence id that was sent over a connection which is lost: up to it, receipts may be lost too.
        self._doubt = -1
        self._sent = -1
        self._last_known: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._is_asked_for = False
        self._opening: asyncio.Task[None] | None = None

    async def last_sequence_id(self) -> int:
        """What the segment held of this producer when it was first attached, or holds since it is sealed."""
        self._is_asked_for = True
        self.open()
        return await asyncio.shield(self._last_known)

    @property
    def is_attached(self) -> bool:
        return self._attached is not None

    def send(self, run: Run) -> None:
        """The run is in the lane; it leaves now, or when the producer is attached, or the socket takes more."""
        if self._attached is None:
            self.open()
        else:
            self._unsent.append(run)
            self._pump()

    def forget(self) -> None:
        """The lane was given up: receipts that still come are of nobody."""
        self._unsent.clear()
        self._flying.clear()

    def _pump(self) -> None:
        while self._unsent and self._attached is not None and not self._is_held_back:
            connection = self._attached.connection
            if not connection.is_writable and not connection.is_closed:
                self._is_held_back = True
                connection.when_writable(partial(self._go_on, self._attached))
                return
            self._write(self._attached, self._unsent.popleft())

    def _go_on(self, attached: _Attached) -> None:
        if attached is self._attached:
            self._is_held_back = False
            self._pump()

    def _write(self, attached: _Attached, run: Run) -> None:
        try:
            frames = self._owner.entries.frames(run, attached.target)
        except (
            Exception
        ) as error:  # What users plug in may raise anything; the messages behind it need not suffer.
            self._owner.refused(self._segment, run.first, error)
            return
        self._sent = max(self._sent, run.last)
        self._owner.topics_written.add(self._topic)
        self._flying.append((run, len(frames)))
        # A connection that is closing says so soon, and then the lane is sent again.
        if not attached.connection.is_closed:
            for pieces in frames:
                attached.connection.write_pieces(pieces)

    # -- attaching

    def open(self) -> None:
        """Starts attaching, if it is not attached."""
        if self._opening is None and self._attached is None:
            self._opening = asyncio.create_task(self._or_fail(self._attach))  # Awaited by `close`.

    async def _or_fail(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:
            # Ours to repair; until then the application hears of it, rather than wait for receipts that never come.
            log.exception("the producer on %s ends", self._topic)
            self._give_up(error)

    async def _attach(self) -> None:
        """Until it is attached, or the segment is found to be sealed."""
        hint = self._owner.watch.url_of(self._segment)
        connection = None
        while True:
            try:
                connection = await self._connect(hint)
                await self._attach_on(connection)
                break
            except RequestRefused as refused:
                if refused.error == pb.TopicTerminatedError:
                    await self._settle_doubt()
                    break
                if refused.error in FINAL_ERRORS or isinstance(refused, HIDDEN_ERRORS):
                    self._give_up(_explained(refused, self._topic))
                    break
                if self._is_over(refused.error, connection):
                    self._learn(-1)
                    self._owner.sealed(self._segment)
                    break
                log.debug("producer on %s refused, tried again: %s", self._topic, refused)
                self._troubled(refused)
            except AnabranchError as error:
                log.debug("producer on %s tried again: %s", self._topic, error)
                self._troubled(error)
            hint = ""
            await self._backoff.wait()
        self._opening = None

    async def _connect(self, hint: str) -> ClientConnection:
        """The broker the watch named, if it did; else the one a lookup finds."""
        connections = self._owner.connections
        return await (connections.to(hint) if hint else connections.owner(self._topic))

    async def _attach_on(self, connection: ClientConnection) -> None:
        attached = connection.attach(PartKind.PRODUCER, lambda number: _Attached(self, connection, number))
        self._epoch += 1
        try:
            answer = await self._ask_in(
                connection,
                producer_id=attached.number,
                epoch=self._epoch,
                **self._owner.attaching.fields(self._topic_epoch),
            )
        except RequestRefused:
            attached.detach()
            raise
        except BaseException:
            attached.close()
            raise
        if attached.is_lost:
            raise ConnectionLost("the producer was lost as soon as it was attached")
        self._backoff.reset()
        # What an earlier life of this producer has sent may not be confirmed yet: the broker will say, or the seal.
        self._doubt = max(self._doubt, answer.last_sequence_id)
        self._learn(answer.last_sequence_id)
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        attached.target = Target(attached.number, _schema_version(answer), connection.message_bytes_max)
        self._attached = attached
        self._is_held_back = False
        self._flying.clear()
        self._unsent = deque(self._owner.lanes.runs(self._segment))
        self._pump()
        self._owner.attached(self._segment)

    async def _ask_in(self, connection: ClientConnection, **fields: Any) -> Any:
        fields |= {
            "topic": self._topic,
            "producer_name": self._owner.name,
            "user_provided_producer_name": True,
        }
        if self._owner.attaching.access_mode == pb.WaitForExclusive:
            # The others may stay for days; a broker that is gone does not answer the connection's probes.
            return await connection.request(C.PRODUCER, "producer", **fields)
        return await ask(connection, C.PRODUCER, "producer", **fields)

    def _is_over(self, error: int, connection: ClientConnection | None) -> bool:
        """Whether a refusal means that this sealed segment cannot be asked any more."""
        if not self._owner.watch.is_over(self._segment):
            return False
        # Pulsar 5.0.0-M1 leaves some segments that it seals under load "temporarily unavailable" for good.
        is_ours = connection is None or connection.peer_name.startswith(OURS)
        return error == pb.TopicNotFound or not is_ours

    def _learn(self, last: int) -> None:
        if not self._last_known.done():
            self._last_known.set_result(last)

    # -- the end of the segment

    async def _settle_doubt(self) -> None:
        """The segment is sealed: find out which of the messages in doubt it holds, and give back the others."""
        first = self._owner.lanes.first_number(self._segment)
        is_asked_for = self._is_asked_for and not self._last_known.done()
        if is_asked_for or (first is not None and first <= self._doubt):
            last = await self.ask_sealed()
            self._learn(last)
            if last >= 0:
                self._owner.settled(self._segment, last, -1, -1)
        self._owner.sealed(self._segment)

    async def ask_sealed(self) -> int:
        """The last sequence id of this producer in the sealed segment; -1 if the broker does not tell."""
        connection = None
        while True:
            try:
                connection = await self._owner.connections.owner(self._topic)
                return await self._ask_on(connection)
            except RequestRefused as refused:
                # Pulsar has no such question: then what is in doubt is sent again, and may be stored twice.
                if refused.error == pb.TopicTerminatedError or self._is_over(refused.error, connection):
                    return -1
            except AnabranchError as error:
                log.debug("%s cannot be asked for its last sequence id now: %s", self._topic, error)
            await self._backoff.wait()

    async def _ask_on(self, connection: ClientConnection) -> int:
        nobody = connection.attach(PartKind.PRODUCER, _Nobody)
        try:
            answer = await ask(
                connection,
                C.PRODUCER,
                "producer",
                topic=self._topic,
                producer_id=nobody.number,
                producer_name=self._owner.name,
                user_provided_producer_name=True,
                metadata=[pb.KeyValue(key=ASK_SEQUENCE_ID, value="true")],
            )
            return int(answer.last_sequence_id)
        finally:
            connection.detach(PartKind.PRODUCER, nobody.number)

    # -- from the connection

    def receipt(self, attached: _Attached, body: pb.CommandSendReceipt) -> None:
        if attached is not self._attached or not self._flying:
            return
        run, owed = self._flying[0]
        if body.sequence_id < run.first:
            return  # Of something given up.
        if body.sequence_id > run.first:
            # Receipts come in the order of sends: what the broker says nothing of is sent again.
            self._drop(
                attached, ConnectionLost(f"no receipt for {run.first} before that for {body.sequence_id}")
            )
        elif owed > 1:
            self._flying[0] = (run, owed - 1)
        else:
            self._flying.popleft()
            at = body.message_id
            self._owner.settled(self._segment, run.last, signed(at.ledgerId), signed(at.entryId))

    def _drop(self, attached: _Attached, error: Exception) -> None:
        attached.close()
        self.lost(attached, error)

    def send_error(self, attached: _Attached, body: pb.CommandSendError) -> None:
        if attached is not self._attached:
            return
        error = refusal(body.error, body.message)
        if isinstance(error, HIDDEN_ERRORS):
            self._give_up(error)
        elif body.error == pb.TopicTerminatedError:
            # Everything after it is refused too. Everything before it has its receipt; Pulsar may still owe some.
            self._doubt = max(self._doubt, body.sequence_id - 1)
            self._attached = None
            attached.detach()
            assert self._opening is None
            self._opening = asyncio.create_task(self._or_fail(self._settle_doubt))  # Awaited by `close`.
        elif body.error in MESSAGE_ERRORS:
            self._flying = deque(one for one in self._flying if one[0].first != body.sequence_id)
            self._owner.refused(self._segment, body.sequence_id, error)
        else:
            self._troubled(error)
            self._drop(attached, error)

    def lost(self, attached: _Attached, error: Exception) -> None:
        """Attach again, if there is anything to send; otherwise with the next message."""
        if attached is not self._attached:
            return
        self._attached = None
        if self._flying and self._owner.attaching.write is not None:
            self._give_up(
                AttemptInDoubt(
                    f"{self._topic} may or may not hold what was sent last ({error}): send all in another attempt"
                )
            )
            return
        self._doubt = max(self._doubt, self._sent)
        if self._owner.lanes.first_number(self._segment) is not None:
            self.open()

    def _troubled(self, error: AnabranchError) -> None:
        """Told to whoever gives up, waiting for a receipt or for the producer to be opened."""
        self._owner.trouble.note(error)
        troubled(error)

    def _give_up(self, error: Exception) -> None:
        if not self._last_known.done():
            self._last_known.set_exception(error)
            self._last_known.exception()
        self._owner.failed(error)

    # -- closing

    def retire(self) -> bool:
        """Nothing is left to send, and nothing more will be. False while somebody waits for its last sequence id."""
        if self._opening is not None and self._is_asked_for and not self._last_known.done():
            return False
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.close()
        self.abort()
        return True

    def abort(self) -> None:
        self._attached = None
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        attached, self._attached = self._attached, None
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if attached is not None and not attached.is_lost and not attached.connection.is_closed:
            try:
                await ask(
                    attached.connection, C.CLOSE_PRODUCER, "close_producer", producer_id=attached.number
                )
            except AnabranchError as error:
                log.debug("closing the producer on %s: %s", self._topic, error)
            attached.detach()


class _Attached:
    """A segment's producer on one connection."""

    def __init__(self, segment: SegmentProducer, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.target = Target(number, b"", MESSAGE_BYTES_MAX)  # As far as is known before the broker's answer.
        self.is_lost = False
        self._segment = segment

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.SEND_RECEIPT:
            self._segment.receipt(self, body)
        elif kind == C.SEND_ERROR:
            self._segment.send_error(self, body)
        elif kind == C.CLOSE_PRODUCER:
            self.detach()
            self.lost(ConnectionLost("the broker closed the producer"))

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        self._segment.lost(self, error)

    def detach(self) -> None:
        self.connection.detach(PartKind.PRODUCER, self.number)

    def close(self) -> None:
        """Tells the broker, and does not wait for its answer."""
        self.detach()
        if not self.is_lost and not self.connection.is_closed:
            self.connection.tell(C.CLOSE_PRODUCER, "close_producer", producer_id=self.number)
        self.is_lost = True


def _schema_version(answer: pb.CommandProducerSuccess) -> bytes:
    return answer.schema_version if answer.HasField("schema_version") else b""


def _explained(refused: RequestRefused, topic: str) -> RequestRefused:
    if refused.error != pb.ProducerFenced:
        return refused
    return RequestRefused(
        refused.error,
        f"another producer has {topic} to itself: access='wait' waits until it leaves, access='fencing' sends it away",
    )


class _Nobody:
    """Holds an id on a connection for a question."""

    def __init__(self, number: int) -> None:
        self.number = number

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass
