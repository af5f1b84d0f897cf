"""Gives the space of one log back: rewrites objects that are mostly dead, deletes what is not needed, with a delay.

    1. what is wanted of the chosen objects is copied into new ones          no map names these yet
    2. a map is created that names them, once                                locations are exchanged
    3. after the delay the old ones go, and so do maps and checkpoints that the map makes superfluous

A crash after 1 leaves objects that no map names: they are found by listing, and go once a newer map says that they are
late (`core/maps.py`). A crash after 2 leaves objects of which nothing is wanted: the map lists them, so they go.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from anabranch.storage.object.core.choice import ObjectFacts, RewriteCandidates
from anabranch.storage.object.core.maps import (
    MapNote,
    MappedLedger,
    encode_map,
    has_counted,
    is_garbage,
    namespaces_of,
    rewritten_number,
)
from anabranch.storage.object.core.objects import REWRITTEN, LogKeys, number_of, rewritten_of
from anabranch.storage.object.indexing import UNKNOWN_OWNER, LedgerOwner
from anabranch.storage.object.medium import MediumError
from anabranch.storage.object.places import EntryPlaces, MovedRun, Wanted
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import CountingMedium, asked, create_settled
from anabranch.storage.object.rewriting import RewrittenObject, WantedRun, grouped, wanted_runs

log = logging.getLogger(__name__)

T = TypeVar("T")

_DELETES_MAX: Final = 1000
# Ledgers that a map is made of before other work gets its turn.
_LEDGERS_AT_A_TIME: Final = 500
# Objects that are looked at before that.
_OBJECTS_AT_A_TIME: Final = 5000


@dataclass(slots=True)
class SpaceFigures:
    removed: int = 0
    rewritten_bytes: int = 0
    rewritten: int = 0
    maps: int = 0
    # Objects that were rewritten and never named.
    garbage: int = 0


@dataclass(frozen=True, slots=True)
class SpaceView:
    """A log as it is known at the moment."""

    keys: LogKeys
    places: EntryPlaces
    wanted: Wanted
    owners: Callable[[], Mapping[int, LedgerOwner]]
    # Which objects may go once nothing of them is wanted: those that recovery does not need.
    is_removable: Callable[[int], bool]
    # The newest checkpoint, the one with which recovery begins, and from where on commits may be in none.
    states: int
    states_needed_from: int
    scan_from: int
    # The log has ended, and all of it is known.
    has_all: bool
    # False if no entry and no state of it is wanted.
    has_wanted: bool = True


class LogSpace:
    """What is remembered of a log between two passes."""

    def __init__(
        self,
        medium: CountingMedium,
        keys: LogKeys,
        policy: ObjectLogPolicy,
        figures: SpaceFigures,
        *,
        map_number: int = 0,
        map_states: int = 0,
        namespaces: Mapping[int, str] | None = None,
        may_have_garbage: bool = False,
    ) -> None:
        self._medium = medium
        self._keys = keys
        self._policy = policy
        self._figures = figures
        # The newest map that is known, and the checkpoint as of which it is.
        self._map_number = map_number
        self._map_states = map_states
        self._namespaces = dict(namespaces or {})
        # Another broker has stored a map: what is known of the log is old.
        self.is_overtaken = False
        # When each object, and each map or checkpoint, was first found to be unneeded, on the loop's clock.
        self._dead_since: dict[int, float] = {}
        self._old_since: dict[str, float] = {}
        # Objects that are not rewritten: a record in them is damaged, or they were.
        self._done: set[int] = set()
        # Rewritten objects that no map names, and the newest map when they were seen.
        self._strays: dict[int, int] = {}
        self._may_have_garbage = may_have_garbage
        self._has_old_maps = may_have_garbage

    @property
    def map_number(self) -> int:
        return self._map_number

    @property
    def has_strays(self) -> bool:
        return bool(self._strays)

    async def tidy(self, view: SpaceView, *, is_thorough: bool) -> None:
        """One pass. The view's places are changed as objects are rewritten and deleted."""
        while not self.is_overtaken and await self._rewrite_some(view, is_thorough=is_thorough):
            pass
        if self._may_have_garbage:
            await self._look_for_strays(view)
        if not self.is_overtaken and self._needs_map(view):
            await self._store_map(view, [])
        if self.is_overtaken:
            return
        # Before what is wanted is added up: meanwhile more may be confirmed.
        known = list(view.places.numbers)
        live = await view.places.live_bytes(view.wanted)
        dead = [one async for one in in_turns(known) if one not in live and view.is_removable(one)]
        await self._delete_due(view, dead)

    # -- rewriting

    async def _rewrite_some(self, view: SpaceView, *, is_thorough: bool) -> bool:
        """True if this achieved something, so that another round makes sense."""
        policy = self._policy
        if not policy.rewrite_bytes_per_second or view.places.rows > policy.map_rows_max:
            return False
        live = await view.places.live_bytes(view.wanted)
        candidates = RewriteCandidates(policy.rewrite)
        async for number in in_turns(live):
            if number not in self._done and view.is_removable(number) and (size := view.places.size(number)):
                candidates.add(ObjectFacts(number, size, live[number], self._namespaces.get(number, "")))
        job = candidates.job(is_thorough=is_thorough)
        if not job:
            return False
        began = asyncio.get_running_loop().time()
        runs: list[tuple[str, WantedRun]] = []
        owners = view.owners()
        sources: set[int] = set()
        for one in job:
            found = await wanted_runs(self._medium, view.keys, one.number, view.places, view.wanted, policy)
            if found is None:
                self._done.add(one.number)
                continue
            sources.add(one.number)
            runs += [(owners.get(run.ledger, UNKNOWN_OWNER).namespace, run) for run in found]
        if not sources:
            return True
        is_done = await self._exchange(view, sources, grouped(runs, policy.rewrite))
        read = sum(one.size for one in job)
        seconds = read / policy.rewrite_bytes_per_second
        await asyncio.sleep(max(0.0, began + seconds - asyncio.get_running_loop().time()))
        return is_done

    async def _exchange(
        self, view: SpaceView, sources: Collection[int], objects: Sequence[RewrittenObject]
    ) -> bool:
        # Until the map is stored, these may be left behind.
        self._may_have_garbage = True
        made: list[tuple[int, RewrittenObject, int]] = []
        for index, one in enumerate(objects):
            number = rewritten_number(REWRITTEN, self._map_number + 1, index, secrets.randbits(32))
            data = one.encode(number)
            if not await create_settled(self._medium, view.keys.number(number), data, self._policy):
                return False
            made.append((number, one, len(data)))
        if not await self._store_map(view, made, sources):
            return False
        self._done |= set(sources)
        self._figures.rewritten += len(sources)
        self._figures.rewritten_bytes += sum(size for *_, size in made)
        return True

    # -- maps

    def _needs_map(self, view: SpaceView) -> bool:
        if view.places.rows > self._policy.map_rows_max:
            return False
        if any(seen >= self._map_number for seen in self._strays.values()):
            return True
        new = view.states - self._map_states
        return view.has_wanted and new > 0 if view.has_all else new >= self._policy.map_states

    async def _store_map(
        self,
        view: SpaceView,
        made: Sequence[tuple[int, RewrittenObject, int]],
        sources: Collection[int] = (),
    ) -> bool:
        """Exchanges the locations; False if another broker was first."""
        number = self._map_number + 1
        moved: dict[int, list[MovedRun]] = {}
        for at, one, _ in made:
            for ledger, run in one.moved(at):
                moved.setdefault(ledger, []).append(run)
        new_sizes = {at: size for at, _, size in made}
        places = view.places.copy()
        places.swap(sources, moved)
        places.set_sizes(new_sizes)
        named = {**self._namespaces, **{at: one.namespace for at, one, _ in made}}
        note = MapNote(
            number,
            view.states,
            view.scan_from,
            view.has_all,
            *places.packed_sizes(),
            namespaces_of(named, places.numbers),
            await _mapped(places, view),
        )
        key = view.keys.map(number)
        created = await create_settled(self._medium, key, encode_map(note), self._policy)
        listed = await asked(lambda: self._medium.list(view.keys.maps), self._policy)
        self._has_old_maps = True
        if not has_counted(created, number, max((number_of(one) for one, _ in listed), default=0)):
            self.is_overtaken = True
            return False
        view.places.swap(sources, moved)
        view.places.set_sizes(new_sizes)
        self._namespaces = note.namespaces
        self._map_number, self._map_states = number, view.states
        self._figures.maps += 1
        return True

    # -- deleting

    async def _look_for_strays(self, view: SpaceView) -> None:
        listed = await asked(lambda: self._medium.list(view.keys.rewritten), self._policy)
        named = view.places.numbers
        found = {number for key, _ in listed if (number := rewritten_of(key)) and number not in named}
        self._strays = {one: self._strays.get(one, self._map_number) for one in sorted(found)}
        self._may_have_garbage = bool(found)

    async def _delete_due(self, view: SpaceView, dead: Sequence[int]) -> None:
        """Deletes what has been unneeded for long enough."""
        strays = [
            number
            for number, seen in self._strays.items()
            if is_garbage(seen, self._map_number, is_named=bool(view.places.size(number)))
        ]
        old = await self._superseded(view) if self._has_old_maps else []
        now, delay = asyncio.get_running_loop().time(), self._policy.delete_delay_seconds
        since: dict[int, float] = {}
        async for number in in_turns([*dead, *strays]):
            since[number] = self._dead_since.get(number, now)
        self._dead_since = since
        self._old_since = {key: self._old_since.get(key, now) for key in old}
        due = [number async for number in in_turns(list(since)) if now - since[number] >= delay]
        due.sort()
        for at in range(0, len(due), _DELETES_MAX):
            some = due[at : at + _DELETES_MAX]
            await delete_keys(self._medium, [view.keys.number(number) for number in some], self._policy)
            for number in some:
                self._gone(view, number)
        old = sorted(key for key, first in self._old_since.items() if now - first >= delay)
        await delete_keys(self._medium, old, self._policy)
        for key in old:
            del self._old_since[key]

    def _gone(self, view: SpaceView, number: int) -> None:
        del self._dead_since[number]
        self._done.discard(number)
        if self._strays.pop(number, None) is not None:
            self._figures.garbage += 1
        self._figures.removed += 1
        view.places.remove(number)

    async def _superseded(self, view: SpaceView) -> list[str]:
        """Maps older than the newest one, and checkpoints that it has and recovery does not need."""
        maps = await asked(lambda: self._medium.list(view.keys.maps), self._policy)
        found = [key for key, _ in maps if number_of(key) < self._map_number]
        states = await asked(lambda: self._medium.list(view.keys.states), self._policy)
        needed_from = min(view.states_needed_from, self._map_states + 1)
        found += [key for key, _ in states if number_of(key) < needed_from]
        self._has_old_maps = bool(found)
        return found


