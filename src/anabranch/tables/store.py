"""Where tables are kept: a folder of this machine, or an object store. Blocking: table writers have threads.

The one thing that all depends on is `create`: of several writers that create the same file, exactly one succeeds. A
store that cannot do that is refused (`check_creates_once`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from anabranch.errors import AnabranchError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Options of `deltalake` that are the client's and not the store's, in `obstore`.
_CLIENT: Final = {"allow_http", "timeout", "connect_timeout", "allow_invalid_certificates", "proxy_url"}


class TableStoreError(AnabranchError):
    """The place of the tables did not answer, or refused. Trying again may help."""

    retryable = True


class StoreUnfit(AnabranchError):
    """The store cannot create a file only once, so two writers could not be told apart."""


class TableStore(Protocol):
    """Paths are relative to the table, with slashes."""

    def create(self, path: str, data: bytes) -> bool:
        """Creates the file whole, durably; False if there is one of that name."""

    def put(self, path: str, source: Path) -> int:
        """Moves a finished file of this machine there, durably; returns its size."""

    def read(self, path: str) -> bytes | None:
        """The file; None if there is none."""

    def paths(self, folder: str = "") -> list[str]:
        """All files below the folder, sorted."""

    def remove(self, paths: Iterable[str]) -> None:
        """Removes those that exist."""

    def fetch(self, path: str, folder: Path) -> Path:
        """The file as one of this machine: itself, or a copy in that folder."""


class FolderTableStore:
    """Implements `TableStore` in a folder. Files are synced before they have their names."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def create(self, path: str, data: bytes) -> bool:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.parent / f".{target.name}.{uuid4().hex}"
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, target)  # Unlike a rename, it replaces nothing.
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise StoreUnfit(
                    f"{self._root} lies on a file system without hard links, so a commit cannot be made only once: "
                    "keep tables on another file system"
                ) from error
            raise TableStoreError(f"writing {target} failed: {error.strerror}") from error
        finally:
            with suppress(OSError):
                draft.unlink()
        _sync_folders(target, self._root)
        return True

    def put(self, path: str, source: Path) -> int:
        target = self._root / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(source, "rb") as file:
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            os.rename(source, target)
        except OSError as error:
            raise TableStoreError(f"writing {target} failed: {error.strerror}") from error
        _sync_folders(target, self._root)
        return size

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None

    def paths(self, folder: str = "") -> list[str]:
        found: list[str] = []
        for here, _, names in os.walk(self._root / folder):
            at = Path(here).relative_to(self._root)
            found += [(at / name).as_posix() for name in names if not name.startswith(".")]
        return sorted(found)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                (self._root / path).unlink()

    def fetch(self, path: str, folder: Path) -> Path:
        return self._root / path

    @property
    def drafts(self) -> Path:
        """A folder of the same file system, for files that are not finished."""
        folder = self._root / ".drafts"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _sync_folders(target: Path, root: Path) -> None:
    """A name is stored in its folder, and the folder's name in its parent."""
    for folder in (target.parent, *target.parent.parents):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if folder == root:
            return


class ObjectTableStore:
    """Implements `TableStore` in an object store, through `obstore`."""

    def __init__(self, store: ObjectStore, url: str) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError

        self._obstore = obstore
        self._store = store
        self._url = url
        self._exists = AlreadyExistsError
        self._unsupported = NotSupportedError
        self._failed = (BaseError, OSError, TimeoutError)

    def create(self, path: str, data: bytes) -> bool:
        try:
            self._obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except self._exists:
            # A request whose answer was lost may have been tried again: then the file is ours.
            return self.read(path) == data
        except self._unsupported as error:
            raise StoreUnfit(
                f"{self._url} cannot create an object only once: keep tables in another store"
            ) from error
        except self._failed as error:
            raise self._error("writing", path, error) from error
        return True

    def put(self, path: str, source: Path) -> int:
        size = source.stat().st_size
        try:
            self._obstore.put(self._store, path, source)
        except self._failed as error:
            raise self._error("writing", path, error) from error
        source.unlink()
        return size

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, path).bytes())
        except FileNotFoundError:
            return None
        except self._failed as error:
            raise self._error("reading", path, error) from error

    def paths(self, folder: str = "") -> list[str]:
        try:
            return sorted(
                one["path"] for some in self._obstore.list(self._store, folder or None) for one in some
            )
        except self._failed as error:
            raise self._error("listing", folder, error) from error

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                self._obstore.delete(self._store, path)
            except FileNotFoundError:
                continue
            except self._failed as error:
                raise self._error("removing", path, error) from error

    def fetch(self, path: str, folder: Path) -> Path:
        target = folder / uuid4().hex
        try:
            with open(target, "wb") as file:
                for part in self._obstore.get(self._store, path).stream(8 << 20):
                    file.write(part)
        except self._failed as error:
            raise self._error("reading", path, error) from error
        return target

    def _error(self, what: str, path: str, error: BaseException) -> TableStoreError:
        short = str(error).partition("\n\n")[0].strip() or type(error).__name__
        return TableStoreError(f"{what} {self._url}/{path} failed: {short}")


AnyStore = FolderTableStore | ObjectTableStore


def open_store(url: str, storage_options: Mapping[str, str] | None = None) -> AnyStore:
    """The store of the table at that URL, with the options that `deltalake` has for it."""
    if not urlsplit(url).scheme:
        return FolderTableStore(url)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    given = {
        name.lower().removeprefix("aws_"): (name, value) for name, value in (storage_options or {}).items()
    }
    client: Any = {short: _client(value) for short, (_, value) in given.items() if short in _CLIENT}
    config: Any = {name: value for short, (name, value) in given.items() if short not in _CLIENT}
    try:
        return ObjectTableStore(from_url(url, config=config, client_options=client), url)
    except (BaseError, ValueError) as error:
        raise StoreUnfit(f"cannot use {url}: {str(error).partition(chr(10))[0]}") from error


def _client(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value)


def check_creates_once(store: TableStore, name: Callable[[], str] = lambda: uuid4().hex) -> None:
    """Raises StoreUnfit if a second writer can create a file that exists."""
    path = f"_anabranch/probe-{name()}"
    try:
        if not store.create(path, b"first") or store.create(path, b"second"):
            raise StoreUnfit(
                "this store lets a second writer replace an object that must be created only once, so tables there "
                "could lose rows or have them twice: use a store with conditional writes"
            )
    finally:
        store.remove([path])
