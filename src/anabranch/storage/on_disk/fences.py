"""Fences and the results of taking over: small files created once, never changed and never deleted.

A fence is a file in `fences/` of the victim's folder that names ledgers, or all. The fencer creates it and then reads
the log's tail; the writer looks for it between sync and confirmation. On a coherent file system at least one of them
sees the other. So that a look costs the same however many fences there are, each fence adds a byte to a file beside
them: the writer lists the folder only when that file has grown. What the fencer found is stored in `taken/`, a numbered
sequence; of two answers for a ledger the first counts.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from anabranch.model.position import LedgerId
from anabranch.storage.core import format as fmt
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.recovery import Damage
from anabranch.storage.port import LedgerState, LogError

FENCES = "fences"
TAKEN = "taken"
# As many bytes as fences were raised.
RAISED = ".raised"


class FenceNote(msgspec.Struct):
    """The fenced ledgers; None for every ledger of the incarnation."""

    ledgers: list[int] | None


def create_only(files: Files, path: Path, data: bytes) -> bool:
    """Creates a file that appears whole, synced and only once under its name; False if the name exists."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = files.create(part, 0)
    try:
        files.write(fd, [data], 0)
        files.sync(fd)
    finally:
        files.close(fd)
    try:
        files.link(part, path)
    except FileExistsError:
        return False
    finally:
        files.unlink(part)
    files.sync_folder(path.parent)
    return True


def read_whole(files: Files, path: Path) -> bytes:
    fd = files.open(path)
    try:
        return files.read(fd, files.size(path), 0)
    finally:
        files.close(fd)


def make_folders(files: Files, folder: Path) -> None:
    """What a writer needs in its folder before it can be fenced."""
    for name in (FENCES, TAKEN):
        files.make_folder(folder / name)
    files.append(folder / FENCES / RAISED, b"")


def raise_fence(files: Files, folder: Path, ledgers: Collection[LedgerId] | None) -> None:
    """When this returns, the writer of `folder` will find the fence before it confirms anything more."""
    note = FenceNote(None if ledgers is None else sorted(ledgers))
    is_raised = create_only(files, folder / FENCES / secrets.token_hex(16), msgspec.json.encode(note))
    if not is_raised:
        raise LogError(f"a fence in {folder} has the name of another one")
    # After the fence: a writer that sees that the file has grown finds the fence in the folder.
    files.append(folder / FENCES / RAISED, b"|")


class FenceWatch:
    """The writer's side: finds fences raised since its last check."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder / FENCES
        self._raised = self._folder / RAISED
        self._raised_seen = 0
        self._seen: set[str] = set()
        self.is_ended = False
        self.why = "was taken by another broker"
        self.ledgers: frozenset[int] = frozenset()

    def look(self) -> bool:
        """True if there are new fences. A folder or fence that cannot be read ends the incarnation."""
        try:
            raised = self._files.size(self._raised)
            if raised == self._raised_seen:
                return False
            names = self._files.list(self._folder)
        except OSError as error:
            self._end_unread(error)
            return True
        self._raised_seen = raised
        new = [name for name in names if name not in self._seen and not name.startswith(".")]
        for name in new:
            self._seen.add(name)
            self._add(name)
        return bool(new)

    def _end_unread(self, error: Exception) -> None:
        self.is_ended = True
        self.why = f"ends, since it is unknown whether another broker has taken it: {error}"

    def _add(self, name: str) -> None:
        try:
            note = _decode_fence(read_whole(self._files, self._folder / name))
        except (OSError, msgspec.DecodeError) as error:
            self._end_unread(error)
            return
        if note.ledgers is None:
            self.is_ended = True
        else:
            self.ledgers |= frozenset(note.ledgers)


@dataclass(slots=True)
class FinalStates:
    """The known final states of an incarnation."""

    states: dict[LedgerId, LedgerState] = field(default_factory=dict)
    namespaces: dict[LedgerId, str] = field(default_factory=dict)
    # Ledgers that were asked for and never written.
    absent: set[LedgerId] = field(default_factory=set)
    # True once the whole incarnation has been taken: a ledger not in `states` does not exist.
    is_final: bool = False
    damage: list[Damage] = field(default_factory=list)
    # How many results are stored; the next one gets this number.
    results: int = 0

    def has(self, ledgers: Collection[LedgerId] | None) -> bool:
        """True if the answer for those ledgers (None: all) is known."""
        if self.is_final:
            return True
        return ledgers is not None and all(one in self.states or one in self.absent for one in ledgers)

    def copy(self) -> FinalStates:
        return FinalStates(
            dict(self.states),
            dict(self.namespaces),
            set(self.absent),
            self.is_final,
            list(self.damage),
            self.results,
        )


class ResultNote(msgspec.Struct):
    """The end of a stored result."""

    final: bool
    absent: list[int]
    damage: list[Damage]


def load_taken(files: Files, folder: Path, known: FinalStates | None = None) -> FinalStates:
    """What was stored so far. Results that are in `known`, which stays as it is, are not read again."""
    taken = FinalStates() if known is None else known.copy()
    while not taken.is_final:
        path = folder / TAKEN / str(taken.results)
        try:
            data = read_whole(files, path)
        except FileNotFoundError:
            break
        fold_result(taken, data, path)
        taken.results += 1
    return taken


def store_taken(files: Files, folder: Path, found: FinalStates, number: int) -> bool:
    """Adds a result to the sequence; False if another broker was first, whose answer then counts."""
    return create_only(files, folder / TAKEN / str(number), encode_result(found))


def encode_result(found: FinalStates) -> bytes:
    parts = [
        fmt.encode_record(
            ledger,
            0,
            0,
            fmt.CHECKPOINT,
            fmt.encode_part(
                fmt.CheckpointPart(
                    state.entries_end,
                    0,
                    state.bytes,
                    found.namespaces.get(ledger, ""),
                    state.snapshot,
                    state.deltas,
                    state.messages,
                )
            ),
        )
        for ledger, state in sorted(found.states.items())
    ]
    note = msgspec.json.encode(ResultNote(found.is_final, sorted(found.absent), found.damage))
    return b"".join([*parts, fmt.encode_record(0, len(parts), 0, fmt.SNAPSHOT, note)])


def fold_result(taken: FinalStates, data: bytes, path: Path | str) -> None:
    """Adds a stored result: of two answers for a ledger the first counts."""
    view = memoryview(data)
    for record in _records(view, path):
        body = view[record.at + fmt.RECORD_BYTES : record.at + record.size]
        if record.kind == fmt.SNAPSHOT:
            note = _decode_result(body)
            taken.is_final = note.final
            taken.absent |= {LedgerId(one) for one in note.absent} - taken.states.keys()
            taken.damage += note.damage
            return
        ledger = LedgerId(record.ledger)
        if ledger not in taken.states and ledger not in taken.absent:
            part = fmt.decode_part(body)
            taken.states[ledger] = LedgerState(
                part.entries_end, part.snapshot, part.deltas, part.size, part.messages
            )
            taken.namespaces[ledger] = part.namespace
    raise LogError(f"{path} is cut short")


def _records(view: memoryview, path: Path | str) -> Iterable[fmt.LogRecord]:
    at = 0
    while at < len(view):
        record = fmt.read_record(view, at, len(view))
        if record is None or not record.is_good:
            raise LogError(f"{path} is damaged at byte {at}")
        yield record
        at += record.size


_decode_fence = msgspec.json.Decoder(FenceNote).decode
_decode_result = msgspec.json.Decoder(ResultNote).decode
