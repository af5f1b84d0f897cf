"""A consumer's registration with its topic's controller: the segments assigned to it, and later changes.

It is made again under the same name when the connection is lost or the controller moves; the controller keeps the
segments for a while. A leaving consumer says so, so that others get its segments at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.client.errors import ConnectionLost
from anabranch.client.transport.attachment import AttachedPart, Backoff, keep_trying, refused_with
from anabranch.client.transport.connection import ClientConnection, PartKind
from anabranch.client.transport.core.refusals import Meaning, RefusedPart
from anabranch.client.transport.layout_watch import LayoutWatch
from anabranch.client.transport.pool import Connections, ask
from anabranch.errors import AnabranchError, PeerError
from anabranch.model.names import InvalidName
from anabranch.model.segments import HashRange, SegmentId
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

# In reports of finished segments.
ALL_BUCKETS = 0

# A report without an answer is sent again after this time.
REPORT_MAX_S = 30.0


@dataclass(frozen=True, slots=True)
class Assigned:
    """A segment as the controller assigned it to this member.

    `bucket_ranges` are all entry buckets of a segment that the member shares with others, and empty for one that is
    whole its own. `own_buckets` are the numbers of its own ones, which only members of a checkpoint group are told.
    """

    topic: str  # The one that holds the segment's messages.
    range: HashRange
    bucket_ranges: tuple[HashRange, ...] = ()
    own_buckets: tuple[int, ...] = ()

    @property
    def is_shared(self) -> bool:
        return bool(self.bucket_ranges)


Assignments = Mapping[SegmentId, Assigned]


def read_assigned(segment: pb.ScalableAssignedSegment) -> Assigned:
    """Raises PeerError for ranges that there cannot be."""
    own = tuple(sorted({*segment.anabranch_own_buckets}))
    if own and own[-1] >= len(segment.bucket_ranges):
        raise PeerError(f"the assignment of segment {segment.segment_id}: it has no bucket {own[-1]}")
    try:
        return Assigned(
            segment.segment_topic,
            HashRange(segment.hash_start, segment.hash_end),
            tuple(HashRange(bucket.start, bucket.end) for bucket in segment.bucket_ranges),
            own,
        )
    except InvalidName as error:
        raise PeerError(f"the assignment of segment {segment.segment_id}: {error}") from error


class ControllerSession:
    """`open` returns with the first assignment applied; `assigned` is called for each.

    A member that `knows_buckets` may be assigned segments that it shares."""

    def __init__(
        self,
        connections: Connections,
        watch: LayoutWatch,
        subscription: str,
        consumer_name: str,
        kind: int,
        assigned: Callable[[Assignments], None],
        failed: Callable[[Exception], None],
        backoff: Backoff,
        *,
        knows_buckets: bool = False,
    ) -> None:
        self._knows_buckets = knows_buckets
        self._connections = connections
        self._watch = watch
        self._subscription = subscription
        self._consumer_name = consumer_name
        self._kind = kind
        self._assigned = assigned
        self._failed = failed
        self._backoff = backoff
        self._epoch = -1
        self._is_over = False
        self._registered: _Registered | None = None
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._staying: asyncio.Task[None] | None = None
        self._stop_listening = watch.listen(self._look)

    async def open(self) -> None:
        self._staying = asyncio.create_task(self._stay())  # Awaited by `leave`.
        await asyncio.shield(self._first)

    async def _stay(self) -> None:
        try:
            await keep_trying(
                self._stay_registered,
                self._backoff,
                f"the registration of {self._consumer_name}",
                refused_with(RefusedPart.CONTROLLER_SESSION, Meaning.FINAL),
            )
        except AnabranchError as error:
            self._fail(error)

    async def _stay_registered(self) -> None:
        """Raises when the registration is refused or lost; returns once the topic is deleted."""
        if self._watch.is_deleted:
            return
        # While no controller is known, any broker accepts the registration, or refuses it and is asked again.
        url = self._watch.controller_url
        connection = await (self._connections.to(url) if url else self._connections.service())
        registered = connection.attach(
            PartKind.CONSUMER, lambda number: _Registered(self, connection, url, number)
        )
        self._registered = registered
        try:
            await self._register(connection, registered)
            self._backoff.reset()
            self._look()
            # Cancelling this task must leave the registration unchanged: `leave` needs it.
            await asyncio.shield(registered.over)
        finally:
            registered.detach()
            self._registered = None

    async def _register(self, connection: ClientConnection, registered: _Registered) -> None:
        answer = await ask(
            connection,
            C.SCALABLE_TOPIC_SUBSCRIBE,
            "scalableTopicSubscribe",
            topic=str(self._watch.topic),
            subscription=self._subscription,
            consumer_name=self._consumer_name,
            consumer_id=registered.number,
            consumer_type=self._kind,
            anabranch_knows_buckets=self._knows_buckets,
        )
        # The answer's waiter runs after other commands of the same packet.
        if not registered.is_told:
            self.apply(answer.assignment)
        if not self._first.done():
            self._first.set_result(None)

    def apply(self, assignment: pb.ScalableConsumerAssignment) -> None:
        """Applies the newest assignment. An assignment of an older layout comes from a controller that is behind.

        A leaving consumer ignores assignments: it would read those segments for ever.
        """
        if not self._is_over and assignment.layout_epoch >= self._epoch:
            found = {SegmentId(s.segment_id): read_assigned(s) for s in assignment.segments}
            self._epoch = assignment.layout_epoch
            self._assigned(found)

    def _look(self) -> None:
        """Checks whether the controller has moved."""
        registered, url = self._registered, self._watch.controller_url
        if registered is None:
            return
        registered.url = registered.url or url
        if self._watch.is_deleted or (url and url != registered.url):
            registered.lost(ConnectionLost("the controller moved"))

    def _fail(self, error: Exception) -> None:
        if not self._first.done():
            self._first.set_exception(error)
        else:
            self._failed(error)

    async def report_finished(self, finished: Iterable[tuple[SegmentId, int]]) -> bool:
        """Reports to the controller that sealed segments have been read to their end; returns whether the report
        arrived. Beside each segment is ALL_BUCKETS, or 1 + the number of one of its buckets."""
        registered = self._registered
        if registered is None or registered.over.done():
            return False
        try:
            # A controller of Pulsar's, which assigns children without a report, never answers. That is no reason to
            # close the connection, as `ask` would.
            async with asyncio.timeout(REPORT_MAX_S):
                await registered.connection.request(
                    C.ACK,
                    "ack",
                    consumer_id=registered.number,
                    ack_type=pb.CommandAck.Individual,
                    message_id=[
                        pb.MessageIdData(ledgerId=segment, entryId=which) for segment, which in finished
                    ],
                )
        except (AnabranchError, TimeoutError) as error:
            log.debug("reporting finished segments failed: %s", error)
            return False
        return True

    def stop(self) -> None:
        """From here on no assignment is applied any more; `leave` or `abort` must follow."""
        self._is_over = True
        self._stop_listening()

    async def leave(self) -> None:
        """Closes the registration, so that the segments go to other consumers at once."""
        registered = self._registered
        self._stop()
        if self._staying is not None:
            await asyncio.gather(self._staying, return_exceptions=True)
        if registered is not None and not registered.over.done() and not registered.connection.is_closed:
            try:
                await ask(
                    registered.connection, C.CLOSE_CONSUMER, "close_consumer", consumer_id=registered.number
                )
            except AnabranchError as error:
                # Pulsar does not know this command: it waits until the connection is gone, and some time more.
                log.debug("leaving the subscription failed: %s", error)

    def abort(self) -> None:
        self._stop()

    def _stop(self) -> None:
        self.stop()
        if self._staying is not None:
            self._staying.cancel()
        if not self._first.done():
            self._first.cancel()


class _Registered(AttachedPart):
    """The registration on one connection. `url` is the address of the connection."""

    def __init__(
        self, session: ControllerSession, connection: ClientConnection, url: str, number: int
    ) -> None:
        super().__init__(number)
        self.connection = connection
        self.url = url
        self.is_told = False  # An update has come, newer than the answer to the registration.
        self._session = session

    def received(self, kind: int, body: Any, payload: memoryview | None) -> None:
        if kind == C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE:
            self.is_told = True
            self._session.apply(body.assignment)
        elif kind == C.CLOSE_CONSUMER:
            self.lost(ConnectionLost("the controller ended the session"))

    def detach(self) -> None:
        self.connection.detach(PartKind.CONSUMER, self.number)
