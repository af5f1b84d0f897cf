"""One segment's part of a producer: attached where the segment is served, again after each loss, until it is sealed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from anabranch.client.errors import (
    AttemptInDoubt,
    ConnectionLost,
    RequestRefused,
    refusal,
)
from anabranch.client.hidden_writes.write import Write
from anabranch.client.message import signed
from anabranch.client.producing.core.lanes import Lane, Lanes, Placed
from anabranch.client.producing.core.last_ids import LastIds
from anabranch.client.producing.core.runs import MessageRun
from anabranch.client.producing.entries import Entries, Target
from anabranch.client.transport.attachment import Backoff, SilentPart, Trouble, keep_trying, troubled
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart, meaning
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections, ask
from anabranch.errors import AnabranchError
from anabranch.model.segments import SegmentId
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ASK_SEQUENCE_ID
from anabranch.wire.frames import MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)

C = pb.BaseCommand


class Attaching(NamedTuple):
    """What a producer sends about itself to every segment."""

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


class LaneOwner(Protocol):
    """The producer that this segment's producer is a part of. It holds the lanes."""

    name: str
    watch: LayoutWatch
    connections: Connections
    chance: random.Random
    lanes: Lanes
    entries: Entries
    attaching: Attaching
    topics_written: set[str]
    trouble: Trouble

    def stored(self, lane: Lane, run: MessageRun, ledger: int, entry: int) -> None:
        """The segment holds that run, at that place."""

    def held(self, segment: SegmentId, last: LastIds) -> None:
        """The sealed segment holds everything up to those sequence ids."""

    def refused(self, lane: Lane, run: MessageRun, error: Exception) -> None:
        """The segment refuses that one run."""

    def attached(self, segment: SegmentId) -> None:
        """Messages being gathered for the segment may be sent."""

    def sealed(self, segment: SegmentId) -> None:
        """The messages left in the segment's lanes were not stored there, as far as can be known."""

    def failed(self, error: Exception) -> None:
        """No message can be sent any more."""


