"""What a store does because other processes use its root: which ledgers and files are whose, and which are dead.

Each broker gives its own log's files back. One broker at a time, the one that has the *turn* (a lock file), also looks
after what has no writer any more: logs of dead incarnations, and rewritten files. Only it rewrites, so that one machine
has one rewriting process. Nothing is decided by messages between brokers: a ledger lives as long as its topic's record
names it, and the record is asked (`judging.py`).

Files come and go by the doing of other processes. A new copy is there before the old one goes, so a reader that misses
a file looks at the folders again (`refresh`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from anabranch.model.position import Incarnation, LedgerId
from anabranch.storage.core.judging import Judge
from anabranch.storage.core.live import Liveness
from anabranch.storage.on_disk import fences, takeover
from anabranch.storage.on_disk.catalog import Catalog, LogFile, OpenIndex
from anabranch.storage.on_disk.commit import FileLedgerWriter
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.holds import MARK, PlanHolds
from anabranch.storage.on_disk.indexing import read_part, read_trailer, wal_numbers
from anabranch.storage.on_disk.names import LedgerName, decode_names, load_names
from anabranch.storage.on_disk.reclaim import Reclaimer, load_rewritten
from anabranch.storage.on_disk.wal import wal_path
from anabranch.storage.port import LiveLedger, Living, LogError

log = logging.getLogger(__name__)

T = TypeVar("T")

TURN: Final = "turn"

# How often a record is asked after the ledgers that it named, and how long a ledger must be out of it to be dead.
ASK_MS: Final = 60_000
GRACE_MS: Final = 10_000
# How often a broker looks whether something is to be given back, although nothing has changed here.
LOOK_SECONDS: Final = 15.0


class SharedStore(Protocol):
    """The store, as far as it is needed here."""

    async def take_whole(self, incarnation: Incarnation) -> fences.FinalStates: ...

    async def index(self, incarnation: Incarnation) -> None: ...

    def delete(self, ledger: LedgerId, incarnation: Incarnation) -> None: ...


class Sharing:
    def __init__(
        self,
        root: Path,
        own: Incarnation,
        files: Files,
        executor: Executor,
        catalog: Catalog,
        live: Liveness,
        reclaimer: Reclaimer,
        holds: PlanHolds,
        store: SharedStore,
        writers: Mapping[LedgerId, FileLedgerWriter],
        clock_ms: Callable[[], int],
        *,
        ask_ms: int = ASK_MS,
        grace_ms: int = GRACE_MS,
    ) -> None:
        self._root = root
        self._own = own
        self._files = files
        self._executor = executor
        self._catalog = catalog
        self._live = live
        self._reclaimer = reclaimer
        self._holds = holds
        self._store = store
        self._writers = writers
        self._clock_ms = clock_ms
        self._judge = Judge(ask_ms=ask_ms, grace_ms=grace_ms)
        self._living: Living | None = None
        # What dead incarnations and rewritten files say about the records of their ledgers.
        self._names: dict[int, LedgerName] = {}
        self._named_files: set[Path] = set()
        # Incarnations without a writer, and what was found of them. Those that were dead when this store started, and
        # the rewritten files that there were: all records were read after that.
        self._dead: dict[Incarnation, fences.FinalStates] = {}
        self._early_dead: frozenset[Incarnation] = frozenset()
        self._early_files: frozenset[Path] = frozenset()

    def ask(self, living: Living) -> None:
        self._living = living

    def start(self) -> None:
        """Blocking. Called before any record is read."""
        self._early_dead = frozenset(self._find_dead())

    def loaded(self, rewritten: Iterable[LogFile]) -> None:
        """The rewritten files that were there at the start."""
        self._early_files = frozenset(file.path for file in rewritten)

    def name_of(self, ledger: int) -> LedgerName | None:
        """What is known about the record of a ledger."""
        wanted = self._live.find(ledger)
        if wanted is not None and wanted.record:
            return LedgerName(wanted.incarnation, wanted.record, wanted.is_named)
        return self._names.get(ledger)

    # -- one broker at a time

    @contextlib.asynccontextmanager
    async def turn(self, wait_s: float = 0.0) -> AsyncIterator[int | None]:
        """The handle of the lock while this broker has the turn; None if another one has it for longer than that."""
        deadline = asyncio.get_running_loop().time() + wait_s
        while (lock := await self._begin_turn()) is None:
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(0.05)
        try:
            yield lock
        finally:
            if lock is not None:
                # At once, not on a thread: a caller that is cancelled here would keep the turn.
                self._files.close(lock)

    async def _begin_turn(self) -> int | None:
        trying = asyncio.get_running_loop().run_in_executor(self._executor, self._try_turn)
        try:
            return await asyncio.shield(trying)
        except asyncio.CancelledError:
            # A turn may begin at this moment, and no caller would end it.
            trying.add_done_callback(self._end_unwanted_turn)
            raise

    def _end_unwanted_turn(self, tried: asyncio.Future[int | None]) -> None:
        if not tried.cancelled() and tried.exception() is None and (lock := tried.result()) is not None:
            self._files.close(lock)

    def _try_turn(self) -> int | None:
        return self._files.lock(self._root / TURN, is_shared=False)

    # -- what is dead

    def is_ours(self, file: LogFile) -> bool:
        """Whether this broker may remove the file while it has the turn."""
        return file.is_rewritten or file.incarnation == self._own or file.incarnation in self._dead

    def is_own(self, file: LogFile) -> bool:
        """Whether this broker may remove the file at any time."""
        return file.incarnation == self._own

    async def learn(self, *, has_turn: bool, is_thorough: bool) -> None:
        """Asks the records after ledgers that their writers have closed, and forgets those that are dead."""
        questions = self._own_questions()
        if has_turn:
            await self._load_dead()
            questions |= await self._in_thread(self._other_questions)
            for ledger in await self._in_thread(self._nameless):
                self._store.delete(LedgerId(ledger), self._own)
        if self._living is None:
            return
        now_ms = self._clock_ms()
        paths = self._judge.due(questions, now_ms, is_thorough=is_thorough)
        if not paths:
            return
        verdict = self._judge.judge(questions, await self._living(paths), now_ms)
        for one in verdict.live:
            self._hear(one)
        for ledger in verdict.dead:
            self._store.delete(LedgerId(ledger), self._own)

    @property
    def has_doubts(self) -> bool:
        return self._judge.has_doubts

    def _hear(self, one: LiveLedger) -> None:
        if self._live.hear(one):
            self._reclaimer.touched(one.ledger)

    def _own_questions(self) -> dict[int, str]:
        """Own ledgers that are not written any more. What no record names yet is protected by this process."""
        found = {}
        for ledger, wanted in self._live.of(self._own):
            writer = self._writers.get(LedgerId(ledger))
            is_written = writer is not None and writer.is_writing
            if wanted.record and wanted.is_named and not is_written:
                found[ledger] = wanted.record
        return found

    def _other_questions(self) -> dict[int, str]:
        """Ledgers in files that have no writer. Ledgers of living brokers that no record names yet are theirs."""
        found = {}
        for ledger in self._other_ledgers():
            name = self.name_of(ledger)
            if name is None or name.incarnation == self._own or ledger in self._live.dead:
                continue
            if name.is_named or name.incarnation in self._dead or self._is_gone(name.incarnation):
                found[ledger] = name.record
        return found

    def _nameless(self) -> list[int]:
        """Ledgers of old releases, without the path of a record: dead if no record had them when all were read.

        They were written before this store started, and all records were read after that."""
        if not self._live.is_retained:
            return []
        return [
            ledger
            for ledger, is_early in self._other_ledgers().items()
            if is_early
            and self._live.find(ledger) is None
            and self.name_of(ledger) is None
            and ledger not in self._live.dead
        ]

    def _other_ledgers(self) -> dict[int, bool]:
        """Every ledger in files and answers that have no writer, and whether all of these were there at the start."""
        found: dict[int, bool] = {}
        for file in list(self._catalog.files.values()):
            if not self.is_ours(file) or file.incarnation == self._own:
                continue
            is_early = (
                file.path in self._early_files if file.is_rewritten else file.incarnation in self._early_dead
            )
            for ledger, _, _, _ in file.index.rows():
                found[ledger] = found.get(ledger, True) and is_early
        for incarnation, taken in self._dead.items():
            for ledger in taken.states:
                found[ledger] = found.get(ledger, True) and incarnation in self._early_dead
        return found

    # -- dead incarnations

    def _find_dead(self) -> list[Incarnation]:
        """Incarnations whose writer is gone: its lock is free. One that is just starting has no file yet."""
        try:
            names = self._files.list(self._root / "wal")
        except FileNotFoundError:
            return []
        return [Incarnation(one) for one in sorted(names) if one != self._own and self._is_dead(one)]

    def _is_dead(self, name: str) -> bool:
        folder = self._root / "wal" / name
        if Incarnation(name) in self._dead:
            return True
        try:
            if not wal_numbers(self._files, folder) and not self._files.list(folder / fences.TAKEN):
                return False
            lock = self._files.lock(folder / takeover.LOCK, is_shared=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if lock is not None:
            self._files.close(lock)
        return lock is not None

    def _is_gone(self, incarnation: Incarnation) -> bool:
        """True if nothing is left of the incarnation's log: its writer ended long ago."""
        try:
            self._files.list(self._root / "wal" / incarnation)
        except FileNotFoundError:
            return True
        return False

    async def _load_dead(self) -> None:
        """Indexes what has no writer, and learns which records name its ledgers. Called in our turn."""
        found = await self._in_thread(self._find_dead)
        for one in [one for one in self._dead if one not in found]:
            del self._dead[one]
        for incarnation in found:
            if incarnation in self._dead:
                continue
            try:
                taken = await self._store.take_whole(incarnation)
                await self._store.index(incarnation)
                self._names |= await self._in_thread(
                    load_names, self._files, self._root / "wal" / incarnation
                )
            except (OSError, LogError) as error:
                log.warning("the log of %s cannot be read, it is kept: %s", incarnation, error)
                continue
            self._dead[incarnation] = taken
        await self.refresh(has_turn=True)
        self._names |= await self._in_thread(self._load_file_names)

    def _load_file_names(self) -> dict[int, LedgerName]:
        found: dict[int, LedgerName] = {}
        paths = {file.path for file in list(self._catalog.files.values()) if file.is_rewritten}
        self._named_files &= paths
        for path in sorted(paths - self._named_files):
            with contextlib.suppress(FileNotFoundError):
                if (trailer := read_trailer(self._files, path)) is not None:
                    block = read_part(self._files, path, trailer[0].data_end, trailer[0].directory_at)
                    found |= decode_names(memoryview(block))
            self._named_files.add(path)
        return found

    async def remove_folders(self) -> list[Incarnation]:
        """Removes the folders of dead incarnations of which nothing is wanted, not even a state. Returns them."""
        used = {
            file.incarnation for file in self._catalog.files.values()
        } | self._reclaimer.doomed_incarnations
        unused = [
            incarnation
            for incarnation, taken in self._dead.items()
            if incarnation not in used and all(ledger in self._live.dead for ledger in taken.states)
        ]
        gone = [one for one in unused if await self._in_thread(self._remove_folder, self._root / "wal" / one)]
        for incarnation in gone:
            del self._dead[incarnation]
        kept = {ledger for taken in self._dead.values() for ledger in taken.states}
        nothing_left = [one for one in self._live.dead if one not in kept and not self._catalog.files_of(one)]
        self._live.forget(nothing_left)
        for ledger in nothing_left:
            self._names.pop(ledger, None)
        return gone

    def _remove_folder(self, folder: Path) -> bool:
        """False if a plan of another process names a file in it, which a broker that died was about to remove."""
        with contextlib.suppress(FileNotFoundError):
            for number in wal_numbers(self._files, folder):
                path = wal_path(folder, number)
                if not self._holds.try_unlink(path, [path.with_suffix(".idx")]):
                    return False
            self._files.remove_folder(folder)
        return True

    # -- files that others make and remove

    async def refresh(self, *, has_turn: bool = False) -> None:
        """Looks at the folders: drops files that are gone or about to go, adds rewritten ones that are new.

        The broker that has the turn keeps those that are about to go: it finishes what another one began."""
        mine = list(self._catalog.files.values())
        known = {file.path for file in mine if file.is_rewritten} | self._reclaimer.doomed_paths
        gone, new = await self._in_thread(self._look, mine, known, has_turn)
        # Others may have looked at the same time.
        known = {file.path for file in self._catalog.files.values() if file.is_rewritten}
        known |= self._reclaimer.doomed_paths
        for file in new:
            if file.path not in known:
                self._catalog.add_indexed(file)
        self._catalog.remove(gone)
        for file in gone:
            # A mapped footer would keep the file's blocks allocated although its name is gone.
            file.index = OpenIndex()

    def _look(
        self, mine: Collection[LogFile], known: Collection[Path], has_turn: bool
    ) -> tuple[list[LogFile], list[LogFile]]:
        names: dict[Path, frozenset[str]] = {}

        def is_there(file: LogFile) -> bool:
            folder = file.path.parent
            if folder not in names:
                try:
                    names[folder] = frozenset(self._files.list(folder))
                except FileNotFoundError:
                    names[folder] = frozenset()
            is_going = file.path.name + MARK in names[folder] and not has_turn
            return file.path.name in names[folder] and not is_going

        gone = [file for file in mine if file.incarnation != self._own and not is_there(file)]
        # Behind that: what is gone was copied before it went, so its copy is there now.
        names.clear()
        new = load_rewritten(self._files, self._root, except_for=known, may_remove=has_turn)
        return gone, [file for file in new if is_there(file)]

    def disk_bytes(self) -> int:
        """The bytes that the log takes, whichever process wrote it. Blocking."""
        total = 0
        folders = [self._root / "wal", self._root / "ledgers"]
        while folders:
            folder = folders.pop()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for name in self._files.list(folder):
                    if not name.endswith((".wal", ".idx", ".led", ".tier")):
                        folders.append(folder / name)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        total += self._files.disk_bytes(folder / name)
        return total

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)
