"""Which topics a namespace consumer reads, and how each update of the broker changes them. Pure.

A snapshot replaces the set, a diff removes first and then adds; both may come twice. A topic that a diff removes and
adds was deleted and created again: it is closed, and opened as another topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from anabranch.model.topic_hash import topic_hash


@dataclass(frozen=True, slots=True)
class TopicChange:
    """The topics to close, then those to open."""

    closed: frozenset[str] = frozenset()
    opened: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.closed or self.opened)


@dataclass(frozen=True, slots=True)
class TopicSet:
    names: frozenset[str] = field(default_factory=frozenset)

    def replaced(self, names: Iterable[str]) -> tuple[TopicSet, TopicChange]:
        now = frozenset(names)
        return TopicSet(now), TopicChange(self.names - now, now - self.names)

    def moved(self, removed: Iterable[str], added: Iterable[str]) -> tuple[TopicSet, TopicChange]:
        gone = self.names & frozenset(removed)
        left = self.names - gone
        new = frozenset(added) - left
        return TopicSet(left | new), TopicChange(gone, new)

    @property
    def hash(self) -> str:
        """The hash that a broker with the same set computes."""
        return topic_hash(self.names)
