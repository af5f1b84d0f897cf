"""The MetadataStore port: a small tree of versioned records that brokers share.

It promises what ZooKeeper can promise, and nothing more, so that one contract suite judges every adapter:

- Paths look like `/managed/public/default/t`; callers encode their segments. A node has a value and may have
  children.
- Missing parents are made by `create` and `put`, with an empty value. They are real nodes, and they stay when
  their last child goes. Keep records and folders apart: a folder made that way answers `create` with
  AlreadyExists.
- Versions belong to one life of one node: 0 when made, one more for each `put`. A node deleted and made again
  starts over, so compare-and-set guards changes and does not detect a deletion followed by a creation.
- There is no operation on several nodes, and no snapshot across nodes.
- A retryable error (StoreUnavailable) or a cancelled call leaves a write in doubt: read before repeating it.
- A plain read (`get`, `exists`, `children`, `scan`) may be behind: it may lack a change that another session has
  already been told is stored. It is never behind what this session has seen: its own writes, a change that a watch has
  named, an earlier read. A write of this session, refused or not, and a fresh read (`get` with `fresh`) bring the
  session up to date: its later plain reads have everything that was stored before. So "write, then read" needs no
  fresh read, "read, then compare-and-set" neither, and "read, then act on something else" does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

# ZooKeeper refuses packets over 1 MiB, and the path and headers share the packet.
VALUE_BYTES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Versioned:
    """A node as it was at one moment."""

    value: bytes
    version: int
    created_ms: int
    modified_ms: int
    owner: str | None = None  # The id of the session that an ephemeral ends with.

    @property
    def is_ephemeral(self) -> bool:
        return self.owner is not None


class SessionState(Enum):
    """What the store last knew about its session."""

    CONNECTED = "connected"
    IN_DOUBT = "in doubt"  # No answer for a while: ephemerals may be gone already, or may still be kept.
    LOST = "lost"  # Ephemerals are gone. CONNECTED follows with a new id once a new session is made.


class MetadataSession(Protocol):
    """The store's live view of its session. The id changes when a lost session is replaced."""

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> SessionState: ...

    def on_change(self, callback: Callable[[SessionState], None]) -> Callable[[], None]:
        """Calls `callback`, on the event loop, at each change of state. Returns a function that stops this."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What to read again: these paths (created, changed or deleted), or everything below the prefix."""

    paths: frozenset[str] = frozenset()
    everything: bool = False


class Watch(Protocol):
    """Reports what to read again. Iterate it from one task; each item merges all changes since the last one.

    The first item is `everything`, and comes once the watch is armed: a loop over the watch needs no read
    before it. `everything` comes again after any session trouble, and when too many changes were waiting.
    Iteration ends when the watch or its store is closed. A watch is also a context manager that closes it.
    """

    def __aiter__(self) -> AsyncIterator[Changes]: ...

    async def __anext__(self) -> Changes: ...

    def close(self) -> None: ...

    def __enter__(self) -> Watch: ...

    def __exit__(self, *exc: object) -> None: ...


class MetadataStore(Protocol):
    """One session's handle on the shared tree. Bound to the event loop it was opened on."""

    @property
    def session(self) -> MetadataSession: ...

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        """The node, or None when it is absent.

        A plain read may be behind what another session was told before this call; with `fresh` it is not.
        """
        ...

    async def exists(self, path: str) -> bool: ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Versioned:
        """Make the node, and its missing parents; AlreadyExists when it is there.

        An ephemeral ends with the session that made it and cannot have children.
        """
        ...

    async def put(self, path: str, value: bytes, *, if_version: int | None = None) -> Versioned:
        """Store the value and return the node at its new version.

        With `if_version`, only over a node at exactly that version: else VersionConflict with the current
        version (None when absent). Without it, overwrite whatever is there or make the node. An ephemeral
        stays one.
        """
        ...

    async def delete(self, path: str, *, if_version: int | None = None) -> bool:
        """Remove the node; False when it was absent already. VersionConflict at another version, NotEmpty
        with children.
        """
        ...

    async def children(self, path: str) -> list[str]:
        """The sorted last segments of the node's children; none for an absent node. The root is `/`."""
        ...

    async def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        """Every record strictly below `prefix`, sorted by path, for bulk reads at start.

        Nodes with an empty value are folders and are left out. Not a snapshot: a change during the scan may
        be seen or missed, so watch first, then scan.
        """
        ...

    async def next_id(self, path: str) -> int:
        """An id this counter never gave before, larger than all it gave. Starts at 0; ids may be skipped.

        The counter is a node of its own, which must not be written or deleted by anything else.
        """
        ...

    async def next_ids(self, path: str, count: int) -> range:
        """A block of `count` consecutive ids, on the terms of `next_id`."""
        ...

    def watch(self, prefix: str) -> Watch:
        """Watch the node at `prefix` and everything below it."""
        ...

    async def now_ms(self) -> int:
        """The store's time. It never runs back, for any session, and no node's times are ahead of it."""
        ...

    async def close(self) -> None:
        """End the session, its ephemerals and its watches. May be called twice."""
        ...
