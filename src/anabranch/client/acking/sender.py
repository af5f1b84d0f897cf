"""Sends one segment's acknowledgements: in groups, confirmed by the broker, and again after a lost connection."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

from anabranch.client.acking.core.state import GROUP_MAX, WHOLE, AckGroup, Acks, Place, Rest, Until, words_of
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.client.message import signed
from anabranch.client.transport.connection import ClientConnection
from anabranch.client.transport.pool import REQUEST_MAX_S, ask
from anabranch.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

C = pb.BaseCommand

# How long an acknowledgement waits for others.
GROUP_S: Final = 0.01


class LostAckTally:
    """How many groups of acknowledgements a consumer has lost, over all of its segments."""

    def __init__(self) -> None:
        self.lost = 0


class AckSender:
    """The owner calls `attach` when the segment is subscribed, `detach` when the subscription is over, `close` and
    `give_up` at the end."""

    def __init__(self, topic: str, tally: LostAckTally) -> None:
        self._topic = topic
        self._tally = tally
        self._acks = Acks()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._connection: ClientConnection | None = None
        self._number = 0
        self._is_over = False
        self._began_at: Place | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    # -- the subscription

    async def check_place(self, connection: ClientConnection, number: int) -> None:
        """Forgets waiting acknowledgements if the cursor was moved back while there was no connection: their messages
        will be delivered again. Asks the broker only if acknowledgements wait."""
        stored = self._acks.stored_until
        if stored is None or not self._acks.waiting:
            return
        at = await _place_of_cursor(connection, number)
        if at is not None and at < stored:
            self._moved_back()

    async def check_shared_place(self, connection: ClientConnection, number: int) -> None:
        """Like `check_place`, for a segment that other consumers read too: acknowledgements of single entries do not
        say where the cursor is, so the broker is asked at each subscription, and only a move to before the last one is
        noticed."""
        try:
            at = await _place_of_cursor(connection, number)
        except RequestRefused:
            if self._acks.waiting:
                raise
            return
        if at is not None:
            if self._acks.waiting and self._began_at is not None and at < self._began_at:
                self._moved_back()
            self._began_at = at

    def _moved_back(self) -> None:
        log.info("%s: the cursor was moved back, dropping acknowledgements that wait", self._topic)
        self._acks.forget_waiting()
        self._acks.stored_until = None
        self._look()

    def attach(self, connection: ClientConnection, number: int) -> None:
        """The segment is subscribed as consumer `number`: unconfirmed acknowledgements are sent at once."""
        self._connection, self._number = connection, number
        self.send()

    def detach(self, *, is_lost: bool) -> None:
        """The subscription is over. `is_lost`: its connection is lost, and the groups under way are sent again."""
        if self._connection is None:
            return
        self._connection = None
        self._stop_timer()
        if is_lost:
            self._acks.again()

    def forget(self) -> None:
        """The broker has closed the consumer, perhaps because of a seek, which older acknowledgements must not undo:
        those under way may still be confirmed, the others are given up."""
        self._acks.forget_waiting()
        self._look()

    def close(self) -> None:
        """Sends waiting acknowledgements now, or gives them up."""
        self._is_over = True
        self.send()
        if self._connection is None or self._connection.is_closed:
            self.give_up()

    def give_up(self) -> None:
        """The segment is closed: gives up all acknowledgements that are not stored."""
        self._is_over = True
        self._connection = None
        self._stop_timer()
        self._acks.give_up()
        self._look()

    # -- acknowledgements

    def add(self, place: Place, rest: Rest = WHOLE) -> None:
        self._acks.add(place, rest)
        self._soon()

    def add_until(self, until: Until) -> None:
        self._acks.add_until(until)
        self._soon()

    def _soon(self) -> None:
        if self._timer is not None:
            if self._acks.waiting < GROUP_MAX:
                return
            self.send()
        elif self._connection is not None:
            self._timer = self._loop.call_later(GROUP_S, self.send)
        elif self._is_over:
            self._acks.give_up()
            self._look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send(self) -> None:
        """Sends waiting acknowledgements now."""
        self._stop_timer()
        connection = self._connection
        if connection is None or connection.is_closed or not self._acks.waiting:
            return
        for group in self._acks.take():
            answer = connection.begin(C.ACK, "ack", **_fields(self._number, group))
            limit = self._loop.call_later(REQUEST_MAX_S, self._is_late, group, connection)
            answer.add_done_callback(partial(self._answered, group, connection, limit))

    def _is_late(self, group: AckGroup, connection: ClientConnection) -> None:
        if connection is self._connection:
            # A broker that answers pings but not this request has lost the request.
            connection.abort()
        else:
            # Brokers need not answer requests of a consumer that they have closed.
            self._acks.refused(group)
            self._look()

    def _answered(
        self,
        group: AckGroup,
        connection: ClientConnection,
        limit: asyncio.TimerHandle,
        answer: asyncio.Future[Any],
    ) -> None:
        limit.cancel()
        error = None if answer.cancelled() else answer.exception()
        if error is None:
            self._acks.stored(group)
        elif not isinstance(error, ConnectionLost):
            log.debug("%s: an acknowledgement was refused: %s", self._topic, error)
            self._acks.refused(group)
        elif connection is not self._connection or self._is_over:
            # The consumer was closed before the connection was lost: it is unknown whether the group was stored.
            self._acks.refused(group)
        self._look()

    # -- waiting

    async def settled(self) -> None:
        """Returns once every acknowledgement so far is stored or lost."""
        self.send()
        if self._acks.settled < self._acks.asked:
            waiter = self._loop.create_future()
            self._waiters.append((self._acks.asked, waiter))
            await waiter

    def _look(self) -> None:
        self._tally.lost += self._acks.lost
        self._acks.lost = 0
        if self._waiters:
            settled = self._acks.settled
            for number, waiter in self._waiters:
                if number <= settled and not waiter.done():
                    waiter.set_result(None)
            self._waiters = [one for one in self._waiters if not one[1].done()]


async def _place_of_cursor(connection: ClientConnection, number: int) -> Place | None:
    """The last entry before which all is acknowledged, if the broker says it."""
    answer = await ask(connection, C.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=number)
    if not answer.HasField("consumer_mark_delete_position"):
        return None
    at = answer.consumer_mark_delete_position
    return signed(at.ledgerId), signed(at.entryId)


def _fields(consumer: int, group: AckGroup) -> dict[str, Any]:
    until = group.until
    if until is not None:
        at = pb.MessageIdData(ledgerId=until.ledger, entryId=until.entry)
        if left := until.left:
            at.ack_set.extend(words_of(left))
            at.batch_size = until.size
        return {"consumer_id": consumer, "ack_type": pb.CommandAck.Cumulative, "message_id": [at]}
    ids = []
    for (ledger, entry), (left, size) in group.singles.items():
        at = pb.MessageIdData(ledgerId=ledger, entryId=entry)
        if left:
            at.ack_set.extend(words_of(left))
            at.batch_size = size
        ids.append(at)
    return {"consumer_id": consumer, "ack_type": pb.CommandAck.Individual, "message_id": ids}
