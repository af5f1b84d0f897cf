"""A disk that does to the log what disks and kernels do at a power cut, in memory and from a seed.

Writes are visible at once and durable only after a sync. A power cut keeps any sectors of what was not synced and
loses the others, in any order; new names survive only if their folder was synced, or by luck; removed names may come
back. A sync can fail, after which the dirty pages are gone although they still look written. Space can run out.

`Disk` outlives boots; each `Files` handle is one boot of the machine and goes dead with the power.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from anabranch.storage.port import Buffer

SECTOR = 512


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        # Sectors written since the last sync, and whether the length changed.
        self.dirty: set[int] = set()

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.data):
            self.data.extend(bytes(end - len(self.data)))
        self.data[offset:end] = data
        self.dirty.update(range(offset // SECTOR, (end - 1) // SECTOR + 1))

    def sync(self) -> None:
        self._keep(self.dirty)
        self.dirty.clear()

    def cut(self, chance: random.Random) -> None:
        """The power goes: some of the dirty sectors made it."""
        luck = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        self._keep({one for one in sorted(self.dirty) if chance.random() < luck})
        self.data = bytearray(self.durable)
        self.dirty.clear()

    def forget(self) -> None:
        kept = {one: self.data[one * SECTOR : (one + 1) * SECTOR] for one in self.dirty}
        size = len(self.data)
        self.data = bytearray(self.durable[:size].ljust(size, b"\0"))
        for one, data in kept.items():
            self.data[one * SECTOR : one * SECTOR + len(data)] = data

    def _keep(self, sectors: set[int]) -> None:
        if not sectors:
            return
        if len(self.durable) < len(self.data):
            self.durable.extend(bytes(len(self.data) - len(self.durable)))
        for one in sectors:
            self.durable[one * SECTOR : (one + 1) * SECTOR] = self.data[one * SECTOR : (one + 1) * SECTOR]


class Disk:
    def __init__(self, seed: int, *, capacity: int = 1 << 40) -> None:
        self.chance = random.Random(seed)
        self.capacity = capacity
        self.mutex = threading.RLock()
        self.names: dict[Path, Inode] = {}
        self.synced_names: dict[Path, Inode] = {}
        self.folders: set[Path] = {Path("/")}
        self.locks: dict[Path, list[bool]] = {}
        # (file, byte) -> the handles that hold it, and whether they share it.
        self.bytes_locked: dict[tuple[Path, int], dict[tuple[int, int], bool]] = {}

    def boot(self) -> FaultyFiles:
        return FaultyFiles(self)

    def cut(self) -> None:
        """What is left of the disk after the power went."""
        with self.mutex:
            for path in sorted(self.names.keys() | self.synced_names.keys()):
                visible, synced = self.names.get(path), self.synced_names.get(path)
                if visible is not synced and self.chance.random() < 0.5:
                    if visible is None:
                        del self.synced_names[path]
                    else:
                        self.synced_names[path] = visible
            self.names = dict(self.synced_names)
            for inode in {id(one): one for one in self.names.values()}.values():
                inode.cut(self.chance)
            self.locks.clear()
            self.bytes_locked.clear()

    def forget_clean_pages(self) -> None:
        """Memory runs short: what is not dirty is read from the disk the next time, whatever it looked like."""
        with self.mutex:
            for inode in {id(one): one for one in self.names.values()}.values():
                inode.forget()

    @property
    def used(self) -> int:
        return sum(len(one.data) for one in {id(one): one for one in self.names.values()}.values())


class FaultyFiles:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.is_off = False
        # Changes left until the power goes; None: it stays.
        self.cut_after: int | None = None
        # Syncs of data left until one fails.
        self.fail_sync_after: int | None = None
        self._open: dict[int, tuple[Path, Inode | None]] = {}
        self._next_fd = 3

    def power_off(self) -> None:
        with self.disk.mutex:
            self.is_off = True

    def _change(self) -> None:
        """Called before each change: the power may go here."""
        self._check()
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                self.is_off = True
                self._check()

    def _check(self) -> None:
        if self.is_off:
            raise OSError(errno.EIO, "the power is off")

    def _inode(self, path: Path) -> Inode:
        self._check()
        if path not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self.disk.names[path]

    def _handle(self, path: Path, inode: Inode | None) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (path, inode)
        return self._next_fd

    def _of(self, fd: int) -> Inode:
        inode = self._open[fd][1]
        assert inode is not None
        return inode

    def make_folder(self, path: Path) -> None:
        with self.disk.mutex:
            self._change()
            self.disk.folders.update((path, *path.parents))

    def create(self, path: Path, size: int) -> int:
        with self.disk.mutex:
            self._change()
            if path.parent not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
            if path in self.disk.names:
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            if self.disk.used + size > self.disk.capacity:
                raise OSError(errno.ENOSPC, "no space left on device")
            inode = self.disk.names[path] = Inode()
            if size:
                inode.write(bytes(size), 0)
            return self._handle(path, inode)

    def open(self, path: Path) -> int:
        with self.disk.mutex:
            return self._handle(path, self._inode(path))

    def close(self, fd: int) -> None:
        with self.disk.mutex:
            path, inode = self._open.pop(fd)
            if inode is None and not self.is_off:
                self.disk.locks[path].pop()
                for held in self.disk.bytes_locked.values():
                    held.pop((id(self), fd), None)

    def write(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        with self.disk.mutex:
            data = b"".join(buffers)
            inode = self._of(fd)
            grows = max(0, offset + len(data) - len(inode.data))
            if grows and self.disk.used + grows > self.disk.capacity:
                raise OSError(errno.ENOSPC, "no space left on device")
            self._check()
            try:
                self._change()
            except OSError:
                # The cut comes in the middle: the bytes are on their way, and a part of them may arrive.
                inode.write(data, offset)
                raise
            inode.write(data, offset)

    def append(self, path: Path, data: bytes) -> None:
        with self.disk.mutex:
            self._change()
            if path.parent not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
            inode = self.disk.names.setdefault(path, Inode())
            if data:
                inode.write(data, len(inode.data))

    def forget(self, path: Path) -> None:
        """Pages are no concern of this disk."""

    def rewrite(self, path: Path, parts: Sequence[tuple[int, Buffer]]) -> None:
        fd = self.open(path)
        try:
            for offset, data in parts:
                self.write(fd, [data], offset)
            self.sync(fd)
        finally:
            self.close(fd)

    def sync(self, fd: int) -> None:
        with self.disk.mutex:
            self._change()
            inode = self._of(fd)
            if self.fail_sync_after is not None:
                self.fail_sync_after -= 1
                if self.fail_sync_after < 0:
                    inode.dirty = {one for one in sorted(inode.dirty) if self.disk.chance.random() < 0.5}
                    inode.sync()
                    raise OSError(errno.EIO, "sync failed")
            inode.sync()

    def sync_folder(self, path: Path) -> None:
        with self.disk.mutex:
            self._change()
            names, synced = self.disk.names, self.disk.synced_names
            for one in [one for one in synced if one.parent == path and one not in names]:
                del synced[one]
            synced.update({one: inode for one, inode in names.items() if one.parent == path})

    def read(self, fd: int, size: int, offset: int) -> bytes:
        with self.disk.mutex:
            self._check()
            return bytes(self._of(fd).data[offset : offset + size])

    def map(self, path: Path, offset: int, size: int) -> memoryview:
        with self.disk.mutex:
            return memoryview(bytes(self._inode(path).data[offset : offset + size]))

    def link(self, source: Path, target: Path) -> None:
        with self.disk.mutex:
            self._change()
            if target in self.disk.names:
                raise FileExistsError(errno.EEXIST, "exists", str(target))
            self.disk.names[target] = self._inode(source)

    def unlink(self, path: Path) -> None:
        with self.disk.mutex:
            self._change()
            self._inode(path)
            del self.disk.names[path]

    def remove_folder(self, path: Path) -> None:
        with self.disk.mutex:
            self._change()
            for names in (self.disk.names, self.disk.synced_names):
                for one in [one for one in names if path in one.parents]:
                    del names[one]
            self.disk.folders -= {one for one in self.disk.folders if one == path or path in one.parents}

    def list(self, path: Path) -> list[str]:
        with self.disk.mutex:
            self._check()
            if path not in self.disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
            names = [one.name for one in self.disk.names if one.parent == path]
            return names + [one.name for one in self.disk.folders if one.parent == path and one != path]

    def size(self, path: Path) -> int:
        with self.disk.mutex:
            return len(self._inode(path).data)

    def data_end(self, path: Path) -> int:
        return self.size(path)

    def disk_bytes(self, path: Path) -> int:
        return self.size(path)

    def free_bytes(self, path: Path) -> int:
        with self.disk.mutex:
            self._check()
            return max(0, self.disk.capacity - self.disk.used)

    def lock(self, path: Path, *, is_shared: bool) -> int | None:
        with self.disk.mutex:
            self._check()
            held = self.disk.locks.setdefault(path, [])
            if held and not (is_shared and all(held)):
                return None
            held.append(is_shared)
            return self._handle(path, None)

    def lock_byte(self, fd: int, at: int, *, is_shared: bool) -> bool:
        with self.disk.mutex:
            self._check()
            held = self.disk.bytes_locked.setdefault((self._open[fd][0], at), {})
            own = (id(self), fd)
            if any(not (is_shared and shares) for one, shares in held.items() if one != own):
                return False
            held[own] = is_shared
            return True

    def unlock_byte(self, fd: int, at: int) -> None:
        with self.disk.mutex:
            self.disk.bytes_locked.get((self._open[fd][0], at), {}).pop((id(self), fd), None)

    def refuse_network(self, path: Path) -> None:
        """Memory is local."""
