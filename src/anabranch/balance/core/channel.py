"""What the bundle state channel's topic holds, and what a reader makes of it. Pure.

Besides changes of bundles there are marks: of the beginning of a leader's term, and of snapshots. A snapshot is the
winning change of every bundle, written again between two marks. A reader that starts at a snapshot takes it as it is
and applies the changes after its beginning; so everything before the beginning of a complete snapshot can be trimmed.
That is the channel's compaction: the first valid change wins for a snapshot as for a reader, and never simply the last.

A snapshot whose end is missing, because its leader died, is nothing. Changes may be stored between its marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from anabranch.balance.core.fold import Fold
from anabranch.balance.core.states import BundleChange


@dataclass(frozen=True, slots=True)
class TermBegan:
    term: int


@dataclass(frozen=True, slots=True)
class SnapshotBegan:
    id: str  # Never used again.
    term: int


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    id: str
    change: BundleChange


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    id: str
    parts: int


ChannelEvent: TypeAlias = BundleChange | TermBegan | SnapshotBegan | SnapshotPart | SnapshotEnded


def snapshot_events(id: str, fold: Fold) -> Iterator[ChannelEvent]:
    """The snapshot of that fold. It is taken at the first event: changes that are stored while it is written follow."""
    winners = list(fold.bundles.values())
    yield SnapshotBegan(id, fold.term)
    for change in winners:
        yield SnapshotPart(id, change)
    yield SnapshotEnded(id, len(winners))


@dataclass(slots=True)
class _OpenSnapshot:
    """A snapshot whose end was not read yet, and the changes and terms since its beginning."""

    id: str
    term: int
    winners: list[BundleChange] = field(default_factory=list)
    since: list[BundleChange | TermBegan] = field(default_factory=list)

    def ended(self) -> Fold:
        made = Fold.restored(self.term, self.winners)
        for event in self.since:
            _fold(made, event)
        return made


class ChannelReader:
    """Reads events in their order, from the first one that there is."""

    def __init__(self) -> None:
        self.fold = Fold()
        # How many snapshots were taken whose states differed from what was read before them. Only the first one may,
        # where the events before it were trimmed.
        self.restored = 0
        # Changes since the beginning of the last complete snapshot.
        self.changes = 0
        self._open: _OpenSnapshot | None = None

    def read(self, event: ChannelEvent) -> BundleChange | None:
        """The change that was accepted, if the event is one."""
        match event:
            case SnapshotBegan(id, term):
                self._open = _OpenSnapshot(id, term)
            case SnapshotPart(id, change):
                if self._open is not None and self._open.id == id:
                    self._open.winners.append(change)
            case SnapshotEnded(id, parts):
                self._ended(id, parts)
            case _:
                if self._open is not None:
                    self._open.since.append(event)
                self.changes += isinstance(event, BundleChange)
                return _fold(self.fold, event)
        return None

    def _ended(self, id: str, parts: int) -> None:
        found, self._open = self._open, None
        if found is None or found.id != id or len(found.winners) != parts:
            return
        after = found.ended()
        if after.term != self.fold.term or after.bundles != self.fold.bundles:
            self.fold = after
            self.restored += 1
        self.changes = sum(isinstance(event, BundleChange) for event in found.since)


def _fold(fold: Fold, event: BundleChange | TermBegan) -> BundleChange | None:
    if isinstance(event, TermBegan):
        fold.lead(event.term)
        return None
    return event if fold.apply(event) is None else None
