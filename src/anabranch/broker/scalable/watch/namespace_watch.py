"""A client's view of a namespace's scalable topics, kept up to date (commands 76 to 78).

Any broker serves it from the stored records. A watch joins the namespace's list before that is read, sends the whole
set once, and from then on what was added and removed, gathered over a short window. A reconnecting client names its set
by a hash, and is sent nothing if the set is still the same.

- A client that does not read its connection is sent nothing until it does; what it missed is then one difference, so
  nothing accumulates for it. A watch costs no task while nothing happens.
- If the store fails, a reconnecting client waits and its watch does not end, since Pulsar's client would not open it
  again; a first watch is refused after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.scalable.watch.membership import Difference, Listed, Membership
from anabranch.broker.scalable.watch.namespace_feed import NamespaceFeed, NamespaceTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import NamespaceName
from anabranch.model.topic_hash import topic_hash
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.frames import MESSAGE_BYTES_MAX

log = logging.getLogger(__name__)

WINDOW_S: Final = 0.05
RETRY_S: Final = 1.0
# How long a first watch waits for the store.
OPEN_WAIT_S: Final = 10.0
# The most bytes of a name in a list besides the name: its tag and its length.
NAME_OVERHEAD_BYTES: Final = 4
# The bytes of everything around the names.
FRAME_OVERHEAD_BYTES: Final = 64


class WatchLink(Protocol):
    """The client's connection. Calls `ServedNamespaceWatch.writable` whenever it becomes writable."""

    @property
    def is_writable(self) -> bool: ...

    def send(self, command: pb.BaseCommand) -> None: ...


@dataclass(eq=False)
class ServedNamespaceWatch:
    """One watch. Call `start` once; calls `ended` when it ends by itself, and nothing after `close`."""

    id: int
    namespace: NamespaceName
    feed: NamespaceFeed
    link: WatchLink
    ended: Callable[[ServedNamespaceWatch], None]
    # Awaited once, before anything is read: raises if this client may not watch, or there is no such namespace.
    admit: Callable[[], Awaitable[None]]
    filters: Sequence[tuple[str, str]] = ()
    # The hash of the set that the client has; "" if it has none.
    known_hash: str = ""
    frame_bytes_max: int = MESSAGE_BYTES_MAX
    window_s: float = WINDOW_S
    retry_s: float = RETRY_S
    open_wait_s: float = OPEN_WAIT_S
    is_closed: bool = False
    # The client has the set: from here on it is sent differences.
    is_live: bool = False
    _members: Membership = field(init=False)
    _topics: NamespaceTopics | None = None
    _opening: asyncio.Task[None] | None = None
    _window: asyncio.TimerHandle | None = None
    # There is something to send, and the client's connection is full.
    _is_held: bool = False

    def __post_init__(self) -> None:
        self._members = Membership(self.filters)

    def start(self) -> None:
        # Cancelled by `close`; handles its own failures.
        self._opening = asyncio.get_running_loop().create_task(self._open())

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.feed.leave(self.namespace, self)
        if self._window is not None:
            self._window.cancel()
        if self._opening is not None:
            self._opening.cancel()

    def writable(self) -> None:
        """The client reads again."""
        if self._is_held and not self.is_closed:
            self._is_held = False
            self._tell()

    @property
    def pending(self) -> int:
        """How many names wait to be sent."""
        return self._members.pending

    # -- the whole set

    async def _open(self) -> None:
        try:
            # A reconnecting client keeps the set that it has: it is sent the next one when the store answers.
            async with asyncio.timeout(None if self.known_hash else self.open_wait_s):
                await self._admitted()
                self._topics = self.feed.join(self.namespace, self, self._seen)
                await self._topics.read()
            self._tell()
        except TimeoutError:
            self._fail(
                NotReadyError(f"the topics of {self.namespace} cannot be read at the moment; try again")
            )
        except AnabranchError as error:
            self._fail(error)
        except Exception as error:
            log.exception("%s: a namespace watch failed", self.namespace)
            self._fail(error)
        finally:
            self._opening = None

    async def _admitted(self) -> None:
        while True:
            try:
                await self.admit()
                return
            except AnabranchError as error:
                if not error.retryable:
                    raise
                log.info("%s: a namespace watch waits: %s", self.namespace, error)
            await asyncio.sleep(self.retry_s)

    def _tell(self) -> None:
        """Sends all that is pending, unless the client does not read what it was sent already."""
        if self.is_closed:
            return
        if not self.link.is_writable:
            self._is_held = True
        elif not self.is_live:
            self._tell_all()
        elif self._members.has_news:
            for difference in pieces(self._members.take(), self.frame_bytes_max):
                command, update = _update(self.id)
                update.diff.added.extend(difference.added)
                update.diff.removed.extend(difference.removed)
                self.link.send(command)

    def _tell_all(self) -> None:
        assert self._topics is not None
        names = self._members.begin(self._topics.topics)
        self.is_live = True
        if self.known_hash and self.known_hash == topic_hash(names):
            return
        command, update = _update(self.id)
        update.snapshot.SetInParent()  # An empty set is sent too.
        update.snapshot.topics.extend(names)
        if (size := command.ByteSize()) <= self.frame_bytes_max:
            self.link.send(command)
            return
        self._fail(
            NotAllowedError(
                f"the names of {len(names)} scalable topics of {self.namespace} take {size} bytes, and a frame may "
                f"have {self.frame_bytes_max}: watch with a property filter that fewer of them match"
            )
        )

    def _fail(self, error: Exception) -> None:
        if self.is_closed:
            return
        log.info("%s: a namespace watch ends: %s", self.namespace, error)
        self._opening = None  # This task may be the caller, and must not be cancelled.
        self.close()
        self.link.send(namespace_error(self.id, error))
        self.ended(self)

    # -- differences

    def _seen(self, name: str, found: Listed | None) -> None:
        if not self.is_live:
            return  # The set is taken from the list when it is sent.
        self._members.see(name, found)
        if self._members.has_news and self._window is None and not self._is_held:
            self._window = asyncio.get_running_loop().call_later(self.window_s, self._window_over)

    def _window_over(self) -> None:
        self._window = None
        self._tell()


def pieces(difference: Difference, frame_bytes_max: int) -> Iterator[Difference]:
    """The same difference in frames that a client accepts: one, as a rule. All removals come before any addition."""
    room = frame_bytes_max - FRAME_OVERHEAD_BYTES
    piece, used = Difference([], []), 0
    for is_added, names in ((False, difference.removed), (True, difference.added)):
        for name in names:
            size = len(name.encode()) + NAME_OVERHEAD_BYTES
            if used and used + size > room:
                yield piece
                piece, used = Difference([], []), 0
            (piece.added if is_added else piece.removed).append(name)
            used += size
    yield piece


def namespace_error(watch_id: int, error: Exception) -> pb.BaseCommand:
    command, update = _update(watch_id)
    update.error = getattr(error, "code", None) or pb.UnknownError
    update.message = str(error) or type(error).__name__
    return command


def _update(watch_id: int) -> tuple[pb.BaseCommand, pb.CommandWatchScalableTopicsUpdate]:
    command = pb.BaseCommand(type=pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    return command, command.watchScalableTopicsUpdate
