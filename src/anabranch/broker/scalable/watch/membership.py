"""Which scalable topics of a namespace a watcher has been sent, and what it is to be sent next. Pure.

`see` takes the states of topics, in any order and as often as they are read; `take` returns the difference to what was
sent last. In one difference:

- a topic that was created and deleted is not mentioned;
- a topic that was deleted and created again is both removed and added: its name is the same and its users must start
  over. A store may merge a deletion and a creation into one change, so this is decided by the topic's generation, not
  by having seen it missing.

The pending names are never more than the existing topics and those that the watcher knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from anabranch.model.scalable import BadRecord


class Listed(msgspec.Struct, frozen=True, gc=False):
    """What a watch needs of a topic: the part of its record that filters and comparisons need."""

    generation: int = 0
    properties: dict[str, str] | None = None
    deleting: bool = False


_decode = msgspec.json.Decoder(Listed).decode


def listed(value: bytes) -> Listed | None:
    """Decoded from a topic's stored record. None for a mere folder and for a topic that is being deleted."""
    if not value:
        return None
    try:
        found = _decode(value)
    except msgspec.DecodeError as error:
        raise BadRecord(f"the stored record of a scalable topic cannot be read: {error}") from error
    return None if found.deleting else found


@dataclass(frozen=True, slots=True)
class Difference:
    """Removals come first: a name in both is a topic that was created again."""

    added: list[str]
    removed: list[str]


class Membership:
    """The topics that have every one of `filters`, from `begin` on."""

    __slots__ = ("_filters", "_joined", "_left", "_told")

    def __init__(self, filters: Iterable[tuple[str, str]] = ()) -> None:
        self._filters = tuple(filters)
        self._told: dict[str, int] = {}  # The generation of each topic, by name.
        # What `take` will return.
        self._joined: dict[str, int] = {}
        self._left: set[str] = set()

    def begin(self, topics: Mapping[str, Listed]) -> list[str]:
        """The whole set, sorted. The watcher is about to be sent it, or is known to have it."""
        self._told = {name: found.generation for name, found in topics.items() if self.has(found)}
        self._joined.clear()
        self._left.clear()
        return sorted(self._told)

    def has(self, found: Listed) -> bool:
        properties = found.properties or {}
        return all(properties.get(key) == value for key, value in self._filters)

    def see(self, name: str, found: Listed | None) -> None:
        """The present state of that topic; None if it does not exist."""
        known = self._told.get(name)
        now = found.generation if found is not None and self.has(found) else None
        if known is not None and now != known:
            self._left.add(name)
        if now is None:
            self._joined.pop(name, None)
        elif now != known or name in self._left:
            self._joined[name] = now

    @property
    def has_news(self) -> bool:
        return bool(self._joined or self._left)

    @property
    def pending(self) -> int:
        """How many names wait to be sent."""
        return len(self._joined) + len(self._left)

    def take(self) -> Difference:
        """What changed since the last time, which counts as sent from now on."""
        difference = Difference(sorted(self._joined), sorted(self._left))
        for name in self._left:
            del self._told[name]
        self._told |= self._joined
        self._joined.clear()
        self._left.clear()
        return difference
