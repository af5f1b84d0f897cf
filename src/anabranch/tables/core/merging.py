"""Which files of a table become one, and which files nothing needs. Pure.

Hot files of an hour that is over become one file, and files of a day that is over become as few as their size allows.
Only files of one day and one run are merged, and only neighbours: so a merged file has all rows of its day that the
topic has between the first of them and the last, and a reader of positions may rely on that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Final

from anabranch.tables.core.names import FileName, Kind

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
# How long after its end a day is still waited for: messages may have publish times of a producer whose clock is late.
LATE_MS: Final = HOUR_MS


@dataclass(frozen=True, slots=True)
class MergeRules:
    file_bytes: int = 512 << 20  # A merged file has no more than this, unless one file has more by itself.
    hot_files_min: int = 2


@dataclass(frozen=True, slots=True)
class KnownFile:
    name: FileName
    bytes: int
    written_ms: int  # When the commit with its rows was made.


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Files that become one, in the order of their rows."""

    kind: Kind
    files: tuple[KnownFile, ...]

    @property
    def into(self) -> tuple[int, int]:
        """The first and the last version whose rows the merged file has."""
        return self.files[0].name.first, max(one.name.last for one in self.files)


def merges(
    files: Iterable[KnownFile], now_ms: int, rules: MergeRules, *, is_forced: bool = False
) -> list[MergeGroup]:
    """The groups to merge now, oldest first. If `is_forced`, no hour and no day is waited for."""
    found: list[MergeGroup] = []

    def place(one: KnownFile) -> tuple[bool, date, int]:
        return one.name.day is not None, one.name.day or date.min, one.name.run

    def order(one: KnownFile) -> tuple[int, int]:
        return one.name.first, one.name.last

    for (_, day, _), some in groupby(sorted(files, key=place), key=place):
        neighbours = sorted(some, key=order)
        is_over = is_forced or (
            now_ms >= _end_of(day) + LATE_MS
            and all(now_ms - one.written_ms >= LATE_MS for one in neighbours if one.name.kind == "hot")
        )
        if is_over:
            found += _of_a_day(neighbours, rules)
        else:
            found += _of_hours(neighbours, now_ms, rules)
    return found


def _end_of(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000) + DAY_MS


def _of_a_day(files: Sequence[KnownFile], rules: MergeRules) -> list[MergeGroup]:
    """Neighbours in groups as large as is allowed. A file that is alone in its group stays as it is."""
    groups = [some for some in _packed(files, rules.file_bytes) if len(some) > 1]
    return [MergeGroup("days", tuple(some)) for some in groups]


def _of_hours(files: Sequence[KnownFile], now_ms: int, rules: MergeRules) -> list[MergeGroup]:
    found: list[MergeGroup] = []
    for (kind, hour), some in groupby(files, key=lambda one: (one.name.kind, one.written_ms // HOUR_MS)):
        hot = list(some)
        if kind != "hot" or now_ms < (hour + 1) * HOUR_MS or len(hot) < rules.hot_files_min:
            continue
        found += [
            MergeGroup("hour", tuple(part))
            for part in _packed(hot, rules.file_bytes)
            if len(part) >= rules.hot_files_min
        ]
    return found


def _packed(files: Sequence[KnownFile], bytes_max: int) -> list[list[KnownFile]]:
    packed: list[list[KnownFile]] = []
    size = 0
    for one in files:
        if not packed or size + one.bytes > bytes_max:
            packed.append([])
            size = 0
        packed[-1].append(one)
        size += one.bytes
    return packed


# -- files that nothing needs


def suspects(there: Iterable[str], current: Iterable[str], newest: int) -> dict[int, list[str]]:
    """Paths of files that the newest version does not have, by the only version that may have added each. Files whose
    version is still to come are left out, and so are those that no table writer named."""
    found: dict[int, list[str]] = {}
    kept = set(current)
    for path in sorted(there):
        name = FileName.parse(path)
        if name is not None and path not in kept and name.version <= newest:
            found.setdefault(name.version, []).append(path)
    return found


def rubbish(suspected: Mapping[int, Sequence[str]], added: Mapping[int, frozenset[str]]) -> list[str]:
    """Those that their version did not add. Versions of which nothing is known are left alone."""
    return [
        path
        for version, paths in sorted(suspected.items())
        if version in added
        for path in paths
        if path not in added[version]
    ]
