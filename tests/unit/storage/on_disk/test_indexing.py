"""The index of a log that its writer goes on writing, file after file, and of one that is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.catalog import Catalog
from anabranch.storage.on_disk.files import OsFiles
from anabranch.storage.on_disk.indexing import Indexed, index_incarnation
from anabranch.storage.on_disk.wal import wal_path

NONCE = 77
L = LedgerId(5)
OLD = Incarnation("old")
ROOM = 4096


class Commits:
    """Commits of one entry each, in files that were made ahead: entry n is in the commit of number n + 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        self._synced = (0, 0)
        self._ends: dict[int, int] = {}

    def prepare(self, file: int) -> None:
        head = fmt.encode_file_header(fmt.FILE_MAGIC, NONCE, file)
        wal_path(self.folder, file).write_bytes(head + bytes(ROOM))
        self._ends[file] = len(head)

    def write(self, file: int, *, is_lost: bool = False) -> None:
        """A commit that is lost leaves zeros."""
        body = fmt.encode_record(L, self._number, 1, fmt.ENTRY, b"entry %d" % self._number)
        self._number += 1
        head = fmt.CommitHeader(self._number, 0, len(body), 1, *self._synced)
        data = fmt.encode_commit_header(NONCE, file, head, [(L, self._number - 1, 1, len(body))]) + body
        with wal_path(self.folder, file).open("r+b") as opened:
            opened.seek(self._ends[file])
            opened.write(bytes(len(data)) if is_lost else data)
        self._ends[file] += len(data)
        self._synced = (file, self._ends[file])


class GoesOn(OsFiles):
    """Shows a file as it was when it was mapped. The writer goes on once it has shown the first."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then: Callable[[], None] | None = then

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        found = memoryview(bytes(super().map(path, offset, size)))
        then, self._then = self._then, None
        if then is not None:
            then()
        return found


@pytest.fixture
def commits(tmp_path: Path) -> Commits:
    made = Commits(tmp_path)
    made.prepare(1)
    made.prepare(2)
    return made


def entries(indexed: Indexed) -> list[int]:
    catalog = Catalog()
    for file in indexed.files:
        catalog.add_indexed(file)
    return [number for number in range(10) if catalog.locate(L, number, 1) is not None]


@pytest.mark.parametrize("is_thorough", [False, True])
def test_a_writer_that_goes_on_in_the_next_file_meanwhile_leaves_no_damage(
    commits: Commits, is_thorough: bool
) -> None:
    commits.write(1)
    commits.write(1)

    def then() -> None:
        commits.write(1)
        commits.write(2)

    indexed = index_incarnation(GoesOn(then), commits.folder, OLD, is_thorough=is_thorough)
    assert entries(indexed) == [0, 1, 2, 3]
    assert not any(file.damage for file in indexed.files)


def test_commits_behind_one_that_is_lost_are_found_though_the_log_goes_on_in_the_next_file(
    commits: Commits,
) -> None:
    commits.write(1)
    commits.write(1, is_lost=True)
    commits.write(1)
    commits.write(2)
    indexed = index_incarnation(OsFiles(), commits.folder, OLD, is_thorough=False)
    assert entries(indexed) == [0, 2, 3]
    assert [file.number for file in indexed.files if file.damage] == [1]


def test_a_thorough_look_goes_on_where_a_quick_one_ended(commits: Commits) -> None:
    commits.write(1)
    commits.write(1, is_lost=True)
    commits.write(1)
    quick = index_incarnation(OsFiles(), commits.folder, OLD, is_thorough=False)
    assert entries(quick) == [0]
    thorough = index_incarnation(OsFiles(), commits.folder, OLD, quick)
    assert entries(thorough) == [0, 2]
    commits.write(2)
    assert entries(index_incarnation(OsFiles(), commits.folder, OLD, thorough, is_thorough=False)) == [
        0,
        2,
        3,
    ]