class SegmentProducer:
    """The producer attached to one segment. It sends the runs of its lanes, each lane's in order, until the segment is
    sealed.

    A broker that knows nothing of entry buckets may judge repetitions by one last sequence id for the whole segment.
    Then whatever is gathered for the segment is sent together, in the order of the last numbers, and each entry is
    named by its last number alone: so nothing is taken for a repetition of what lies in another bucket.
    """

    def __init__(self, owner: LaneOwner, segment: SegmentId) -> None:
        self._owner = owner
        self._segment = segment
        self._topic = owner.watch.topic_of(segment)
        known = owner.watch.layout.segment(segment)
        self._is_scalable = not known.classic_topic
        self._buckets = known.bucket_count
        self._backoff = Backoff(owner.chance)
        self._attached: _Attached | None = None
        # The broker that was named: by the last one when it closed the producer, or by the watch. Until it is tried.
        self._hint = self._moved_to = ""
        self._asked: ClientConnection | None = None  # The last connection that it asked to attach on.
        self._epoch = 0
        self._topic_epoch: int | None = None
        # For the present attachment: runs not yet written, and written runs with their number of missing receipts.
        self._unsent: deque[Placed] = deque()
        self._flying: deque[_Flight] = deque()
        self._is_held_back = False
        # The highest sequence id sent over a lost connection, in any bucket: up to this id, receipts may be lost too.
        self._doubt = -1
        self._sent = -1
        self._last_known: asyncio.Future[LastIds] = asyncio.get_running_loop().create_future()
        self._is_asked_for = False
        self._opening: asyncio.Task[None] | None = None

    async def last_sequence_ids(self) -> LastIds:
        """The last sequence ids of this producer in the segment, when it was first attached or since it is sealed."""
        self._is_asked_for = True
        self.open()
        return await asyncio.shield(self._last_known)

    @property
    def is_attached(self) -> bool:
        return self._attached is not None

    def send(self, runs: Iterable[Placed]) -> None:
        """Sends runs of its lanes: now, or when the producer is attached, or when the socket accepts more.

        Nothing else may be added to the lanes in between.
        """
        if self._attached is None:
            self.open()
            return
        if self._attached.target.is_named_by_last:
            runs = self._owner.lanes.together(self._segment, runs)
        self._unsent.extend(runs)
        self._pump()

    def forget(self) -> None:
        """The lanes were given up: later receipts are ignored."""
        self._unsent.clear()
        self._flying.clear()

    def _pump(self) -> None:
        while self._unsent and self._attached is not None and not self._is_held_back:
            connection = self._attached.connection
            if not connection.is_writable and not connection.is_closed:
                self._is_held_back = True
                connection.when_writable(partial(self._go_on, self._attached))
                return
            self._write(self._attached, *self._unsent.popleft())

    def _go_on(self, attached: _Attached) -> None:
        if attached is self._attached:
            self._is_held_back = False
            self._pump()

    def _write(self, attached: _Attached, lane: Lane, run: MessageRun) -> None:
        try:
            frames = self._owner.entries.frames(run, attached.target)
        except Exception as error:  # Plug-ins of users may raise anything; later messages go on.
            self._owner.refused(lane, run, error)
            return
        self._sent = max(self._sent, run.last)
        self._owner.topics_written.add(self._topic)
        self._flying.append(_Flight(attached.target.number_of(run), lane, run, len(frames)))
        # A closing connection reports its loss soon, and then the lanes are sent again. It may close with any of the
        # chunks of a message.
        with contextlib.suppress(ConnectionLost):
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
            # An error of our own. The application gets it, rather than waiting for receipts that never come.
            log.exception("%s: the producer ends because of an error", self._topic)
            self._give_up(error)

    async def _attach(self) -> None:
        """Tries until it is attached, or the segment is found to be sealed."""
        self._hint = self._moved_to or self._owner.watch.url_of(self._segment)
        self._moved_to = ""
        self._asked = None
        try:
            await keep_trying(self._attach_once, self._backoff, f"the producer on {self._topic}", self._ends)
        except RequestRefused as refused:
            match meaning(refused, RefusedPart.PRODUCER):
                case Meaning.SEALED:
                    await self._settle_doubt()
                case Meaning.FINAL:
                    self._give_up(_explained(refused, self._topic))
                case _:
                    self._learn(LastIds())
                    self._owner.sealed(self._segment)
        self._opening = None

    async def _attach_once(self) -> None:
        """Attaches on the broker that was named, the first time, if one was; else on the one that a lookup finds."""
        connections = self._owner.connections
        url, self._hint = self._hint, ""
        self._asked = await (connections.to(url) if url else connections.owner(self._topic))
        await self._attach_on(self._asked)

    def _ends(self, error: AnabranchError) -> bool:
        """Whether it will never be attached again."""
        if self._is_over(error) or (
            isinstance(error, RequestRefused) and meaning(error, RefusedPart.PRODUCER) is Meaning.FINAL
        ):
            return True
        self._owner.trouble.note(error)  # Part of the error if waiting for a receipt times out.
        return False

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
        # Messages of an earlier life of this producer may be unconfirmed yet: the broker's answer, or the seal, will
        # decide.
        self._doubt = max(self._doubt, answer.last_sequence_id)
        self._learn(self._last_ids(answer))
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        attached.target = Target(
            attached.number,
            _schema_version(answer),
            connection.message_bytes_max,
            is_stamped=self._is_scalable,
            is_named_by_last=self._buckets > 1 and not _knows_buckets(answer),
        )
        self._attached = attached
        self._is_held_back = False
        self._flying.clear()
        runs = self._owner.lanes.runs(self._segment)
        if attached.target.is_named_by_last:
            runs = self._owner.lanes.together(self._segment, runs)
        self._unsent = deque(runs)
        self._pump()
        self._owner.attached(self._segment)

    async def _ask_in(self, connection: ClientConnection, **fields: Any) -> Any:
        fields |= {
            "topic": self._topic,
            "producer_name": self._owner.name,
            "user_provided_producer_name": True,
        }
        if self._owner.attaching.access_mode == pb.WaitForExclusive:
            # The other producers may stay for days; the connection's own probes detect a broker that is gone.
            return await connection.request(C.PRODUCER, "producer", **fields)
        return await ask(connection, C.PRODUCER, "producer", **fields)

    def _is_over(self, error: AnabranchError) -> bool:
        """Whether a refusal means that the segment is sealed, or sealed and unable to answer any more."""
        if not isinstance(error, RequestRefused):
            return False
        meant = meaning(error, RefusedPart.PRODUCER)
        if meant is Meaning.SEALED or not self._owner.watch.is_over(self._segment):
            return meant is Meaning.SEALED
        # Pulsar 5.0.0-M1 leaves some segments that it seals under load "temporarily unavailable" for good.
        is_ours = self._asked is None or self._asked.is_ours
        return meant is Meaning.GONE or not is_ours

    def _last_ids(self, answer: pb.CommandProducerSuccess) -> LastIds:
        highest = answer.last_sequence_id
        if self._buckets == 1:
            return LastIds(highest, whole=highest)
        if not _knows_buckets(answer):
            return LastIds(highest)
        buckets = {one.bucket: one.last_sequence_id for one in answer.anabranch_buckets}
        return LastIds(highest, buckets, answer.anabranch_whole_sequence_id)

    def _learn(self, last: LastIds) -> None:
        if not self._last_known.done():
            self._last_known.set_result(last)

    # -- the end of the segment

    async def _settle_doubt(self) -> None:
        """The segment is sealed: asks which of the messages in doubt it holds, and returns the others to the owner."""
        first = self._owner.lanes.first_number(self._segment)
        is_asked_for = self._is_asked_for and not self._last_known.done()
        if is_asked_for or (first is not None and first <= self._doubt):
            last = await self.ask_sealed()
            self._learn(last)
            if last.highest >= 0:
                self._owner.held(self._segment, last)
        self._owner.sealed(self._segment)

    async def ask_sealed(self) -> LastIds:
        """The last sequence ids of this producer in the sealed segment; -1 if the broker does not say."""
        self._asked = None
        try:
            return await keep_trying(
                self._ask_once, self._backoff, f"the last sequence id in {self._topic}", self._is_over
            )
        except RequestRefused:
            # Pulsar has no such request: then the messages in doubt are sent again, and may be stored twice.
            return LastIds()

    async def _ask_once(self) -> LastIds:
        self._asked = await self._owner.connections.owner(self._topic)
        return await self._ask_on(self._asked)

    async def _ask_on(self, connection: ClientConnection) -> LastIds:
        nobody = connection.attach(PartKind.PRODUCER, SilentPart)
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
            return self._last_ids(answer)
        finally:
            connection.detach(PartKind.PRODUCER, nobody.number)

    # -- events of the connection

    def receipt(self, attached: _Attached, body: pb.CommandSendReceipt) -> None:
        if attached is not self._attached or not self._flying:
            return
        flight = self._flying[0]
        if body.sequence_id != flight.number:
            # Receipts come in the order of sends: runs whose receipts are missing are sent again. A number that is not
            # in flight, and not above all that are, was given up.
            numbers = [one.number for one in self._flying]
            if body.sequence_id in numbers or body.sequence_id > max(numbers):
                missing = f"no receipt for {flight.number} before that for {body.sequence_id}"
                self._drop(attached, ConnectionLost(missing))
        elif flight.owed > 1:
            self._flying[0] = flight._replace(owed=flight.owed - 1)
        else:
            self._flying.popleft()
            at = body.message_id
            self._owner.stored(flight.lane, flight.run, signed(at.ledgerId), signed(at.entryId))

    def _drop(self, attached: _Attached, error: Exception) -> None:
        attached.close()
        self.lost(attached, error)

    def send_error(self, attached: _Attached, body: pb.CommandSendError) -> None:
        if attached is not self._attached:
            return
        error = refusal(body.error, body.message)
        match meaning(error, RefusedPart.SEND):
            case Meaning.FINAL:
                self._give_up(error)
            case Meaning.SEALED:
                # A topic that was terminated has no other segment: then this is why no receipt comes in time.
                self._owner.trouble.note(error)
                # Everything after it is refused too. Everything before it has its receipt; Pulsar may still owe some.
                self._doubt = max(self._doubt, self._sent_before(body.sequence_id))
                self._attached = None
                attached.detach()
                assert self._opening is None
                self._opening = asyncio.create_task(self._or_fail(self._settle_doubt))  # Awaited by `close`.
            case Meaning.MESSAGE:
                refused = [one for one in self._flying if one.number == body.sequence_id]
                self._flying = deque(one for one in self._flying if one.number != body.sequence_id)
                for one in refused:
                    self._owner.refused(one.lane, one.run, error)
            case _:
                self._owner.trouble.note(error)
                troubled(error)
                self._drop(attached, error)

    def _sent_before(self, number: int) -> int:
        """The highest sequence id in flight before the run of that number; in a segment with several buckets it may be
        above that number."""
        last = -1
        for one in self._flying:
            if one.number == number:
                break
            last = max(last, one.run.last)
        return last

    def closed(self, attached: _Attached, body: pb.CommandCloseProducer) -> None:
        """The broker closed the producer, and may say which one serves the segment now."""
        if attached is self._attached:
            self._moved_to = self._owner.connections.assigned(body)

    def lost(self, attached: _Attached, error: Exception) -> None:
        """Attaches again, at once if there is anything to send; otherwise with the next message."""
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
        if self._owner.lanes.holds(self._segment):
            self.open()

    def _give_up(self, error: Exception) -> None:
        if not self._last_known.done():
            self._last_known.set_exception(error)
            self._last_known.exception()
        self._owner.failed(error)

    # -- closing

    def retire(self) -> bool:
        """Closes it: nothing is left to send, and nothing more will be. False while a caller waits for its last
        sequence id."""
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
                log.debug("%s: closing the producer failed: %s", self._topic, error)
            attached.detach()


