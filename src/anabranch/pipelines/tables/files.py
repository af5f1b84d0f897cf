"""The few verbs that a table needs from a file system, and the adapter for folders of this machine.

`hadoop_files` has the adapter for everything else that Spark can write to. Paths are absolute. Each verb may be
repeated after a crash in the middle of it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from anabranch.errors import AnabranchError
from anabranch.pipelines.tables.core.compaction import TableFile


class TableBusy(AnabranchError):
    """Another run writes to the table."""


class TableStorage(Protocol):
    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""

    def parts(self, folder: str) -> list[TableFile]:
        """All files below a folder, without those that Spark hides, by their paths in it; empty if there is no
        folder."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder, hidden or not; empty if there is no folder."""

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, data: bytes) -> bool:
        """Creates a file, whole or not at all. False if it exists already; then it is not changed."""

    def persist(self, paths: Iterable[str]) -> None:
        """Returns once the files would survive a loss of power, under these names. Missing files are ignored."""

    def move(self, source: str, target: str) -> None:
        """Moves a file. A listing of the target's folder shows it whole or not at all. Does nothing if there is no
        source."""

    def remove(self, path: str) -> None:
        """Removes a file or a folder with its content; does nothing if there is none."""

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """A lock; TableBusy while another process holds it. The lock does not outlive its process."""


def is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


class LocalFiles:
    """Folders of this machine, or mounted on it."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def parts(self, folder: str) -> list[TableFile]:
        found = []
        for where, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not is_hidden(name)]
            paths = [os.path.join(where, name) for name in names if not is_hidden(name)]
            found += [TableFile(os.path.relpath(path, folder), os.path.getsize(path)) for path in paths]
        return sorted(found, key=lambda part: part.path)

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(folder))
        return []

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def create(self, path: str, data: bytes) -> bool:
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        draft = os.path.join(folder, f".{name}.{uuid4()}")
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # A link, unlike a rename, does not replace an existing file.
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Only one run at a time holds `locked`, so no other run interferes.
            if os.path.lexists(path):
                return False
            os.rename(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)
        _persist(folder)
        return True

    def persist(self, paths: Iterable[str]) -> None:
        folders: set[str] = set()
        for path in map(os.path.abspath, paths):
            with suppress(FileNotFoundError):
                _persist(path)
                folders.update(map(str, Path(path).parents))
        # A name is stored in its folder, and the folder's name in its parent: their creator may not have synced them.
        for folder in sorted(folders, reverse=True):
            with suppress(PermissionError):  # The folder belongs to another user then.
                _persist(folder)

    def move(self, source: str, target: str) -> None:
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        try:
            os.rename(source, target)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # The table is on another disk than the job's folder.
            draft = os.path.join(folder, f".{os.path.basename(target)}.copying")
            shutil.copyfile(source, draft)
            _persist(draft)
            os.rename(draft, target)
            os.unlink(source)
        _persist(folder)

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def locked(self, path: str) -> Iterator[None]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TableBusy(
                    f"another run writes to this table ({path} is locked): wait until it has ended, or end it"
                ) from None
            yield


_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)


def _persist(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
