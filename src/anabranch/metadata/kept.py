"""Recently read or written nodes, kept on the event loop so that reading them again needs no thread.

Only for a store whose every change comes through this process. The cache holds the committed state: the thread reports
each commit's changes, and they replace cached values before any caller sees the commit. A path that a pending operation
may change is not answered from here: the read queues behind the operation, so a read after a write sees the outcome,
even if the writer was cancelled.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from anabranch.metadata.paths import ROOT, name, parent, upwards
from anabranch.metadata.port import Versioned


class Unknown(Enum):
    """The cache does not know: ask the store."""

    UNKNOWN = auto()


UNKNOWN: Final = Unknown.UNKNOWN
NODES_MAX = 4_096
BYTES_MAX = 8 * 1024 * 1024
# Longer lists change often and are copied for every reader.
LISTS_MAX = 1_024
LIST_NAMES_MAX = 64


class ReadCache:
    """Recently used nodes and lists of children. At the limits, the least recently used are dropped."""

    def __init__(self, nodes_max: int = NODES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._nodes_max = nodes_max
        self._bytes_max = bytes_max
        self._nodes: OrderedDict[str, Versioned | None] = OrderedDict()
        self._bytes = 0
        self._lists: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        # How many pending operations may change the node itself, and how many something below it.
        self._changing: Counter[str] = Counter()
        self._changing_below: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._nodes)

    # -- reading

    def node(self, path: str) -> Versioned | Unknown | None:
        found = self._nodes.get(path, UNKNOWN)
        if found is UNKNOWN or path in self._changing or ROOT in self._changing:
            return UNKNOWN
        if found is None and path in self._changing_below:
            return UNKNOWN  # A pending operation may create it as a parent.
        self._nodes.move_to_end(path)
        return found

    def children(self, path: str) -> list[str] | Unknown:
        found = self._lists.get(path)
        if found is None or path in self._changing_below or ROOT in self._changing:
            return UNKNOWN
        self._lists.move_to_end(path)
        return list(found)

    # -- operations on their way

    def begin(self, path: str) -> None:
        """An operation was sent that may change the node at `path` and create its parents; the root stands for all
        paths."""
        self._changing[path] += 1
        for above in upwards(path):
            if above != path:
                self._changing_below[above] += 1

    def end(self, path: str) -> None:
        """The operation was answered, and `changed` has been called with its changes."""
        _less(self._changing, path)
        for above in upwards(path):
            if above != path:
                _less(self._changing_below, above)

    # -- answers, in the order of the commits

    def found(self, path: str, node: Versioned | None) -> None:
        self._forget(path)
        self._nodes[path] = node
        self._bytes += _size(path, node)
        while len(self._nodes) > self._nodes_max or self._bytes > self._bytes_max:
            oldest, dropped = self._nodes.popitem(last=False)
            self._bytes -= _size(oldest, dropped)

    def listed(self, path: str, names: list[str]) -> None:
        self._lists.pop(path, None)
        if len(names) > LIST_NAMES_MAX:
            return
        self._lists[path] = tuple(names)
        if len(self._lists) > LISTS_MAX:
            self._lists.popitem(last=False)

    def changed(self, changes: Mapping[str, Versioned | None]) -> None:
        for path, node in changes.items():
            # By what is listed, not by the version: a commit may have created the node and changed it since.
            folder = parent(path)
            if node is None or name(path) not in self._lists.get(folder, ()):
                self._lists.pop(folder, None)
            self.found(path, node)

    def _forget(self, path: str) -> None:
        old = self._nodes.pop(path, UNKNOWN)
        if old is not UNKNOWN:
            self._bytes -= _size(path, old)


def _size(path: str, node: Versioned | None) -> int:
    return len(path) + (0 if node is None else len(node.value))


def _less(counts: Counter[str], path: str) -> None:
    counts[path] -= 1
    if not counts[path]:
        del counts[path]
