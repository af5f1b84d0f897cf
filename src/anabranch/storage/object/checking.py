"""Looks at a whole log in an object store without changing anything: what it holds, and whether all of it can be read.

`survey` says what of each log is wanted, what would be deleted or rewritten, and what is garbage: objects that nothing
names. `verify` reads every object with wanted entries back, and checks each of their records.

Both know what is wanted from the topics' records alone, and may run while brokers do. Brokers write, move and delete
meanwhile, so what a second look does not confirm is not reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from anabranch.model.position import Incarnation
from anabranch.storage.object.blocks import BlockCache
from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.objects import (
    LogKeys,
    decode_table,
    is_fence,
    number_of,
    rewritten_of,
    table_bytes,
)
from anabranch.storage.object.indexing import LogIndex, in_parallel
from anabranch.storage.object.medium import MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.reading import records_in
from anabranch.storage.object.requests import asked
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import LiveLedger, LogError

_LOGS: Final = "wal"
_MAGIC_BYTES: Final = 8


@dataclass(slots=True)
class LogSurvey:
    """One incarnation's log."""

    incarnation: Incarnation
    # "open" as long as no answer about all of it is stored, "ended", or "gone" once nothing of it is wanted.
    state: str = "open"
    objects: int = 0
    size: int = 0
    fences: int = 0
    # Bytes of runs that records want.
    wanted: int = 0
    # Keys and sizes: with nothing wanted in them; more than half dead; named by nothing.
    dead: list[tuple[str, int]] = field(default_factory=list)
    mostly_dead: list[tuple[str, int]] = field(default_factory=list)
    garbage: list[tuple[str, int]] = field(default_factory=list)
    # The newest map when this was found out; 0 if there is none.
    map_number: int = 0
    # What cannot be understood.
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that a record wants and that cannot be read."""

    key: str
    # The byte of the object, -1 if it has none of it.
    offset: int
    ledger: int
    entry: int
    # The record that names the ledger.
    record: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.key} at byte {self.offset}" if self.offset >= 0 else self.key
        return f"{self.record} ledger {self.ledger} entry {self.entry}: {self.reason} ({where})"


@dataclass(slots=True)
class Verified:
    objects: int = 0
    size: int = 0
    entries: int = 0
    faults: list[Fault] = field(default_factory=list)


class LogChecker:
    def __init__(self, medium: ObjectMedium, policy: ObjectLogPolicy | None = None) -> None:
        self._medium = medium
        self._policy = policy or ObjectLogPolicy()
        self._blocks = BlockCache(medium, self._policy)

    async def close(self) -> None:
        await self._blocks.close()

    async def survey(self, records: Iterable[LiveLedger]) -> AsyncIterator[LogSurvey]:
        """`records` are read after the objects are listed, or not long before: what was written since is kept."""
        named = _by_log(records)
        listed: dict[Incarnation, list[tuple[str, int]]] = {}
        for key, size in await asked(lambda: self._medium.list(_LOGS), self._policy):
            parts = key.split("/")
            if len(parts) > 3:
                listed.setdefault(Incarnation(parts[2]), []).append((key, size))
        for incarnation, objects in sorted(listed.items()):
            yield await self._survey(incarnation, objects, named.get(incarnation, {}))

    async def _survey(
        self,
        incarnation: Incarnation,
        listed: Sequence[tuple[str, int]],
        named: Mapping[int, LiveLedger],
    ) -> LogSurvey:
        found = LogSurvey(incarnation, objects=len(listed), size=sum(size for _, size in listed))
        keys = LogKeys(incarnation)
        if any(key == keys.gone for key, _ in listed):
            found.state = "gone"
        elif await self._exists(keys.ended_mark):
            found.state = "ended"
        index = LogIndex(self._medium, self._blocks, keys, self._policy)
        try:
            if found.state != "gone":
                await index.look()
        except LogError as error:
            found.errors.append(f"{keys.folder}: {error}")
            return found
        found.map_number = index.map_number
        live = await index.places.live_bytes(lambda ledger: _range(named.get(ledger)))
        found.wanted = sum(live.values())
        unknown: list[tuple[str, int]] = []
        for key, size in listed:
            folder = key.removeprefix(f"{keys.folder}/").partition("/")[0]
            number = number_of(key) if folder == "log" else rewritten_of(key) if folder == "rewritten" else 0
            if folder == "rewritten" and number not in index.commits:
                # A rewriting may be under way, and the next map name it.
                found.garbage.append((key, size))
            elif folder == "map" and number_of(key) < index.map_number:
                found.dead.append((key, size))
            elif folder not in ("log", "rewritten"):
                if found.state == "gone" and key != keys.gone:
                    found.garbage.append((key, size))
            elif number not in index.commits or index.places.size(number) != size:
                unknown.append((key, size))
            elif number not in live:
                # A living log's own last commits are needed for its recovery.
                if found.state != "open" or number < index.scan_from:
                    found.dead.append((key, size))
            elif 2 * live[number] < size and size - live[number] >= RewritePolicy().object_waste_min:
                found.mostly_dead.append((key, size))
        await self._tell_fences(found, unknown)
        return found

    async def _tell_fences(self, found: LogSurvey, unknown: Sequence[tuple[str, int]]) -> None:
        """What is no commit that the log names is a fence, or was created by a writer that came too late."""

        async def is_one(n: int) -> bool | None:
            key = unknown[n][0]
            try:
                return is_fence(await asked(lambda: self._medium.get(key, 0, _MAGIC_BYTES), self._policy))
            except MediumMissingError:
                return None

        for (key, size), fence in zip(unknown, await in_parallel(is_one, range(len(unknown))), strict=True):
            if fence:
                found.fences += 1
            elif fence is False and found.state != "open":
                found.garbage.append((key, size))

    async def _exists(self, key: str) -> bool:
        try:
            await asked(lambda: self._medium.get(key), self._policy)
        except MediumMissingError:
            return False
        return True

    # -- reading everything back

    async def verify(self, records: Iterable[LiveLedger]) -> AsyncIterator[tuple[Incarnation, Verified]]:
        for incarnation, named in sorted(_by_log(records).items()):
            yield incarnation, await self._verify(incarnation, named)

    async def _verify(self, incarnation: Incarnation, named: Mapping[int, LiveLedger]) -> Verified:
        keys = LogKeys(incarnation)
        found = Verified()
        for attempt in range(2):
            index = LogIndex(self._medium, self._blocks, keys, self._policy)
            found = Verified()
            try:
                await index.look()
            except LogError as error:
                found.faults.append(Fault(keys.folder, -1, 0, 0, "", str(error)))
                continue
            await self._read_all(index, keys, named, found)
            # What is missing may have been moved while this read it: then it is found the second time.
            if not found.faults or attempt:
                break
        return found

    async def _read_all(
        self, index: LogIndex, keys: LogKeys, named: Mapping[int, LiveLedger], found: Verified
    ) -> None:
        live = await index.places.live_bytes(lambda ledger: _range(named.get(ledger)))
        good: dict[int, list[tuple[int, int]]] = {}

        async def read_one(number: int) -> None:
            try:
                data = memoryview(await asked(lambda: self._medium.get(keys.number(number)), self._policy))
            except MediumMissingError:
                # Its entries are reported as missing.
                return
            found.objects += 1
            found.size += len(data)
            _check_object(data, number, keys.number(number), named, good, found)

        await in_parallel(read_one, sorted(live))
        for ledger, one in sorted(named.items()):
            rows = index.places.rows_of(ledger)
            end = one.end
            if end is None:
                # The ledger is being written, or its end is not known yet: as much as was found.
                end = max([stop for _, stop in good.get(ledger, [])], default=one.first)
            bad = {fault.entry for fault in found.faults if fault.ledger == ledger}
            for entry in _gaps(good.get(ledger, []), one.first, end):
                if entry not in bad:
                    at = [row.number for row in rows if row.first <= entry][-1:]
                    key = keys.number(at[0]) if at else keys.folder
                    found.faults.append(Fault(key, -1, ledger, entry, one.record, "is missing, from here on"))


def _check_object(
    data: memoryview,
    number: int,
    key: str,
    named: Mapping[int, LiveLedger],
    good: dict[int, list[tuple[int, int]]],
    found: Verified,
) -> None:
    table = decode_table(data[: table_bytes(data)], number)
    if table is None:
        found.faults.append(Fault(key, 0, 0, 0, "", "the object is damaged, or not the one of that name"))
        return
    for ledger, run_first, entries, at, length in table.runs:
        one = named.get(ledger)
        if one is None or not entries:
            continue
        first = max(run_first, one.first)
        end = run_first + entries if one.end is None else min(run_first + entries, one.end)
        begin = first
        run = data[at : at + length]
        for entry, offset, record in records_in(run, ledger, run_first, first, end):
            if check_entry(run, offset, record, ledger, entry) is None:
                reason = (
                    "the record does not match its checksum" if record else "no record can be found there"
                )
                found.faults.append(Fault(key, at + offset, ledger, entry, one.record, reason))
                if begin < entry:
                    good.setdefault(ledger, []).append((begin, entry))
                begin = entry + 1 if record else end
            else:
                found.entries += 1
        if begin < end:
            good.setdefault(ledger, []).append((begin, end))


def _gaps(stretches: Iterable[tuple[int, int]], first: int, end: int) -> list[int]:
    """Where entries of [first, end) begin to be missing."""
    found = []
    at = first
    for begin, stop in sorted(stretches):
        if begin > at and at < end:
            found.append(at)
        at = max(at, stop)
    if at < end:
        found.append(at)
    return found


def _by_log(records: Iterable[LiveLedger]) -> dict[Incarnation, dict[int, LiveLedger]]:
    found: dict[Incarnation, dict[int, LiveLedger]] = {}
    for one in records:
        found.setdefault(one.incarnation, {})[one.ledger] = one
    return found


def _range(one: LiveLedger | None) -> tuple[int, int | None] | None:
    return None if one is None else (one.first, one.end)
