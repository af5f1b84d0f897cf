"""The tree in one SQLite file: schema, opening, and messages for SQLite's errors. Used by one thread.

A record carries a checksum of its path, version and value, because SQLite has none for its pages: a record that
rotted on disk is reported with its path and never served.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.metadata.errors import (
    MetadataError,
    StoreDamaged,
    StoreFull,
    StoreInUse,
    StoreTooNew,
    StoreUnavailable,
)
from anabranch.metadata.paths import ROOT, below, name, parent
from anabranch.metadata.port import Versioned
from anabranch.metadata.store_time import StoreTime
from anabranch.metadata.tree import Tree

log = logging.getLogger(__name__)

APPLICATION_ID = 0x416E6142  # "AnaB", in the file's header.
FORMAT = 1
# A burst may grow the write-ahead file; after the next checkpoint it is cut back to this.
WAL_BYTES_KEPT = 16 * 1024 * 1024
PRIVATE = 0o600
OTHERS = 0o077  # All but the user itself.

_SCHEMA = (
    """CREATE TABLE node (
        path TEXT PRIMARY KEY, parent TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
        created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, owner TEXT, crc INTEGER NOT NULL)""",
    "CREATE INDEX node_parent ON node (parent, path)",
    "CREATE INDEX node_owner ON node (owner) WHERE owner IS NOT NULL",
    "CREATE TABLE fact (name TEXT PRIMARY KEY, number INTEGER NOT NULL)",
    "INSERT INTO fact VALUES ('time_ms', 0), ('sessions', 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

_Row = tuple[bytes, int, int, int, str | None, int]


class SqliteTree(Tree):
    """The tree's nodes as rows. The caller brackets operations with `transaction`."""

    def __init__(self, connection: sqlite3.Connection, path: Path, clock_ms: Callable[[], int]) -> None:
        super().__init__()
        self._db = connection
        self._path = path
        self.time = StoreTime(clock_ms, self._fact("time_ms"))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: everything inside becomes durable at its end, or nothing does."""
        if self._db.in_transaction:
            self._db.execute(
                "ROLLBACK"
            )  # The last rollback failed too; until one succeeds nothing else runs.
        self._db.execute("BEGIN")
        try:
            yield
            mark_ms = self.time.next_mark_ms(is_writing=bool(self.changed))
            if mark_ms is not None:
                self._store_mark(mark_ms)
            self._db.execute("COMMIT")
        except BaseException:
            self.changed = {}
            # SQLite has rolled back by itself after some errors, such as a full disk.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        if mark_ms is not None:
            self.time.mark_ms = mark_ms

    def close(self) -> None:
        try:
            # No more reads follow: store the exact time, so that the next opening need not wait for a mark ahead.
            self._store_mark(self.time.last_ms)
        finally:
            self._db.close()

    def _store_mark(self, mark_ms: int) -> None:
        self._db.execute("UPDATE fact SET number = ? WHERE name = 'time_ms'", (mark_ms,))

    def translated(self, error: Exception) -> Exception:
        return error if not isinstance(error, sqlite3.Error) else translate(error, self._path)

    def end_all_sessions(self) -> None:
        """Sessions of an earlier run ended with its process."""
        self._db.execute("DELETE FROM node WHERE owner IS NOT NULL")
        self._db.execute("DELETE FROM fact WHERE name GLOB ?", (_session_fact("*"),))

    # Sessions that live on when their process ends: each is a fact, with the secret that its client knows.

    def begin_kept_session(self, secret: int) -> str:
        session = self.begin_session()
        self._db.execute("INSERT INTO fact VALUES (?, ?)", (_session_fact(session), secret))
        return session

    def kept_sessions(self) -> dict[str, int]:
        """The sessions that have not ended, and their secrets."""
        rows = self._db.execute("SELECT name, number FROM fact WHERE name GLOB ?", (_session_fact("*"),))
        return {name.removeprefix(_session_fact("")): number for name, number in rows}

    def load_kept_sessions(self) -> None:
        """Goes on with the sessions of an earlier run. Nothing stays of sessions that were not kept."""
        self.live = set(self.kept_sessions())
        rows = self._db.execute("SELECT DISTINCT owner FROM node WHERE owner IS NOT NULL")
        self.ending = {owner for (owner,) in rows} - self.live
        self.finish_endings()
        self.ending.clear()

    def finish_endings(self) -> None:
        super().finish_endings()
        self._db.executemany(
            "DELETE FROM fact WHERE name = ?", [(_session_fact(session),) for session in sorted(self.ending)]
        )

    def get(self, path: str) -> Versioned | None:
        row: _Row | None = self._db.execute(
            "SELECT value, version, created_ms, modified_ms, owner, crc FROM node WHERE path = ?", (path,)
        ).fetchone()
        return None if row is None else self._checked(path, *row)

    def _insert(self, path: str, node: Versioned) -> None:
        self._db.execute(
            "INSERT INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                path,
                parent(path),
                node.value,
                node.version,
                node.created_ms,
                node.modified_ms,
                node.owner,
                _crc(path, node.version, node.value),
            ),
        )

    def _update(self, path: str, node: Versioned) -> None:
        self._db.execute(
            "UPDATE node SET value = ?, version = ?, modified_ms = ?, crc = ? WHERE path = ?",
            (node.value, node.version, node.modified_ms, _crc(path, node.version, node.value), path),
        )

    def _remove(self, path: str) -> None:
        self._db.execute("DELETE FROM node WHERE path = ?", (path,))

    def _has_children(self, path: str) -> bool:
        found = self._db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone()
        return found is not None

    def _child_names(self, path: str) -> list[str]:
        rows = self._db.execute("SELECT path FROM node WHERE parent = ? ORDER BY path", (path,))
        return [name(row[0]) for row in rows]

    def page(
        self, prefix: str, after: str, nodes_max: int, bytes_max: int
    ) -> tuple[list[tuple[str, Versioned]], bool]:
        """The records of a scan that follow the path `after`, "" at first, and whether they are the last ones.

        At most so many, and values of that many bytes, but at least one.
        """
        end = "0" if prefix == ROOT else prefix + "0"
        rows = self._db.execute(
            "SELECT path, value, version, created_ms, modified_ms, owner, crc FROM node"
            " WHERE path > ? AND path < ? AND length(value) > 0 ORDER BY path",
            (after or below(prefix), end),
        )
        found: list[tuple[str, Versioned]] = []
        size = 0
        for row in rows:
            if len(found) == nodes_max or (found and size + len(row[1]) > bytes_max):
                rows.close()
                return found, False
            found.append((row[0], self._checked(*row)))
            size += len(row[1])
        return found, True

    def _records_below(self, prefix: str) -> list[tuple[str, Versioned]]:
        # Text compares by its UTF-8 bytes, which is Python's order of strings; "0" follows "/".
        start = below(prefix)
        end = "0" if prefix == ROOT else prefix + "0"
        rows = self._db.execute(
            "SELECT path, value, version, created_ms, modified_ms, owner, crc FROM node"
            " WHERE path > ? AND path < ? AND length(value) > 0 ORDER BY path",
            (start, end),
        )
        return [(row[0], self._checked(*row)) for row in rows]

    def _owned_by(self, session: str) -> list[str]:
        rows = self._db.execute("SELECT path FROM node WHERE owner = ? ORDER BY path", (session,))
        return [row[0] for row in rows]

    def _new_session_id(self) -> str:
        number = self._fact("sessions") + 1
        self._db.execute("UPDATE fact SET number = ? WHERE name = 'sessions'", (number,))
        return str(number)

    def now_ms(self) -> int:
        return self.time.now_ms()

    def _fact(self, fact: str) -> int:
        row = self._db.execute("SELECT number FROM fact WHERE name = ?", (fact,)).fetchone()
        if row is None:
            raise StoreDamaged(f"metadata at {self._path} is damaged: {fact} is missing")
        return int(row[0])

    def _checked(
        self, path: str, value: bytes, version: int, created: int, modified: int, owner: str | None, crc: int
    ) -> Versioned:
        if _crc(path, version, value) != crc:
            raise StoreDamaged(
                f"metadata at {self._path} is damaged: the record of {path} fails its checksum"
            )
        return Versioned(value, version, created, modified, owner)


def open_tree(path: Path, clock_ms: Callable[[], int], *, keeps_sessions: bool = False) -> SqliteTree:
    """The tree in the file, made if it is absent, and held against every other process until closed."""
    _make_folder(path.parent)
    _keep_private(path)
    try:
        db = sqlite3.connect(path, timeout=0, isolation_level=None)
    except sqlite3.Error as error:
        raise translate(error, path) from error
    try:
        # Exclusive before the first access: the lock is then kept, and no shared-memory file is made.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        db.execute("BEGIN IMMEDIATE")
        _check_format(db, path)
        db.execute("COMMIT")
        tree = SqliteTree(db, path, clock_ms)
        with tree.transaction():
            if keeps_sessions:
                tree.load_kept_sessions()
            else:
                tree.end_all_sessions()
        tree.changed = {}  # No handle is open that could be told.
    except sqlite3.Error as error:
        db.close()
        raise translate(error, path) from error
    except MetadataError:
        db.close()
        raise
    return tree


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if application == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        for statement in _SCHEMA:
            db.execute(statement)
        return
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path} is a database, but not a metadata store")
    if found > FORMAT:
        raise StoreTooNew(f"metadata at {path} has format {found}; this release reads up to {FORMAT}")
    problem = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if problem != "ok":
        raise StoreDamaged(f"metadata at {path} is damaged: {' '.join(problem.split())}")


def translate(error: sqlite3.Error, path: Path) -> MetadataError:
    """One line for an operator, and the type that tells a caller whether to try again."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # The low byte; the rest only refines it.
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreInUse(f"metadata is in use by another process: {path}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(f"metadata at {path} is damaged: {error}")
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"no room for metadata at {path}: {error}")
    return StoreUnavailable(f"metadata at {path} cannot be used: {error}")


def _session_fact(session: str) -> str:
    return f"session {session}"


def _crc(path: str, version: int, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(b"%d %s" % (version, path.encode())))


def _keep_private(path: Path) -> None:
    """Lets only this user read the file, which holds the secret by which brokers know each other. SQLite gives its
    write-ahead file the same permissions.

    An existing file is not opened here: closing it again would release the locks that this process may have on it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))
        return
    except FileExistsError:
        files = (path, path.with_name(f"{path.name}-wal"))
    except OSError:
        return  # SQLite says what is wrong.
    for one in files:
        try:
            if one.is_file() and stat.S_IMODE(one.stat().st_mode) & OTHERS:
                one.chmod(PRIVATE)
        except OSError as error:
            log.warning("other users of this machine may be able to read %s: %s", one, error.strerror)


def _make_folder(folder: Path) -> None:
    """Make the folder and have its name on disk: SQLite syncs the folder itself, not the one above."""
    if folder.is_dir():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        above = os.open(folder.parent, os.O_RDONLY)
    except OSError as error:
        raise StoreUnavailable(f"metadata at {folder} cannot be used: {error.strerror}") from error
    try:
        os.fsync(above)
    finally:
        os.close(above)