class _Flight(NamedTuple):
    """A run that was written: the number that its receipts will name, and how many of them are missing."""

    number: int
    lane: Lane
    run: MessageRun
    owed: int


class _Attached:
    """A segment's producer on one connection."""

    def __init__(self, segment: SegmentProducer, connection: ClientConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.target = Target(number, b"", MESSAGE_BYTES_MAX)  # The defaults, until the broker answers.
        self.is_lost = False
        self._segment = segment

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.SEND_RECEIPT:
            self._segment.receipt(self, body)
        elif kind == C.SEND_ERROR:
            self._segment.send_error(self, body)
        elif kind == C.CLOSE_PRODUCER:
            self.detach()
            self._segment.closed(self, body)
            self.lost(ConnectionLost("the broker closed the producer"))

    def lost(self, error: Exception) -> None:
        self.is_lost = True
        self._segment.lost(self, error)

    def detach(self) -> None:
        self.connection.detach(PartKind.PRODUCER, self.number)

    def close(self) -> None:
        """Closes the producer at the broker, without waiting for the answer."""
        self.detach()
        if not self.is_lost and not self.connection.is_closed:
            self.connection.tell(C.CLOSE_PRODUCER, "close_producer", producer_id=self.number)
        self.is_lost = True


def _knows_buckets(answer: pb.CommandProducerSuccess) -> bool:
    """Whether the broker judges sequence ids by entry bucket: then it says so, even if it holds nothing."""
    return answer.HasField("anabranch_whole_sequence_id")


def _schema_version(answer: pb.CommandProducerSuccess) -> bytes:
    return answer.schema_version if answer.HasField("schema_version") else b""


def _explained(refused: RequestRefused, topic: str) -> RequestRefused:
    if refused.error != pb.ProducerFenced:
        return refused
    return RequestRefused(
        refused.error,
        f"another producer has {topic} to itself: access='wait' waits until it leaves, access='fencing' sends it away",
    )
