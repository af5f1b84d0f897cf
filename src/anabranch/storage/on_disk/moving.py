"""Moves rewritten files to an object store, so that the local disk keeps what is recent and the log may have no end.

`choose_moves` decides and is pure. `Moving` carries it out, some files at a time: copied and read back by a process of
its own (`Tier.move`), then exchanged for their index files, and unlinked when no read plan names them any more. If the
store does not answer, files stay where they are, and nothing else waits: this has a task of its own.

What is in the store and in no file here is garbage if nothing in it lives or all of it is elsewhere, too: the copy of
one who was killed before the exchange, or what could not be deleted. It is looked for now and then (`sweep`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from anabranch.storage.core import format as fmt
from anabranch.storage.core.tiered import Tier, TierJob, index_path, key_of, stem_of
from anabranch.storage.on_disk.catalog import FooterIndex, LogFile
from anabranch.storage.on_disk.index_files import rewritten_names
from anabranch.storage.on_disk.log_root import LogRoot
from anabranch.storage.on_disk.reclaim import FileFacts, Reclaimer, load_rewritten_file
from anabranch.storage.on_disk.sharing import Sharing
from anabranch.storage.port import LogError

log = logging.getLogger(__name__)

# Files of one job: a process costs some tenths of a second of processor time to start.
_FILES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class TierPolicy:
    # Files are moved, the oldest first, while the log has more bytes than this on its disk.
    local_bytes_max: int
    # Smaller files wait until there are enough of their namespace to make one of them, unless the disk is full.
    small_bytes: int
    # How long a move that failed is not tried again.
    retry_seconds: float = 30.0
    # How often the store is looked through for objects that nothing names, and how long they are left alone.
    sweep_seconds: float = 6 * 3600.0
    orphan_seconds: float = 3600.0

    def local_bytes(self, *, capacity: int | None, is_full: bool) -> int:
        """How many bytes may stay: at most a quarter of what there is room for, and none on a full disk."""
        if is_full:
            return 0
        return self.local_bytes_max if capacity is None else min(self.local_bytes_max, capacity // 4)


def choose_moves(
    files: Sequence[FileFacts], excess_bytes: int, small_bytes: int, *, is_full: bool
) -> tuple[int, ...]:
    """Which of these rewritten files to move, in their order, so that there are so many bytes less."""
    chosen: list[int] = []
    for file in files:
        if excess_bytes <= 0 or len(chosen) == _FILES_MAX:
            break
        # What is mostly dead is rewritten first, and what is dead is removed.
        is_worth_it = file.live_bytes > 0 and not file.is_mostly_dead and file.disk_bytes >= small_bytes
        if is_worth_it or (is_full and file.live_bytes > 0):
            chosen.append(file.id)
            excess_bytes -= file.disk_bytes
    return tuple(chosen)


class Moving:
    def __init__(
        self,
        root: LogRoot,
        tier: Tier,
        reclaimer: Reclaimer,
        policy: TierPolicy,
        clock_ms: Callable[[], int],
        *,
        sharing: Sharing | None,
        used_bytes: Callable[[], int],
        local_bytes_max: Callable[[], int],
        is_full: Callable[[], bool],
    ) -> None:
        self._root = root
        self._catalog = root.catalog
        self._tier = tier
        self._reclaimer = reclaimer
        self._policy = policy
        # One job at a time.
        self._running = asyncio.Lock()
        self._clock_ms = clock_ms
        self._sharing = sharing
        self._used_bytes = used_bytes
        self._local_bytes_max = local_bytes_max
        self._is_full = is_full
        self.log_id = ""
        # When orphans were first seen, and those of which something lives and that were told of.
        self._orphans: dict[str, int] = {}
        self._told: set[str] = set()
        self._swept_ms: int | None = None
        self.moved_files = 0
        self.moved_bytes = 0
        self.failures = 0
        # Why moving does not go on; "" while it does.
        self.failed = ""

    async def run(self) -> bool:
        """Moves some files, if there are any to be moved; True if there may be more. Deletes what is dead."""
        async with self._running:
            return await self._run()

    async def _run(self) -> bool:
        await self._delete_garbage()
        async with self._turn() as lock:
            if lock is None:
                return False
            if self._sharing is not None:
                await self._sharing.refresh(has_turn=True)
            is_more = await self._move(None if self._sharing is None else lock)
            await self._sweep()
        return is_more

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[int | None]:
        """In a shared log only one process moves files."""
        if self._sharing is None:
            yield -1
            return
        async with self._sharing.turn() as lock:
            yield lock

    # -- moving

    async def _move(self, lock: int | None) -> bool:
        excess = self._used_bytes() - self._reclaimer.doomed_bytes - self._local_bytes_max()
        local = [file for file in self._catalog.files.values() if file.is_rewritten and file.place is None]
        facts = self._reclaimer.known_facts(sorted(local, key=lambda one: (one.generation, one.path.name)))
        ids = choose_moves(facts, excess, self._policy.small_bytes, is_full=self._is_full())
        files = {str(self._catalog.files[one].path): self._catalog.files[one] for one in ids}
        if not files:
            self.failed = ""
            return False
        root = self._root.path
        done = await self._tier.move(
            TierJob([(path, key_of(self.log_id, root, file.path)) for path, file in files.items()]), lock
        )
        for path in done.damaged:
            log.error("%s has a damaged record and is not moved", path)
            self._reclaimer.damaged(files[path])
        await self._exchange({index_path(file.path): file for file in files.values()}, map(Path, done.moved))
        self.failed = done.failed
        if done.failed:
            self.failures += 1
            log.warning("moving files of the log failed, they stay: %s", done.failed)
        return bool(done.moved) and not done.failed

    async def _exchange(self, sources: dict[Path, LogFile], moved: Iterable[Path]) -> None:
        for path in moved:
            copy = await self._root.in_reader(load_rewritten_file, self._root.files, path)
            if copy is None or copy.place is None:
                log.error("%s cannot be read back: the file that was moved stays", path)
                continue
            await self._reclaimer.exchange([sources[path]], [copy])
            self.moved_files += 1
            self.moved_bytes += copy.place.bytes

    # -- giving back

    async def _delete_garbage(self) -> None:
        keys = list(self._reclaimer.garbage)
        if not keys:
            return
        try:
            await self._tier.delete(keys)
        except LogError as error:
            log.warning("deleting objects of the log failed, trying again: %s", error)
            return
        self._reclaimer.garbage[:] = [one for one in self._reclaimer.garbage if one not in keys]

    async def _sweep(self) -> None:
        """Looks for objects that no file here names. Called while no other process moves files."""
        now = self._clock_ms()
        is_due = self._swept_ms is None or now - self._swept_ms >= self._policy.sweep_seconds * 1000
        doubts = [
            since for since in self._orphans.values() if now - since >= self._policy.orphan_seconds * 1000
        ]
        if not self._root.live.is_retained or not (is_due or doubts):
            return
        self._swept_ms = now
        try:
            # Objects first: what is made meanwhile has its local file before.
            listed = dict(await self._tier.list(self.log_id))
            names = await self._root.in_reader(self._names)
            garbage = {*self._reclaimer.garbage}
            unknown = [key for key in listed if stem_of(key) not in names and key not in garbage]
            self._orphans = {key: self._orphans.get(key, now) for key in unknown}
            due = [
                key
                for key, since in self._orphans.items()
                if now - since >= self._policy.orphan_seconds * 1000
            ]
            for key in due:
                await self._judge(key, listed[key])
        except LogError as error:
            log.warning("looking through the objects of the log failed, trying again: %s", error)

    async def _judge(self, key: str, size: int) -> None:
        """Deletes an orphan in which nothing lives that is not elsewhere."""
        found = await self._tier.tail(key, size)
        if found is not None and (file := _file_of(found)) is not None:
            if not await self._root.in_reader(self._holds_the_only_copy, file):
                await self._tier.delete([key])
                self._orphans.pop(key, None)
                log.info("deleted %s, which nothing named", self._tier.named(key))
                return
            why = "holds entries that topics want and that are nowhere else"
        else:
            why = "is no moved file"
        # Looked at again with the next sweep.
        self._orphans[key] = self._clock_ms()
        if key not in self._told:
            self._told.add(key)
            log.error("%s %s, and no index file names it: it is kept", self._tier.named(key), why)

    def _holds_the_only_copy(self, file: LogFile) -> bool:
        for row in self._root.live.rows(file):
            first = row.first
            while first < row.end:
                located = self._catalog.locate(row.ledger, first, row.end - first)
                if located is None:
                    return True
                first += len(located[1][1])
        return False

    def _names(self) -> set[str]:
        """What rewritten files and index files are called, as the disk has them: unusable ones count."""
        return {stem_of(path.name) for path in rewritten_names(self._root.files, self._root.path)}

    # -- figures

    def stats(self) -> dict[str, float]:
        moved = [file.place.bytes for file in list(self._catalog.files.values()) if file.place is not None]
        return {
            "tier_objects": len(moved),
            "tier_bytes": sum(moved),
            "tier_moved_files": self.moved_files,
            "tier_moved_bytes": self.moved_bytes,
            "tier_failures": self.failures,
            "tier_orphans": len(self._orphans),
            **{f"tier_{name}": value for name, value in self._tier.stats().items()},
        }


def _file_of(tail: bytes) -> LogFile | None:
    """What an object holds, by the bytes behind its records."""
    view = memoryview(tail)
    trailer = fmt.decode_trailer(view[-fmt.TRAILER_BYTES :])
    if trailer is None:
        return None
    # The tail begins where the records end.
    at = trailer.directory_at - trailer.data_end
    file = LogFile(Path("-"), 0, None)
    file.index = FooterIndex(fmt.Footer(view[at : -fmt.TRAILER_BYTES], trailer.rows))
    return file
