"""What was last read of some nodes, for answers that must not end when the store does not answer for a while.

While the session is in doubt every call of the store is refused. A client that connects again meanwhile asks for
nothing new: the topic that it uses is open, and what must be known about that topic was read before. So the questions
of such a client are answered with what was last read. Writes are refused all the same, so that nothing is
changed on the ground of such an answer. Once a session is lost, nothing that was read in it counts any more.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Final

from anabranch.metadata.errors import StoreUnavailable
from anabranch.metadata.port import MetadataStore, SessionState, Versioned

NODES_MAX: Final = 50_000
BYTES_MAX: Final = 8 * 1024 * 1024


class LastReads:
    """At the limits the nodes that were read longest ago are forgotten."""

    def __init__(
        self, metadata: MetadataStore, nodes_max: int = NODES_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._metadata = metadata
        self._nodes_max = nodes_max
        self._bytes_max = bytes_max
        self._nodes: OrderedDict[str, Versioned | None] = OrderedDict()
        self._bytes = 0
        metadata.session.on_change(self._session_changed)

    def __len__(self) -> int:
        return len(self._nodes)

    async def get(self, path: str) -> Versioned | None:
        """The node; while the session is in doubt, as it was last read. StoreUnavailable if it was not."""
        try:
            found = await self._metadata.get(path, fresh=True)
        except StoreUnavailable as error:
            return self._last(path, error)
        self.note(path, found)
        return found

    async def exists(self, path: str) -> bool:
        """Whether there is a node, of which nothing else is remembered. That there is none is no answer while the
        session is in doubt: it may have been made since."""
        try:
            found = await self._metadata.get(path, fresh=True)
        except StoreUnavailable as error:
            if self._last(path, error) is None:
                raise
            return True
        self.note(path, None if found is None else dataclasses.replace(found, value=b""))
        return found is not None

    def _last(self, path: str, refusal: StoreUnavailable) -> Versioned | None:
        if self._metadata.session.state is not SessionState.IN_DOUBT or path not in self._nodes:
            raise refusal
        return self._nodes[path]

    def note(self, path: str, found: Versioned | None) -> None:
        """The node is known to be so, as after a write."""
        self._forget(path)
        self._nodes[path] = found
        self._bytes += _size(path, found)
        while len(self._nodes) > self._nodes_max or self._bytes > self._bytes_max:
            oldest = next(iter(self._nodes))
            self._forget(oldest)

    def _forget(self, path: str) -> None:
        if path in self._nodes:
            self._bytes -= _size(path, self._nodes.pop(path))

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._nodes.clear()
            self._bytes = 0


def _size(path: str, found: Versioned | None) -> int:
    return len(path) + (0 if found is None else len(found.value))
