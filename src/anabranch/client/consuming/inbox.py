"""Data plane. The messages that the segments of one consumer have received and its application has not yet taken.

Entries wait here whole, in order of arrival; one entry at a time is open, split into messages. Taking a message is a
`pop` from a list, without a turn of the event loop. A taken message leaves the inbox at once and the others stay, so a
cancelled receive loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Final, Protocol

from anabranch.client.errors import CryptoFailed, TimedOut
from anabranch.client.message import Message, ReceivedEntry

MESSAGES_MAX: Final = 1000
BYTES_MAX: Final = 16 << 20
# The limits for readers of whole columns, where a batch of 1,000 messages is small.
COLUMN_MESSAGES_MAX: Final = 100_000
COLUMN_BYTES_MAX: Final = 32 << 20
# The most bytes that entries taken whole may unpack to together: a compressed entry states its size, and holds no more.
UNPACKED_BYTES_MAX: Final = 128 << 20
# The most messages given out without a turn of the event loop: other tasks must run too.
TURN_MESSAGES: Final = 1000
# The most that is opened at a time for other threads, which come here seldom.
AHEAD_MESSAGES: Final = 1000
AHEAD_BYTES: Final = 1 << 20


class InboxOwner(Protocol):
    """The consumer of one segment, as the inbox sees it."""

    @property
    def topic(self) -> str: ...

    def ask_for_more(self) -> None: ...


class EntryFollower(Protocol):
    """Is notified of what becomes of entries: see `Inbox`."""

    def opened(self, entry: ReceivedEntry) -> None: ...

    def dropped(self, first: Message) -> None: ...


class Inbox:
    """`messages_max` and `bytes_max` bound what segments ask for; a batch may exceed them.

    `opened` is called with each entry that is opened, before its first message is given out; `dropped` with the first
    of the messages that were not given out after all, because their segment was dropped.
    """

    def __init__(
        self,
        *,
        messages_max: int = MESSAGES_MAX,
        bytes_max: int = BYTES_MAX,
        opened: Callable[[ReceivedEntry], None] = lambda _: None,
        dropped: Callable[[Message], None] = lambda _: None,
    ) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.numbered = 0  # Messages with a number, which they get when their entry is opened.
        self.queued_bytes = 0
        self.queued_messages = 0
        self.segments = 0  # How many segments share the inbox.
        # The messages of the open entry, the last one first. Always the same list: callers may keep a reference. Other
        # threads may `pop` from it at any moment, if entries are opened ahead: then it holds messages of several
        # entries.
        self.ready: list[Message] = []
        self._open: ReceivedEntry | None = None
        self._is_ahead = False
        self._fault: Exception | None = (
            None  # The fault of an entry opened ahead: raised once earlier messages are taken.
        )
        self.opened = opened
        self.dropped = dropped
        self._entries: deque[ReceivedEntry] = deque()
        self._error: Exception | None = None
        self._something = asyncio.Event()
        self._held_back: set[InboxOwner] = set()
        self._turn = 0
        # Set while the application waits for a message; how many times it has begun to.
        self._awaited = asyncio.Event()
        self._times_awaited = 0

    def report_to(self, follower: EntryFollower) -> None:
        """Notifies the follower of what becomes of entries from here on."""
        self.opened = follower.opened
        self.dropped = follower.dropped

    # -- for segments

    def put(self, entry: ReceivedEntry) -> None:
        self._entries.append(entry)
        self.queued_bytes += len(entry.data)
        self.queued_messages += entry.count
        self._something.set()

    def fail(self, error: Exception) -> None:
        """Taking a message raises this error once every earlier message is taken, and from then on."""
        if self._error is None:
            self._error = error
        self._something.set()

    def wake(self) -> None:
        self._something.set()

    def drop(self, owner: InboxOwner) -> None:
        """Forgets everything of a segment that the application has not taken."""
        found = self._take_back()
        dropped = [message for message in found if message.container.owner is owner]
        self.ready.extend([message for message in found if message.container.owner is not owner])
        if self._open is not None and self._open.owner is owner:
            self._open = None
        if dropped:
            self.dropped(dropped[-1])
        if any(entry.owner is owner for entry in self._entries):
            self._entries = deque(entry for entry in self._entries if entry.owner is not owner)
            self.queued_bytes = sum(len(entry.data) for entry in self._entries)
            self.queued_messages = sum(entry.count for entry in self._entries)
        self._held_back.discard(owner)

    def ready_of(self, owner: InboxOwner) -> int:
        """How many messages of the open entry belong to a segment and are not taken."""
        if self._is_ahead:
            return sum(message.container.owner is owner for message in self.ready)
        return len(self.ready) if self._open is not None and self._open.owner is owner else 0

    def has_room(self, owner: InboxOwner) -> bool:
        """Whether a segment may ask for more. If not, `ask_for_more` is called when that changes."""
        if self.queued_bytes < self.bytes_max:
            return True
        self._held_back.add(owner)
        return False

    @property
    def share(self) -> int:
        """How many messages each segment may have here and under way."""
        return max(1, self.messages_max // max(1, self.segments))

    # -- for consumers

    def open_next(self) -> ReceivedEntry | None:
        """Opens the next entry into `ready`; None if there is none. Raises the entry's fault."""
        self._raise_fault()
        while self._entries:
            entry = self._open_one()
            if entry is not None:
                return entry
        if self._error is not None:
            raise self._error
        return None

    def _open_one(self) -> ReceivedEntry | None:
        """Opens the next entry and queues its messages behind those that are ready; None if it has no message to
        give."""
        entry = self._next_entry()
        self._turn += entry.count
        if entry.redeliveries and not entry.owner.is_wanted(entry):
            return None
        try:
            messages = entry.messages()
        except Exception as error:
            if isinstance(error, CryptoFailed) and entry.skips_failures:
                entry.owner.ack_entry(entry)
                return None
            if entry.owner.is_shared:
                # The application is told. Acknowledging later messages covers such an entry by position; where entries
                # are acknowledged one by one, this one must be among them, or it would hold its bucket for ever.
                self.opened(entry)
            raise
        self._open = entry
        self.opened(entry)
        self.ready[:0] = messages  # In one step, like the `pop`s of other threads.
        return entry if messages else None

    def _raise_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    # -- for other threads

    def open_ahead(self) -> None:
        """Opens more entries than one: up to half of what segments may ask for."""
        self._is_ahead = True
        limit = min(AHEAD_MESSAGES, self.messages_max // 2)
        size = 0
        while self._entries and self._fault is None and len(self.ready) < limit and size < AHEAD_BYTES:
            size += len(self._entries[0].data)
            try:
                self._open_one()
            except Exception as error:
                self._fault = error

    def _take_back(self) -> list[Message]:
        """Removes all ready messages, the last message first. It removes from the far end: other threads `pop` earlier
        messages meanwhile."""
        found: list[Message] = []
        if not self._is_ahead:
            found[:] = self.ready
            self.ready.clear()
            return found
        while True:
            try:
                found.append(self.ready.pop(0))
            except IndexError:
                return found

    # -- for readers of whole columns

    def enlarge(self) -> None:
        """Raises the limits for such readers, unless the application has set its own."""
        if self.messages_max == MESSAGES_MAX:
            self.messages_max = COLUMN_MESSAGES_MAX
            self.bytes_max = max(self.bytes_max, COLUMN_BYTES_MAX)

    async def rows(self, rows_max: int, timeout_s: float | None) -> None:
        """Returns once entries can be taken whole: those at hand and those that come at once, up to `rows_max`."""
        if not self.ready:
            self._raise_fault()
        if not self.ready and not self._entries:
            await self._wait_for_entry(timeout_s)
        seen = -1
        while seen != self.queued_messages < rows_max:
            seen = self.queued_messages
            await asyncio.sleep(0)

    async def _wait_for_entry(self, timeout_s: float | None) -> None:
        self._begin_to_wait()
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready and not self._entries:
                    if self._error is not None:
                        raise self._error
                    self._something.clear()
                    await self._something.wait()
        except TimeoutError:
            if not self.ready and not self._entries:
                raise TimedOut(f"no message came within {timeout_s:g} s") from None
        finally:
            self._awaited.clear()

    def take_whole(self, rows_max: int) -> list[ReceivedEntry]:
        """The entries at hand, not opened, up to `rows_max` messages; the first one in any case.

        Together they unpack to no more than `UNPACKED_BYTES_MAX`, unless the first alone does."""
        found: list[ReceivedEntry] = []
        rows = size = 0
        if self.ready:
            # The messages left of the open entries.
            left = self._take_back()
            rows = len(left)
            for entry, messages in groupby(reversed(left), key=attrgetter("container")):
                if entry.in_batch:
                    entry.want(sum(1 << message.index for message in messages))
                found.append(entry)
                size += entry.unpacked_size
        while self._entries:
            entry = self._entries[0]
            # An entry's own statement of its size may be false.
            count, unpacked = max(0, entry.count), entry.unpacked_size
            if found and (rows + count > rows_max or size + unpacked > UNPACKED_BYTES_MAX):
                break
            self._next_entry()
            if entry.redeliveries and not entry.owner.is_wanted(entry):
                continue
            rows += count
            size += unpacked
            self._open = entry
            self.opened(entry)
            found.append(entry)
        return found

    def _next_entry(self) -> ReceivedEntry:
        entry = self._entries.popleft()
        self.queued_bytes -= len(entry.data)
        self.queued_messages -= entry.count
        entry.number = self.numbered
        self.numbered += entry.count
        entry.owner.taken(entry, entry.waiting)
        if self._held_back and self.queued_bytes <= self.bytes_max // 2:
            self._release()
        return entry

    def _release(self) -> None:
        held_back, self._held_back = self._held_back, set()
        for owner in sorted(held_back, key=lambda one: one.topic):
            owner.ask_for_more()

    def take_now(self) -> Message | None:
        """The next message, if one is at hand."""
        while self.ready or self.open_next() is not None:
            try:
                return self.ready.pop()
            except IndexError:
                continue  # Another thread took it.
        return None

    async def next(self, timeout_s: float | None = None) -> Message:
        """The next message; raises TimedOut if no message comes in time."""
        if self._turn >= TURN_MESSAGES:
            self._turn = 0
            await asyncio.sleep(0)
        while (message := self.take_now()) is None:
            # The wait has seen a message, so the next turn finds it, unless another thread has taken it.
            await self._wait(timeout_s)
        return message

    async def _wait(self, timeout_s: float | None) -> None:
        """Returns once a message can be taken."""
        self._begin_to_wait()
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready and self.open_next() is None:
                    self._something.clear()
                    await self._something.wait()
        except TimeoutError:
            if not self.ready:
                raise TimedOut(f"no message came within {timeout_s:g} s") from None
        finally:
            self._awaited.clear()

    def _begin_to_wait(self) -> None:
        self._times_awaited += 1
        self._awaited.set()

    async def starved(self, for_s: float) -> None:
        """Returns once the application has waited for a message for that long."""
        while True:
            await self._awaited.wait()
            times = self._times_awaited
            await asyncio.sleep(for_s)
            if self._awaited.is_set() and times == self._times_awaited:
                return
