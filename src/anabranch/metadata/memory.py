"""A metadata store in memory: nothing survives the process, everything else is as the port says.

`MemoryMetadata` is the shared tree; each `connect()` is a broker's handle. Handles can be disconnected, reconnected and
have their session expired: simulations inject faults this way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anabranch.metadata.embedded import EmbeddedMetadata, EmbeddedStore, Op
from anabranch.metadata.paths import below, name, parent
from anabranch.metadata.port import Versioned
from anabranch.metadata.tree import Tree

__all__ = ["MemoryMetadata", "MemoryStore"]

T = TypeVar("T")

MemoryStore = EmbeddedStore


class MemoryTree(Tree):
    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__()
        self._clock_ms = clock_ms
        self._last_ms = 0
        self._sessions = 0
        self._nodes: dict[str, Versioned] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._owned: dict[str, dict[str, None]] = {}

    def get(self, path: str) -> Versioned | None:
        return self._nodes.get(path)

    def _insert(self, path: str, node: Versioned) -> None:
        self._nodes[path] = node
        self._children.setdefault(parent(path), {})[name(path)] = None
        if node.owner is not None:
            self._owned.setdefault(node.owner, {})[path] = None

    def _update(self, path: str, node: Versioned) -> None:
        self._nodes[path] = node

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        siblings = self._children[parent(path)]
        del siblings[name(path)]
        if not siblings:
            del self._children[parent(path)]
        if node.owner is not None:
            del self._owned[node.owner][path]

    def _has_children(self, path: str) -> bool:
        return path in self._children

    def _child_names(self, path: str) -> list[str]:
        return sorted(self._children.get(path, ()))

    def _records_below(self, prefix: str) -> list[tuple[str, Versioned]]:
        found: list[tuple[str, Versioned]] = []
        folders = [prefix]
        while folders:
            start = below(folder := folders.pop())
            for child in self._children.get(folder, ()):
                path = start + child
                folders.append(path)
                node = self._nodes[path]
                if node.value:
                    found.append((path, node))
        return sorted(found, key=lambda record: record[0])

    def _owned_by(self, session: str) -> list[str]:
        return sorted(self._owned.get(session, ()))

    def _new_session_id(self) -> str:
        self._sessions += 1
        return str(self._sessions)

    def now_ms(self) -> int:
        self._last_ms = max(self._last_ms, self._clock_ms())
        return self._last_ms


class MemoryMetadata(EmbeddedMetadata):
    """The shared tree. `clock_ms` is wall-clock time, which may run back; the store's own time does not."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__()
        self._tree = MemoryTree(clock_ms)

    async def run(
        self,
        op: Op[T],
        *,
        node: str | None = None,
        folder: str | None = None,
        writes: str | None = None,
        always: bool = False,
    ) -> T:
        # Other tasks run before the request arrives and before its reply does, as with a store behind a
        # socket: without these two turns a race between callers could never show in a test.
        await asyncio.sleep(0)
        try:
            result = op(self._tree)
        finally:
            paths, self._tree.changed = self._tree.changed, {}
            self._tree.ending.clear()
            if paths:
                self.publish(paths)
        await asyncio.sleep(0)
        return result
