"""The rules of the tree, once for every embedded store; an adapter supplies where the nodes live.

Each operation makes all its checks before its first write, so a refusal leaves nothing half done and needs no
rollback.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    NotACounter,
    NotEmpty,
    StoreUnavailable,
    ValueTooLarge,
    VersionConflict,
)
from anabranch.metadata.paths import ROOT, check_path, check_prefix, parent
from anabranch.metadata.port import VALUE_BYTES_MAX, Versioned

# Ids travel as unsigned 64-bit numbers on the wire and as signed ones in some clients.
COUNTER_MAX = 2**63 - 1


class Tree(ABC):
    """Nodes, sessions and time. `changed` collects the new values of nodes until the adapter has made them durable."""

    def __init__(self) -> None:
        self.changed: dict[str, Versioned | None] = {}  # None for a node that was deleted.
        self.live: set[str] = set()
        # Sessions that ended while their ephemerals could not be removed yet (a full disk).
        self.ending: set[str] = set()

    # What an adapter supplies.

    @abstractmethod
    def get(self, path: str) -> Versioned | None: ...

    @abstractmethod
    def _insert(self, path: str, node: Versioned) -> None: ...

    @abstractmethod
    def _update(self, path: str, node: Versioned) -> None: ...

    @abstractmethod
    def _remove(self, path: str) -> None: ...

    @abstractmethod
    def _has_children(self, path: str) -> bool: ...

    @abstractmethod
    def _child_names(self, path: str) -> list[str]: ...

    @abstractmethod
    def _records_below(self, prefix: str) -> list[tuple[str, Versioned]]: ...

    @abstractmethod
    def _owned_by(self, session: str) -> list[str]: ...

    @abstractmethod
    def _new_session_id(self) -> str: ...

    @abstractmethod
    def now_ms(self) -> int:
        """The time, never before one returned earlier."""

    # Sessions.

    def begin_session(self) -> str:
        session = self._new_session_id()
        self.live.add(session)
        return session

    def end_session(self, session: str) -> None:
        self.live.discard(session)
        self.ending.add(session)
        self.finish_endings()

    def finish_endings(self) -> None:
        for session in sorted(self.ending):
            for path in self._owned_by(session):
                self._remove(path)
                self.changed[path] = None

    def check_session(self, session: str) -> None:
        """A request that arrives after its session's end is refused, as a server refuses it."""
        if session not in self.live:
            raise StoreUnavailable("the metadata session has ended")

    # The verbs.

    def create(self, path: str, value: bytes, owner: str | None) -> Versioned:
        check_size(path, value)
        if self.get(check_path(path)) is not None:
            raise AlreadyExists(path)
        return self._make(path, value, owner)

    def put(self, path: str, value: bytes, if_version: int | None) -> Versioned:
        check_size(path, value)
        old = self.get(check_path(path))
        if if_version is not None and (old is None or old.version != if_version):
            raise VersionConflict(path, if_version, None if old is None else old.version)
        return self._make(path, value, None) if old is None else self._change(path, old, value)

    def delete(self, path: str, if_version: int | None) -> bool:
        old = self.get(check_path(path))
        if old is None:
            return False
        if if_version is not None and old.version != if_version:
            raise VersionConflict(path, if_version, old.version)
        if self._has_children(path):
            raise NotEmpty(path)
        self._remove(path)
        self.changed[path] = None
        return True

    def children(self, path: str) -> list[str]:
        return self._child_names(check_prefix(path))

    def scan(self, prefix: str) -> list[tuple[str, Versioned]]:
        return self._records_below(check_prefix(prefix))

    def next_ids(self, path: str, count: int) -> range:
        """The node holds the first id not given out yet, so a block of any length is one write."""
        assert count > 0, "a block holds at least one id"
        old = self.get(check_path(path))
        first = 0 if old is None else counter_of(path, old.value)
        if first + count > COUNTER_MAX:
            raise NotACounter(path)
        value = b"%d" % (first + count)
        if old is None:
            self._make(path, value, None)
        else:
            self._change(path, old, value)
        return range(first, first + count)

    def _make(self, path: str, value: bytes, owner: str | None) -> Versioned:
        missing: list[str] = []
        above = parent(path)
        while above != ROOT:
            node = self.get(above)
            if node is not None:
                if node.is_ephemeral:
                    raise EphemeralParent(above)
                break
            missing.append(above)
            above = parent(above)
        now = self.now_ms()
        for folder in reversed(missing):
            made = self.changed[folder] = Versioned(b"", 0, now, now)
            self._insert(folder, made)
        node = Versioned(value, 0, now, now, owner)
        self._insert(path, node)
        self.changed[path] = node
        return node

    def _change(self, path: str, old: Versioned, value: bytes) -> Versioned:
        node = Versioned(value, old.version + 1, old.created_ms, self.now_ms(), old.owner)
        self._update(path, node)
        self.changed[path] = node
        return node


def check_size(path: str, value: bytes) -> None:
    """ValueTooLarge, unless every store we support can keep the value."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(f"value of {len(value)} bytes for {path}, limit {VALUE_BYTES_MAX}")


def counter_of(path: str, value: bytes) -> int:
    """The first id that a counter has not given yet, by the value of its node; NotACounter if it is none."""
    if not value:
        return 0  # A folder created as the parent of a child; nothing was counted yet.
    # isdigit lets no sign, space or underscore through, as int() would.
    if not value.isdigit() or len(value) > len(str(COUNTER_MAX)):
        raise NotACounter(path)
    return int(value)
