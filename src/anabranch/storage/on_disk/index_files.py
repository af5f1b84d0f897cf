"""What stays on the disk of files that were moved: index files, and the name of the log's folder in the store.

All of it blocks.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Final

import msgspec

from anabranch.storage.core import format as fmt
from anabranch.storage.core.tiered import TIERED, TierError, TierPlace
from anabranch.storage.on_disk.files import Files
from anabranch.storage.on_disk.rewrite import SUFFIX

# Holds the name of this log's folder in the object store, which no other log has.
ID_FILE: Final = "tier"

# Made once, before threads use it side by side.
_decode_place: Final = msgspec.json.Decoder(TierPlace).decode


def log_id(files: Files, root: Path) -> str:
    """The name of this log's folder in the store: made at first use, kept beside the log. Blocking."""
    path = root / ID_FILE
    found = _read_id(files, path)
    if found:
        return found
    part = root / f".{ID_FILE}-{secrets.token_hex(4)}"
    fd = files.create(part, 0)
    try:
        files.write(fd, [secrets.token_hex(16).encode()], 0)
        files.sync(fd)
    finally:
        files.close(fd)
    with contextlib.suppress(FileExistsError):
        files.link(part, path)
    files.unlink(part)
    files.sync_folder(root)
    found = _read_id(files, path)
    if not found:
        raise OSError(f"{path} cannot be read back")
    return found


def _read_id(files: Files, path: Path) -> str:
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return ""
    try:
        found = files.read(fd, 64, 0).decode("ascii", "replace").strip()
    finally:
        files.close(fd)
    if len(found) != 32 or not found.isalnum():
        raise TierError(f"{path} does not hold the name of the log's folder in the object store: restore it")
    return found


def write_index_file(files: Files, path: Path, data: bytes) -> None:
    """Makes the index file, durable and whole, unless it is there already. Blocking."""
    part = path.with_name(f".{path.name}")
    # Left by a process that was killed at this point: only one process at a time moves files.
    with contextlib.suppress(FileNotFoundError):
        files.unlink(part)
    fd = files.create(part, 0)
    try:
        files.write(fd, [data], 0)
        files.sync(fd)
    finally:
        files.close(fd)
    with contextlib.suppress(FileExistsError):
        files.link(part, path)
    files.unlink(part)
    files.sync_folder(path.parent)


def read_place(files: Files, path: Path) -> TierPlace | None:
    """The place in an index file; None if that is damaged. Blocking."""
    fd = files.open(path)
    try:
        head = files.read(fd, fmt.RECORD_BYTES, 0)
        if len(head) < fmt.RECORD_BYTES:
            return None
        data = memoryview(files.read(fd, fmt.RECORD_BYTES + int.from_bytes(head[4:8], "little"), 0))
    finally:
        files.close(fd)
    record = fmt.read_record(data, 0, len(data))
    if record is None or not record.is_good or (record.ledger, record.kind) != (0, fmt.SNAPSHOT):
        return None
    try:
        return _decode_place(data[fmt.RECORD_BYTES : record.size])
    except msgspec.MsgspecError:
        return None


def rewritten_names(files: Files, root: Path) -> list[Path]:
    """The rewritten files and index files of a log, in order. Blocking."""
    found: list[Path] = []
    folders = [root / "ledgers"]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in files.list(folder):
                if not name.endswith((SUFFIX, TIERED)):
                    folders.append(folder / name)
                elif not name.startswith("."):
                    found.append(folder / name)
    return sorted(found)
