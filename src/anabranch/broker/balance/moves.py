"""Performs what the states of bundles ask of this broker (`balance.core.transfer`): takes bundles, receives them, hands
them over, closes them and splits them.

Each duty is a task of its own. It ends with a change of the channel, or when the channel has moved on without it. All
of it may be done twice: what a broker began and did not finish is begun again by whichever broker the next state names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from anabranch.balance.core.states import BundleChange
from anabranch.balance.core.transfer import Duty, DutyKind, duty_of, ended, must_wait_for_source
from anabranch.broker.balance.bundle_owners import BundleOwners
from anabranch.broker.balance.bundle_tasks import BundleTasks
from anabranch.broker.balance.calls import RELEASED, ReleasedBundle
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.broker.peers.methods import Nothing
from anabranch.broker.peers.peers import Peers
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.names import TopicName

log = logging.getLogger(__name__)

# How long a destination waits for a source that neither says anything nor lets go of a topic, and how often it looks
# meanwhile. The bundle's clients wait as long, and the end of the change comes on top of it.
SILENCE_MAX_S: Final = 3.0
LOOKS: Final = 6
# How often a source says how many topics are left.
PROGRESS_S: Final = 1.0
# How long to wait before a change or a call is tried again.
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 2.0


class MovedTopics(Protocol):
    """The topics of this broker, as far as bundles move; `HandOver` implements it."""

    async def let_go(self, holds: Callable[[TopicName], bool]) -> None: ...

    def left(self, holds: Callable[[TopicName], bool]) -> int: ...

    def here(self, holds: Callable[[TopicName], bool]) -> int: ...


class BundleMoves:
    def __init__(
        self,
        owners: BundleOwners,
        states: StateLog,
        topics: MovedTopics,
        peers: Peers,
        now_ms: Callable[[], int],
        split: Callable[[Duty], Awaitable[None]],
        *,
        silence_max_s: float = SILENCE_MAX_S,
        released: Callable[[BundleName], None] = lambda bundle: None,
    ) -> None:
        """`split` creates the children of a bundle and changes the boundaries of its namespace. `released` is told of
        each bundle that this broker has let go of."""
        self._owners = owners
        self._me = owners.me
        self._states = states
        self._topics = topics
        self._peers = peers
        self._now_ms = now_ms
        self._split = split
        self._silence_max_s = silence_max_s
        self._let_go = released
        self._tasks = BundleTasks()
        # What sources have last said, by bundle: the version of the transfer, and how many topics are left. And what
        # wakes the tasks that wait for it.
        self._said: dict[BundleName, tuple[int, int]] = {}
        self._news: dict[asyncio.Event, None] = {}
        self._stops: list[Callable[[], None]] = []
        peers.handlers.add(RELEASED, self._released)

    @property
    def under_way(self) -> int:
        return len(self._tasks)

    def start(self) -> None:
        """Begins with what the states ask for now, and follows them."""
        self._stops = [
            self._states.on_change(self._states_changed),
            self._owners.on_living(self._wake),
        ]
        self._states_changed(list(self._states.fold.bundles.values()))

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        await self._tasks.close()

    def _states_changed(self, changes: Sequence[BundleChange]) -> None:
        for change in changes:
            duty = duty_of(self._me, change)
            if duty is not None:
                self._begin(duty)
            elif (said := self._said.get(change.bundle)) is not None and said[0] < change.version:
                del self._said[change.bundle]
        self._wake()

    def _begin(self, duty: Duty) -> None:
        self._tasks.begin(duty.bundle, duty.version, lambda: self._perform(duty))

    async def _perform(self, duty: Duty) -> None:
        log.debug("%s: this broker is to %s it%s", duty.bundle, duty.kind, _with(duty))
        match duty.kind:
            case DutyKind.TAKE:
                await self._end(duty)
            case DutyKind.RECEIVE:
                await self._until_released(duty)
                await self._end(duty)
            case DutyKind.HAND_OVER:
                await self._hand_over(duty)
            case DutyKind.UNLOAD:
                await self._topics.let_go(duty.bundle.holds)
                self._let_go(duty.bundle)
                await self._end(duty)
            case DutyKind.SPLIT:
                await self._until_split(duty)
                await self._end(duty)

    async def _until_split(self, duty: Duty) -> None:
        pause_s = RETRY_S
        while self.is_due(duty):
            try:
                await self._split(duty)
                return
            except AnabranchError as error:
                # Its topics are served meanwhile. The leader ends what takes too long.
                log.warning("%s: not split yet, trying again in %s s: %s", duty.bundle, pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def is_due(self, duty: Duty) -> bool:
        """Whether the bundle is still in the state that gave the duty."""
        now = self._states.fold.get(duty.bundle)
        return now is not None and now.version == duty.version

    async def _end(self, duty: Duty) -> None:
        """Stores that the duty is done, unless the channel has moved on."""
        pause_s = RETRY_S
        while (now := self._states.fold.get(duty.bundle)) is not None and now.version == duty.version:
            try:
                await self._states.append(ended(duty, now, self._me, self._now_ms()))
                return
            except ChangeRejected as error:
                # The change that came first is about to be read.
                log.info("%s: the end of %s is not wanted any more: %s", duty.bundle, duty.kind, error)
            except AnabranchError as error:
                log.warning("%s: the end of %s is not stored yet: %s", duty.bundle, duty.kind, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    # -- the source

    async def _hand_over(self, duty: Duty) -> None:
        moving = asyncio.ensure_future(self._topics.let_go(duty.bundle.holds))
        try:
            while not (await asyncio.wait([moving], timeout=PROGRESS_S))[0]:
                with contextlib.suppress(AnabranchError):
                    await self._say(duty, self._topics.left(duty.bundle.holds))
            await moving
            self._let_go(duty.bundle)
        finally:
            # What is on its way goes on.
            moving.cancel()
        pause_s = RETRY_S
        while self.is_due(duty):
            try:
                await self._say(duty, 0)
                return
            except AnabranchError as error:
                log.info("%s: %s is not told that it has the bundle: %s", duty.bundle, duty.other, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _say(self, duty: Duty, left: int) -> None:
        assert duty.other is not None
        await self._peers.call(
            duty.other.broker, RELEASED, ReleasedBundle(str(duty.bundle), duty.version, left)
        )

    # -- the destination

    async def _released(self, peer: str, said: ReleasedBundle) -> Nothing:
        bundle = BundleName.parse(said.bundle)
        now = self._states.fold.get(bundle)
        # What is said may come before the transfer is read here. A source that is not the bundle's is not heard.
        is_early = now is None or now.version < said.version
        if is_early or (now is not None and now.source is not None and now.source.broker == peer):
            self._said[bundle] = (said.version, said.left)
            self._wake()
        return Nothing()

    async def _until_released(self, duty: Duty) -> None:
        """Returns once the source has let go of the bundle, is gone, or has done nothing for too long."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        before, since_s = self._progress(duty), loop.time()
        self._news[news] = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._silence_max_s / LOOKS):
                        while self._must_wait(duty):
                            news.clear()
                            await news.wait()
                        return
                if (now := self._progress(duty)) != before:
                    log.debug("%s: %s is still handing it over", duty.bundle, duty.other)
                    before, since_s = now, loop.time()
                elif loop.time() - since_s >= self._silence_max_s:
                    log.warning("%s: %s does not let go of it: it is taken", duty.bundle, duty.other)
                    return
        finally:
            self._news.pop(news, None)

    def _progress(self, duty: Duty) -> tuple[object, ...]:
        return self._topics.here(duty.bundle.holds), self._said.get(duty.bundle)

    def _must_wait(self, duty: Duty) -> bool:
        is_released = self._said.get(duty.bundle) == (duty.version, 0)
        return self.is_due(duty) and must_wait_for_source(duty, self._owners.living, is_released)

    def _wake(self) -> None:
        for news in self._news:
            news.set()


def _with(duty: Duty) -> str:
    match duty.kind:
        case DutyKind.RECEIVE:
            return f" from {duty.other}"
        case DutyKind.HAND_OVER:
            return f" to {duty.other}"
        case _:
            return ""
