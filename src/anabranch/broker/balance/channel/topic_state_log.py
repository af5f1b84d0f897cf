"""The bundle state channel as PIP-192 has it: a topic that the elected leader owns, by rule and not by bundle.

The leader reads and writes the topic itself (`led_channel`). The other brokers send it their changes and read what it
has accepted (`followed_channel`, `channel_calls`). So every change of every bundle is in one order, and a broker whose
change came second is told so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from anabranch.balance.core.codec import BadChange
from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.broker.balance.channel.channel_calls import (
    NEWS_S,
    AppendState,
    ChannelCalls,
    ReadStates,
    StateAppended,
    StatesRead,
    ToldChange,
)
from anabranch.broker.balance.channel.followed_channel import FollowedChannel, changes_in, told
from anabranch.broker.balance.channel.led_channel import SNAPSHOT_EVERY, LedChannel, read_channel
from anabranch.broker.balance.channel.state_log import ChangeRejected, ChannelUnavailable, StatesListener
from anabranch.broker.errors import NotReadyError
from anabranch.broker.topic.topic import Topic
from anabranch.errors import AnabranchError
from anabranch.model.position import Position

log = logging.getLogger(__name__)

# How long a change waits for a leader that takes it, and for this broker to read it.
APPEND_S: Final = 5.0
RETRY_S: Final = 0.1
# How many changes one answer has: decoding them takes some ten milliseconds.
CHANGES_PER_ANSWER: Final = 500


class KnownLeader(Protocol):
    """Which broker was elected; `Leadership` implements it."""

    def leader(self) -> BrokerRun | None: ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class _Image:
    """All states at one moment, for brokers that read them in parts."""

    name: str
    at: Position
    term: int
    states: tuple[BundleChange, ...]
    # Parts that were asked for, by where they begin: all brokers ask for the same ones when another one leads.
    parts: dict[int, list[ToldChange]] = field(default_factory=dict)

    def part(self, offset: int, count: int) -> list[ToldChange]:
        if offset not in self.parts:
            self.parts[offset] = [told(change) for change in self.states[offset : offset + count]]
        return self.parts[offset]


class TopicStateLog:
    """Implements `StateLog` and `ServedChannel`."""

    def __init__(
        self,
        me: BrokerRun,
        election: KnownLeader,
        calls: ChannelCalls,
        open_topic: Callable[[], Awaitable[Topic]],
        now_ms: Callable[[], int],
        *,
        append_s: float = APPEND_S,
        snapshot_every: int = SNAPSHOT_EVERY,
        changes_per_answer: int = CHANGES_PER_ANSWER,
    ) -> None:
        """`open_topic` opens the channel's topic at this broker, and creates it if there is none. It is called while
        this broker leads."""
        self._me = me
        self._election = election
        self._calls = calls
        self._open_topic = open_topic
        self._now_ms = now_ms
        self._append_s = append_s
        self._snapshot_every = snapshot_every
        self._changes_per_answer = changes_per_answer
        self._fold = Fold()
        self._followed = FollowedChannel(calls, self._fold, self._tell)
        self._led: LedChannel | None = None
        self._image: _Image | None = None
        self._images = 0
        self._listeners: list[StatesListener] = []
        self._stop: Callable[[], None] | None = None
        self._leader: BrokerRun | None = None
        self._following: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()  # Who leads, or whether this broker does.

    @property
    def fold(self) -> Fold:
        return self._fold

    # -- following

    async def start(self) -> None:
        self._stop = self._election.on_change(self._leader_changed)
        self._leader_changed()

    async def close(self) -> None:
        if self._stop is not None:
            self._stop()
        await self._end(self._following)
        await self.resign()

    @property
    def is_following(self) -> bool:
        if self._led is not None:
            return self._led.is_open
        return self._following is not None and self._followed.is_heard

    @property
    def lag_s(self) -> float:
        return 0.0 if self.is_following else self._followed.silent_s

    def on_change(self, callback: StatesListener) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _leader_changed(self) -> None:
        leader = self._election.leader()
        if leader != self._leader or self._following is None:
            self._leader = leader
            self._followed.lost()
            if self._following is not None:
                self._following.cancel()
                self._following = None
            if leader is not None and leader != self._me:
                # Cancelled by the next change of leaders, or awaited by `close`.
                self._following = asyncio.create_task(self._followed.follow(leader))
        self._changed.set()

    def _tell(self, changes: Sequence[BundleChange]) -> None:
        for callback in list(self._listeners):
            callback(changes)

    # -- leading

    async def lead(self, term: int) -> None:
        if term < self._fold.term:
            # Before anything is given up: the later term may be this broker's own.
            raise ChangeRejected(f"term {term} is over: a leader of term {self._fold.term} has begun")
        await self.resign()
        try:
            topic = await self._open_topic()
            read = await read_channel(topic)
            led = LedChannel(
                topic,
                read,
                self._me,
                term,
                self._now_ms,
                self._accepted,
                snapshot_every=self._snapshot_every,
            )
            await led.begin()
        except ChangeRejected:
            raise
        except AnabranchError as error:
            raise ChannelUnavailable(f"term {term} cannot begin: {error}") from error
        reader, feed = read
        different = self._fold.become(reader.fold)
        self._followed.stands_at(feed.end)
        self._led = led
        self._changed.set()
        self._keeping = asyncio.create_task(self._keep(led))  # Awaited by `resign`.
        # The ledgers of earlier leaders go with what lies before it.
        led.snapshot_soon()
        if different:
            self._tell(different)

    async def resign(self) -> None:
        led, self._led, self._image = self._led, None, None
        if self._keeping is not asyncio.current_task():
            # Else it is the task itself that begins again, and that a later call must find to end it.
            keeping, self._keeping = self._keeping, None
            await self._end(keeping)
        if led is not None:
            await led.close()

    async def _keep(self, led: LedChannel) -> None:
        """Opens the topic again if it is closed while this broker leads: an operator has unloaded it, or its log was
        lost."""
        await led.topic.wait_closed()
        log.warning("the topic of the states of bundles was closed while this broker leads")
        while True:
            # The next leader may have opened it, before this broker has read that it leads.
            await asyncio.sleep(RETRY_S)
            if self._election.leader() != self._me:
                return
            try:
                await self.lead(led.term)
                return
            except ChangeRejected as error:
                log.info("this broker leads no more: %s", error)
                return
            except ChannelUnavailable as error:
                log.warning("the topic of the states of bundles is not open again yet: %s", error)

    def _accepted(self, at: Position, change: BundleChange) -> None:
        refused = self._fold.apply(change)
        assert refused is None, f"{change.bundle}: checked before it was appended: {refused}"
        self._followed.stands_at(at)
        self._tell([change])

    # -- changes

    async def append(self, change: BundleChange) -> None:
        try:
            async with asyncio.timeout(self._append_s):
                await self._append(change)
        except TimeoutError:
            raise ChannelUnavailable(f"{change.bundle}: no leader has confirmed the change in time") from None

    async def _append(self, change: BundleChange) -> None:
        while True:
            self._changed.clear()
            if self._led is not None and self._led.is_open:
                await self._led.append(change)
                return
            leader = self._election.leader()
            if leader is not None and leader != self._me:
                at = await self._sent(leader, change)
                if at is not None:
                    await self._followed.reached(at)
                    return
            # Nothing was stored: there is no leader, or it has not begun.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._changed.wait()

    async def _sent(self, leader: BrokerRun, change: BundleChange) -> Position | None:
        """Where the leader has stored the change; None if that broker does not lead."""
        try:
            answer = await self._calls.append(leader, AppendState(told(change)))
        except AnabranchError as error:
            raise ChannelUnavailable(f"{change.bundle}: {leader} has not answered: {error}") from error
        if answer.refused:
            raise ChangeRejected(answer.refused)
        return answer.at

    # -- for other brokers

    async def append_for(self, peer: str, request: AppendState) -> StateAppended:
        led = self._led
        if led is None or not led.is_open:
            return StateAppended()
        try:
            (change,) = changes_in([request.change])
            if change.author.broker != peer:
                return StateAppended(refused=f"{peer} writes for {change.author}")
            return StateAppended(await led.append(change))
        except (ChangeRejected, BadChange) as error:
            return StateAppended(refused=str(error))

    async def read_for(self, peer: str, request: ReadStates) -> StatesRead:
        led = self._leading()
        if request.since is not None and request.since > led.feed.end:
            raise NotReadyError("this broker is behind: another one leads")
        if request.since is not None and request.since >= led.feed.first:
            await led.feed.beyond(request.since, 0 if request.is_urgent else NEWS_S)
            led = self._leading()
            found = led.feed.after(request.since, self._changes_per_answer)
            if found is not None:
                at, changes = found
                return StatesRead(at, self._fold.term, [told(change) for change in changes])
        return self._part(led, request)

    def _leading(self) -> LedChannel:
        if self._led is None:
            raise NotReadyError("this broker does not lead: another one has the states of bundles")
        return self._led

    def _part(self, led: LedChannel, request: ReadStates) -> StatesRead:
        """A part of all states. Brokers that come at the same time read the same list."""
        image = self._image
        if image is None or image.at < led.feed.first:
            self._images += 1
            name = f"{self._me.run}-{self._images}"
            states = tuple(self._fold.bundles.values())
            image = self._image = _Image(name, led.feed.end, self._fold.term, states)
        offset = request.offset if request.image == image.name else 0
        some = image.part(offset, self._changes_per_answer)
        return StatesRead(image.at, image.term, some, image.name, offset, len(image.states))

    async def _end(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
