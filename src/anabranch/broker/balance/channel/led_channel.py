"""The leader's half of the bundle state channel: its topic, open at this broker and no other.

The leader checks each change against everything that it has appended, confirmed or not, so that the topic has no losers
but those of leaders that were replaced. A change counts, and is told, when the log has confirmed it. Opening the topic
fences the ledger of the leader before: what that one still appends is never confirmed.

From time to time the leader writes a snapshot and trims what lies before it (`balance.core.channel`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from anabranch.balance.core.channel import ChannelEvent, ChannelReader, TermBegan, snapshot_events
from anabranch.balance.core.codec import BadChange
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.broker.balance.channel.channel_feed import ChannelFeed
from anabranch.broker.balance.channel.channel_messages import decode_events, encode_events
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable
from anabranch.broker.policy.retention import Keep
from anabranch.broker.topic.replay import entries_between
from anabranch.broker.topic.topic import Topic
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.port import LogError

log = logging.getLogger(__name__)

# A snapshot is written after this many changes, or twice as many as there are bundles.
SNAPSHOT_EVERY: Final = 1000
# Entries that are read in one turn of the loop. One may have as many parts of a snapshot as are written at once.
ENTRIES_PER_TURN: Final = 8
# Parts of a snapshot in one entry: packing them takes a few milliseconds.
PARTS_AT_ONCE: Final = 200


def channel_keep(name: TopicName) -> Keep | None:
    """The channel's topic keeps everything that the leader does not trim, regardless of its namespace."""
    return Keep(None, None) if name == CHANNEL_TOPIC else None


async def read_channel(topic: Topic) -> tuple[ChannelReader, ChannelFeed]:
    """Reads everything that the topic has."""
    reader, feed = ChannelReader(), ChannelFeed()
    opened = topic.log
    async for ledger, number, _, entry in entries_between(topic.name, opened, opened.kept_first, opened.end):
        at = (ledger, number)
        for event in decode_events(entry):
            if isinstance(event, BadChange):
                log.warning("%s: the message at %s:%s is ignored: %s", topic.name, *at, event)
                continue
            restored = reader.restored
            accepted = reader.read(event)
            if reader.restored != restored:
                feed.restart(at)
            elif accepted is not None:
                feed.add(at, accepted)
        feed.passed(at)
        if number % ENTRIES_PER_TURN == 0:
            await asyncio.sleep(0)
    return reader, feed


class LedChannel:
    """`begin` comes first."""

    def __init__(
        self,
        topic: Topic,
        read: tuple[ChannelReader, ChannelFeed],
        me: BrokerRun,
        term: int,
        now_ms: Callable[[], int],
        accepted: Callable[[Position, BundleChange], None],
        *,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """`accepted` is called with each change, and its position, once it is confirmed."""
        reader, self.feed = read
        self.topic = topic
        self.term = term
        self._producer = f"bundle-states@{me}"
        self._now_ms = now_ms
        self._accepted = accepted
        self._snapshot_every = snapshot_every
        # Everything that was appended, whether it is confirmed or not.
        self._ahead: Fold = reader.fold
        self._changes = reader.changes
        self._sequence_id = now_ms() * 1000
        self._snapshots = 0
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return not self.topic.is_closed

    async def begin(self) -> None:
        """Ends the terms of earlier leaders. ChangeRejected if a later one has begun."""
        if self._ahead.term > self.term:
            raise ChangeRejected(f"term {self.term} is over: a leader of term {self._ahead.term} has begun")
        self._ahead.lead(self.term)
        at = self._publish([TermBegan(self.term)])
        await self._confirmed(at)
        self.feed.passed(at)

    def snapshot_soon(self) -> None:
        """Begins to write a snapshot, unless one is being written."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_snapshot())  # Awaited by `close`.

    async def close(self) -> None:
        """Appends nothing more. The topic stays open."""
        self.feed.wake()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    async def append(self, change: BundleChange) -> Position:
        """Returns once the change is confirmed and told. ChangeRejected if it is not valid."""
        if not self.is_open:
            raise ChannelUnavailable("the channel's topic is closed at this broker")
        refused = self._ahead.why_not(change)
        if refused is not None:
            raise ChangeRejected(f"{change.bundle}: {refused}")
        at = self._publish([change])
        self._ahead.apply(change)
        self._changes += 1
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        self.topic.confirmations.when_confirmed(lambda: self._change_confirmed(at, change, done))
        return await done

    # -- the topic

    def _publish(self, events: Sequence[ChannelEvent]) -> Position:
        """Appends one entry, which is not confirmed yet."""
        at = self.topic.log.appended_end
        self._sequence_id += 1
        entry = encode_events(events, self._producer, self._sequence_id, self._now_ms())
        try:
            self.topic.publishing.publish_own(entry, len(events))
        except LogError as error:
            raise ChannelUnavailable(f"the channel's log takes nothing: {error}") from error
        return at

    def _is_confirmed(self, at: Position) -> bool:
        return self.topic.log.confirmed_end > at[1]

    async def _confirmed(self, at: Position) -> None:
        await self.topic.confirmations.wait()
        if not self._is_confirmed(at):
            raise ChannelUnavailable("the channel's log was lost")

    def _change_confirmed(self, at: Position, change: BundleChange, done: asyncio.Future[Position]) -> None:
        if not self._is_confirmed(at):
            if not done.done():
                done.set_exception(
                    ChannelUnavailable(
                        f"{change.bundle}: the channel's log was lost before it had the change"
                    )
                )
            return
        try:
            self._accepted(at, change)
        finally:
            self.feed.add(at, change)
            if not done.done():
                done.set_result(at)
        if self._changes >= max(self._snapshot_every, 2 * len(self._ahead.bundles)):
            self.snapshot_soon()

    # -- snapshots

    async def _write_snapshot(self) -> None:
        self._snapshots += 1
        before = self._changes
        events = snapshot_events(f"{self.term}-{self.topic.log.ledger}-{self._snapshots}", self._ahead)
        try:
            # The states are taken here: changes that come while the snapshot is written follow it.
            began = at = self._publish(list(islice(events, 1)))
            while some := list(islice(events, PARTS_AT_ONCE)):
                at = self._publish(some)
                await self._confirmed(at)
            await self.topic.upkeep.give_up_below(began)
        except Exception as error:
            # Without its end, or without the trim, it changes nothing. The next one may succeed.
            log.warning("a snapshot of the states of bundles was not written: %r", error)
            return
        self._changes -= before
        log.debug("a snapshot of %d states of bundles was written", len(self._ahead.bundles))
