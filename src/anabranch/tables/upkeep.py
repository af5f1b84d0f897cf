"""Merges the files of a table, and removes what nothing needs. Blocking.

A merge is a commit that adds one file and removes those that it was made of, with the same rows and the same cut. It
races with other commits like any: the loser drops its file and begins again.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from anabranch.tables.core.commit import NewFile
from anabranch.tables.core.merging import MergeGroup, MergeRules, merges
from anabranch.tables.snapshot import MODE
from anabranch.tables.store import FolderTableStore

if TYPE_CHECKING:
    from anabranch.tables.table import TopicTable

log = logging.getLogger(__name__)

# After so many lost races another writer has the table: it merges, too.
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Tended:
    merged: int = 0  # Files that were merged,
    into: int = 0  # and into how many.
    swept: int = 0
    vacuumed: int = 0


def merge_files(table: TopicTable, rules: MergeRules, now_ms: int, *, is_forced: bool = False) -> Tended:
    """Merges what is due now, oldest first."""
    merged = into = 0
    failed = 0
    while failed < ATTEMPTS:
        group = next(iter(merges(table.known_files(), now_ms, rules, is_forced=is_forced)), None)
        if group is None:
            break
        if _merge(table, group):
            merged, into, failed = merged + len(group.files), into + 1, 0
        else:
            failed += 1
            table.refresh()
    return Tended(merged, into)


def _merge(table: TopicTable, group: MergeGroup) -> bool:
    from anabranch.tables.core.statistics import delta_stats
    from anabranch.tables.parquet import merge

    schema = table.schema
    assert schema is not None
    paths = [one.name.path for one in group.files]
    first = group.files[0].name
    with tempfile.TemporaryDirectory() as folder:
        drafts = table.store.drafts if isinstance(table.store, FolderTableStore) else Path(folder)
        sources = [table.store.fetch(path, Path(folder)) for path in paths]
        made = merge(sources, drafts, schema, first.day, has_bloom=group.kind == "days")
        name = table.name(first.day, group.kind, run=first.run, rows_of=group.into)
        try:
            size = table.store.put(name.path, made.path)
        finally:
            made.path.unlink(missing_ok=True)
    mode: Any = table.properties[MODE]
    is_done = table.commit(
        cut=table.cut.encode().decode(),
        mode=mode,
        schema=schema,
        adds=[NewFile(name, size, made.rows, delta_stats(made.bounds))],
        removes=paths,
        changes_rows=False,
        operation="OPTIMIZE",
        facts={"merged": len(paths)},
    )
    if not is_done:
        table.store.remove([name.path])
    return is_done


def tend(table: TopicTable, rules: MergeRules, now_ms: int, retention_hours: int, *, sweeps: bool) -> Tended:
    """What is due now: merging; and if it `sweeps`, removing files that no version has, or that are too old."""
    if table.version < 0:
        return Tended()
    done = merge_files(table, rules, now_ms)
    if not sweeps:
        return done
    swept = table.sweep()
    if swept:
        log.info("%s: removed %d files that no version has", table.url, len(swept))
    return Tended(done.merged, done.into, len(swept), len(table.vacuum(retention_hours)))
