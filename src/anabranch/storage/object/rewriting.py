"""Copies what is wanted of some objects into new ones: by namespace, sorted by ledger. Data plane, per run.

Records are copied as they are, and each is checked on the way: an object with a damaged record is left as it is. What
is kept in memory are the wanted records of one job, and one object that is read. New objects have the form of a commit,
so that they are read as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.objects import (
    LogKeys,
    decode_table,
    encode_commit,
    table_bytes,
)
from anabranch.storage.object.medium import ObjectMedium
from anabranch.storage.object.places import EntryPlaces, MovedRun, Wanted
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.reading import records_in
from anabranch.storage.object.requests import asked
from anabranch.storage.on_disk.reader import check_entry
from anabranch.storage.port import Buffer

log = logging.getLogger(__name__)

# Neighbouring entries of a ledger are made one run up to so many bytes: a reader reads whole runs.
_RUN_BYTES_MAX: Final = 1 << 20


class WantedRun(NamedTuple):
    """Consecutive wanted entries of a ledger, as records."""

    ledger: int
    first: int
    entries: int
    data: bytes


@dataclass(slots=True)
class RewrittenObject:
    namespace: str
    runs: list[WantedRun] = field(default_factory=list)
    size: int = 0

    def encode(self, number: int) -> bytes:
        rows = [(run.ledger, run.first, run.entries, len(run.data)) for run in self.runs]
        buffers: list[Buffer] = [run.data for run in self.runs]
        return encode_commit(0, number, 0, 0, rows, buffers)

    def moved(self, number: int) -> Iterable[tuple[int, MovedRun]]:
        """(ledger, where it lies) of each run."""
        return [
            (run.ledger, MovedRun(run.first, run.first + run.entries, number, len(run.data)))
            for run in self.runs
        ]


async def wanted_runs(
    medium: ObjectMedium,
    keys: LogKeys,
    number: int,
    places: EntryPlaces,
    wanted: Wanted,
    policy: ObjectLogPolicy,
) -> list[WantedRun] | None:
    """What is wanted of an object; None if any of it is damaged, or the object is not what it was."""
    key = keys.number(number)
    view = memoryview(await asked(lambda: medium.get(key), policy))
    table = decode_table(view[: table_bytes(view)], number)
    if table is None:
        log.error("%s is damaged, or not of this log: it is not rewritten", key)
        return None
    found: list[WantedRun] = []
    for ledger, run_first, entries, at, length in table.runs:
        if not entries or not places.has(ledger, run_first, number) or (of := wanted(ledger)) is None:
            # Runs that count for nothing, behind a fence, have no place.
            continue
        first, end = max(run_first, of[0]), run_first + entries
        end = end if of[1] is None else min(end, of[1])
        if first >= end:
            continue
        run = view[at : at + length]
        parts: list[memoryview] = []
        for entry, offset, record in records_in(run, ledger, run_first, first, end):
            if check_entry(run, offset, record, ledger, entry) is None:
                log.error("%s has a damaged record at byte %d: it is not rewritten", key, at + offset)
                return None
            parts.append(run[offset : offset + record])
        found.append(WantedRun(ledger, first, end - first, b"".join(parts)))
        await asyncio.sleep(0)
    return found


def grouped(runs: Iterable[tuple[str, WantedRun]], policy: RewritePolicy) -> list[RewrittenObject]:
    """The objects to create, of runs with their namespaces."""
    by_namespace: dict[str, list[WantedRun]] = {}
    for namespace, run in runs:
        by_namespace.setdefault(namespace, []).append(run)
    made: list[RewrittenObject] = []
    for namespace, some in sorted(by_namespace.items()):
        filling: RewrittenObject | None = None
        for run in _joined(sorted(some, key=lambda one: (one.ledger, one.first))):
            if filling is None or filling.size + len(run.data) > policy.object_bytes:
                filling = RewrittenObject(namespace)
                made.append(filling)
            filling.runs.append(run)
            filling.size += len(run.data)
    return made


def _joined(runs: Sequence[WantedRun]) -> Iterable[WantedRun]:
    """Neighbours as one run."""
    some: list[WantedRun] = []
    size = 0
    for run in runs:
        last = some[-1] if some else None
        if last is not None and (
            (last.ledger, last.first + last.entries) != (run.ledger, run.first)
            or size + len(run.data) > _RUN_BYTES_MAX
        ):
            yield _one(some)
            some, size = [], 0
        some.append(run)
        size += len(run.data)
    if some:
        yield _one(some)


def _one(runs: Sequence[WantedRun]) -> WantedRun:
    first = runs[0]
    if len(runs) == 1:
        return first
    return WantedRun(
        first.ledger, first.first, sum(run.entries for run in runs), b"".join([run.data for run in runs])
    )
