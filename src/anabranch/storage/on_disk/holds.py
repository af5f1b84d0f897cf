"""Files that read plans of any process name are not unlinked before the plans expire.

All processes that share a log have one file open, `plans`. A process that gives out a plan holds a shared lock on one
byte of it for each file that the plan names: the byte's place is a hash of the file's path. Only a process that gets
the exclusive lock on that byte unlinks the file. The system drops the locks of a process that dies: its plans were
promised only while it runs. A file that cannot be unlinked yet gets a mark beside it, so that no new plan names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from hashlib import blake2b
from pathlib import Path

from anabranch.storage.on_disk.files import Files

PLANS = "plans"
MARK = ".gone"


def _place(path: Path) -> int:
    return int.from_bytes(blake2b(str(path).encode(), digest_size=8).digest()) >> 2


def mark_of(path: Path) -> Path:
    return path.with_name(path.name + MARK)


class PlanHolds:
    """The holds of one store. Blocking: on a reader thread."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files = files
        self._root = root
        self._fd = -1
        # Until when this process holds each file.
        self._until: dict[Path, int] = {}

    def open(self) -> int:
        """The file of all holds; its handle is closed with the store's other locks."""
        fd = self._files.lock(self._root / PLANS, is_shared=True)
        assert fd is not None  # No process ever locks all of it.
        self._fd = fd
        return fd

    def hold(self, paths: Collection[Path], until_ms: int) -> bool:
        """True if all those files are there, and stay until then. Else some may be held for nothing until then."""
        for path in paths:
            self._until[path] = max(until_ms, self._until.get(path, 0))
            self._files.lock_byte(self._fd, _place(path), is_shared=True)
        # A file that is there now is there for as long as the lock is held: its remover needs the lock.
        return all(self._exists(path) and not self._exists(mark_of(path)) for path in paths)

    def drop_expired(self, now_ms: int) -> None:
        for path in [path for path, until_ms in list(self._until.items()) if until_ms <= now_ms]:
            del self._until[path]
            self._files.unlock_byte(self._fd, _place(path))

    def try_unlink(self, path: Path, others: Collection[Path] = ()) -> bool:
        """Removes the file, and then `others`, if no plan of another process names it. Else marks it."""
        place = _place(path)
        if not self._files.lock_byte(self._fd, place, is_shared=False):
            if self._exists(path) and not self._exists(mark_of(path)):
                with contextlib.suppress(FileExistsError):
                    self._files.close(self._files.create(mark_of(path), 0))
            return False
        try:
            for one in (path, *others, mark_of(path)):
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(one)
        finally:
            self._files.unlock_byte(self._fd, place)
        return True

    def _exists(self, path: Path) -> bool:
        try:
            self._files.size(path)
        except FileNotFoundError:
            return False
        return True