async def in_turns(items: Collection[T]) -> AsyncIterator[T]:
    """All of them. There may be millions: other work gets its turn in between."""
    for n, item in enumerate(items, 1):
        yield item
        if n % _OBJECTS_AT_A_TIME == 0:
            await asyncio.sleep(0)


async def _mapped(places: EntryPlaces, view: SpaceView) -> list[MappedLedger]:
    owners = view.owners()
    found = []
    for n, ledger in enumerate(sorted({*places.ledgers, *owners})):
        is_wanted = view.wanted(ledger) is not None
        if view.has_all and not is_wanted:
            continue
        # Checkpoints may name a ledger that is dead: its record can be asked then.
        columns = places.packed(ledger) if is_wanted else (b"", b"", b"")
        found.append(MappedLedger(ledger, *owners.get(ledger, UNKNOWN_OWNER), *columns))
        if n % _LEDGERS_AT_A_TIME == 0:
            await asyncio.sleep(0)
    return found


async def delete_keys(medium: CountingMedium, keys: Sequence[str], policy: ObjectLogPolicy) -> None:
    for at in range(0, len(keys), _DELETES_MAX):
        some = keys[at : at + _DELETES_MAX]
        for failures in range(1, 5):
            try:
                await medium.delete(some)
                break
            except MediumError:
                await asyncio.sleep(policy.retry_after(failures))
        else:
            await medium.delete(some)
