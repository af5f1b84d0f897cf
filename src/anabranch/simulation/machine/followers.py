"""Servers of an ensemble that are behind: what each of them has heard of the store's changes so far.

A session reads from one follower. Its plain reads show the tree as it was some time ago, and its watches report changes
when the follower hears of them, in order. A write or a fresh read of the session brings its follower up to date first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from anabranch.metadata.paths import below, name, parent
from anabranch.metadata.port import Versioned
from anabranch.simulation.machine.loop import context_of

# No follower is further behind.
LAG_MAX_S: Final = 0.5


class Past:
    """The tree as it was after each of its last changes. Changes are numbered from 1 on."""

    def __init__(self) -> None:
        self.last = 0
        # The changes of the last LAG_MAX_S: number, time, paths.
        self.recent: deque[tuple[int, float, tuple[str, ...]]] = deque()
        # By path: numbers of changes, and the node after each.
        self._nodes: dict[str, tuple[list[int], list[Versioned | None]]] = {}
        self._names: dict[str, set[str]] = {}

    def note(self, now_s: float, changed: Mapping[str, Versioned | None]) -> None:
        self.last += 1
        self.recent.append((self.last, now_s, tuple(changed)))
        for path, node in changed.items():
            numbers, nodes = self._nodes.setdefault(path, ([0], [None]))
            numbers.append(self.last)
            nodes.append(node)
            self._names.setdefault(parent(path), set()).add(name(path))
        while self.recent[0][1] < now_s - LAG_MAX_S:
            number, _, paths = self.recent.popleft()
            for path in paths:
                self._forget(path, number)

    def number_at(self, now_s: float) -> int:
        """The last change at or before that time, which is at most LAG_MAX_S ago."""
        for number, at_s, _ in self.recent:
            if at_s > now_s:
                return number - 1
        return self.last

    def node(self, path: str, number: int) -> Versioned | None:
        """The node as it was after that change."""
        numbers, nodes = self._nodes.get(path, ([0], [None]))
        return nodes[bisect_right(numbers, number) - 1]

    def children(self, path: str, number: int) -> list[str]:
        start = below(path)
        return sorted(one for one in self._names.get(path, ()) if self.node(start + one, number) is not None)

    def records_below(self, prefix: str, number: int) -> list[tuple[str, Versioned]]:
        paths = sorted(path for path in self._nodes if path.startswith(below(prefix)))
        nodes = [(path, self.node(path, number)) for path in paths]
        return [(path, node) for path, node in nodes if node is not None and node.value]

    def _forget(self, path: str, number: int) -> None:
        """Forgets what the node was before that change."""
        kept = self._nodes.get(path)
        if kept is None:
            return
        numbers, nodes = kept
        first = bisect_right(numbers, number) - 1
        del numbers[:first], nodes[:first]
        if nodes == [None]:
            del self._nodes[path]
            self._names[parent(path)].discard(name(path))


class Follower:
    """The server of one session, `lag_s` behind. `tell` is called with the paths of each change that it hears of."""

    def __init__(self, past: Past, lag_s: float, tell: Callable[[Iterable[str]], None]) -> None:
        assert 0 <= lag_s <= LAG_MAX_S
        self._past = past
        self._lag_s = lag_s
        self._tell = tell
        self._heard = past.last
        self._loop = asyncio.get_running_loop()

    def changed(self) -> None:
        """A change was made: this follower hears of it later."""
        self._loop.call_later(self._lag_s, self.hear, context=context_of(None))

    def hear(self) -> int:
        """The last change that the session sees now."""
        # Rounded in favour of the timer, which stands for the same moment.
        return self._advance(self._past.number_at(self._loop.time() - self._lag_s + 1e-9))

    def catch_up(self) -> None:
        self._advance(self._past.last)

    def node(self, path: str) -> Versioned | None:
        return self._past.node(path, self.hear())

    def children(self, path: str) -> list[str]:
        return self._past.children(path, self.hear())

    def records_below(self, prefix: str) -> list[tuple[str, Versioned]]:
        return self._past.records_below(prefix, self.hear())

    def _advance(self, number: int) -> int:
        if number > self._heard:
            heard, self._heard = self._heard, number
            for one, _, paths in self._past.recent:
                if heard < one <= number:
                    self._tell(paths)
        return self._heard
