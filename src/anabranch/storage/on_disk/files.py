"""Every call the log makes on a file system, so that a test can be the disk.

All of these may block: they are called from the log's own threads, never from the event loop. Nothing here truncates,
renames over or punches holes, because the log never does. The only way to write to a file of another writer is
`rewrite`, with the bytes that the file has.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import mmap
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from anabranch.storage.port import Buffer, LogInUseError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Linux refuses more buffers than this in one call.
IOV_MAX = 1024

# The part of a large write that the disk is asked to start on at a time.
WRITE_OUT_BYTES = 1 << 20
_WRITE_OUT = 2  # SYNC_FILE_RANGE_WRITE
# Linux only, and not in `os`. Without it large commits are a little slower.
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]

# The system's mmap: each of Python's mappings keeps a descriptor (from 3.13 on it need not), and a log of many files
# would run out of them.
_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value

# Locks of open files: type, whence, start, length, and a process that must be 0. Linux only.
_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", 37)
_LOCK = struct.Struct("hhqqi4x")

# How long a call waits for a free file descriptor, and how often it tries.
DESCRIPTOR_MAX_S = 30.0
DESCRIPTOR_STEP_S = 0.01

# Fences rely on a coherent file system; these are not.
_NETWORK_TYPES = frozenset(
    [
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "9p",
            "afs",
            "ceph",
            "glusterfs",
            "lustre",
            "gpfs",
            "ocfs2",
            "gfs2",
        ),
        *("orangefs", "beegfs", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.ceph"),
    ]
)


class Files(Protocol):
    def make_folder(self, path: Path) -> None:
        """Makes `path` and its parents, and syncs every folder that got a new child."""

    def create(self, path: Path, size: int) -> int:
        """A new file with `size` bytes allocated, open for writing; FileExistsError if it is there already."""

    def open(self, path: Path) -> int:
        """An existing file, open for reading and syncing."""

    def close(self, fd: int) -> None: ...

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        """Writes all of the buffers one behind the other. Not durable until `sync`."""

    def append(self, path: Path, data: bytes) -> None:
        """Adds a few bytes to the end of a file, which is made if it is not there. Not durable. Other processes may do
        the same at the same time: none of the bytes is lost."""

    def forget(self, path: Path) -> None:
        """Drops the file's synced pages from memory. Does nothing if the file is gone."""

    def rewrite(self, path: Path, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Writes bytes that the file has already, each at its offset, and syncs it.

        A page that could not be written looks clean, and only a page that is dirty again is written again.
        """

    def sync(self, fd: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the file's end."""

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        """A read-only view of part of a file, loaded as it is touched."""

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file; FileExistsError if the name is taken."""

    def unlink(self, path: Path) -> None: ...

    def remove_folder(self, path: Path) -> None:
        """Removes a folder and what is in it."""

    def list(self, path: Path) -> list[str]:
        """The names in a folder; FileNotFoundError if it is not there."""

    def size(self, path: Path) -> int: ...

    def data_end(self, path: Path) -> int:
        """The end of the written bytes, at most the file's size: the rest was allocated and never written."""

    def disk_bytes(self, path: Path) -> int:
        """The bytes that the file takes on the disk, preallocated space included."""

    def free_bytes(self, path: Path) -> int: ...

    def lock(self, path: Path, *, is_shared: bool) -> int | None:
        """Locks a file (created if absent) until the returned handle is closed; None if another process holds it."""

    def lock_byte(self, fd: int, at: int, *, is_shared: bool) -> bool:
        """Locks one byte of a file that `lock` opened; False if another handle's lock forbids it.

        The lock is the handle's: it goes with it, and replaces what the handle had on that byte."""

    def unlock_byte(self, fd: int, at: int) -> None: ...

    def refuse_network(self, path: Path) -> None:
        """Raises LogInUseError if `path` lies on a network file system."""


def _groups(buffers: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """Parts of a large write. The disk starts on each while the next is still being copied to the kernel."""
    group: list[Buffer] = []
    size = 0
    for one in buffers:
        group.append(one)
        size += len(one)
        if size >= WRITE_OUT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _patiently(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Retries a call that found no free file descriptor: connections end, whereas a failed log is over."""
    ends_s = 0.0
    while True:
        try:
            return call(*args, **kwargs)
        except OSError as error:
            now_s = time.monotonic()
            if error.errno not in (errno.EMFILE, errno.ENFILE) or 0 < ends_s < now_s:
                raise
            if not ends_s:
                log.warning("the log waits for a file descriptor: raise `ulimit -n` or LimitNOFILE")
                ends_s = now_s + DESCRIPTOR_MAX_S
            time.sleep(DESCRIPTOR_STEP_S)


class OsFiles:
    """The files of the operating system."""

    def make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_folder(path.parent)

    def create(self, path: Path, size: int) -> int:
        fd = _patiently(os.open, path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        if size:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    os.close(fd)
                    path.unlink()
                    raise
        return fd

    def open(self, path: Path) -> int:
        return _patiently(os.open, path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        if len(buffers) > IOV_MAX // 2:
            # Many buffers are usually small: one copy is cheaper than thousands of pointers.
            buffers = [b"".join(buffers)]
        for group in _groups(buffers):
            total = sum(len(one) for one in group)
            done = os.pwritev(fd, group, offset)
            if done < total:
                rest = memoryview(b"".join(group))
                while done < total:
                    done += os.pwrite(fd, rest[done:], offset + done)
            if len(group) < len(buffers) and _sync_file_range is not None:
                # Only a hint, whose failure changes nothing: the sync that follows decides.
                _sync_file_range(fd, offset, total, _WRITE_OUT)
            offset += total

    def append(self, path: Path, data: bytes) -> None:
        fd = _patiently(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def forget(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            fd = self.open(path)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def rewrite(self, path: Path, parts: Sequence[tuple[int, Buffer]]) -> None:
        # Opened before anything is dirty: a descriptor reports every failure since it was opened.
        fd = _patiently(os.open, path, os.O_RDWR | os.O_CLOEXEC)
        try:
            for offset, data in parts:
                self.write(fd, [data], offset)
            self.sync(fd)
        finally:
            os.close(fd)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_folder(self, path: Path) -> None:
        fd = _patiently(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        done = len(data)
        while done < size and (data := os.pread(fd, size - done, offset + done)):
            parts.append(data)
            done += len(data)
        return b"".join(parts)

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        if not size:
            # For mmap, length 0 means the whole file.
            return memoryview(b"")
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        fd = self.open(path)
        try:
            return _mapped(fd, start, offset - start + size)[offset - start :]
        finally:
            os.close(fd)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        for child in list(path.iterdir()):
            if child.is_dir() and not child.is_symlink():
                self.remove_folder(child)
            else:
                child.unlink()
        path.rmdir()
        self.sync_folder(path.parent)

    def list(self, path: Path) -> list[str]:
        return _patiently(os.listdir, path)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def data_end(self, path: Path) -> int:
        fd = self.open(path)
        try:
            size = os.fstat(fd).st_size
            end = at = 0
            while at < size:
                try:
                    end = os.lseek(fd, os.lseek(fd, at, os.SEEK_DATA), os.SEEK_HOLE)
                except OSError as error:
                    # No more data behind `at`; any other error means that this file system cannot tell.
                    return end if error.errno == errno.ENXIO else size
                at = end
            return end
        finally:
            os.close(fd)

    def disk_bytes(self, path: Path) -> int:
        return os.stat(path).st_blocks * 512

    def free_bytes(self, path: Path) -> int:
        seen = os.statvfs(path)
        return seen.f_bavail * seen.f_frsize

    def lock(self, path: Path, *, is_shared: bool) -> int | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def lock_byte(self, fd: int, at: int, *, is_shared: bool) -> bool:
        try:
            self._set_lock(fd, fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK, at)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock_byte(self, fd: int, at: int) -> None:
        self._set_lock(fd, fcntl.F_UNLCK, at)

    def _set_lock(self, fd: int, kind: int, at: int) -> None:
        """A lock of the open file, not of the process: two stores in one process must see each other's."""
        fcntl.fcntl(fd, _OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, at, 1, 0))

    def refuse_network(self, path: Path) -> None:
        kind = mount_type(path)
        if kind in _NETWORK_TYPES:
            raise LogInUseError(f"{path} is on a network file system ({kind}): the log needs a local disk")


def mount_type(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of the file system of `path`, or "" where the system does not tell."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    place = str(path.resolve())
    for line in lines:
        _, where, what, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape")
        inside = place == where or place.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind = where, what
    return kind


def _mapped(fd: int, start: int, size: int) -> memoryview:
    """The file's bytes, mapped for as long as the view or a slice of it is held."""
    address = _system.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, start)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    whole = (ctypes.c_char * size).from_address(address)
    # Not at the end of the process: threads may still be reading.
    weakref.finalize(whole, _system.munmap, address, size).atexit = False
    return memoryview(whole).cast("B").toreadonly()
