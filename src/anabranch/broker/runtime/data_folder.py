"""The log and the metadata of a folder belong together, and a broker does not start with one of them alone.

Metadata without its log has topics whose messages are missing. A log without its metadata is worse: no topic would own
its ledgers, and a broker that started over would delete them as garbage. Both happen if a backup is restored in part,
or a file that was reported as damaged is removed. So each of them holds the same name, given at the first start.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore

METADATA: Final = "metadata.sqlite"
LOG: Final = "log"
# Where the name is stored: in the metadata, and in the log's folder.
IDENTITY: Final = "/anabranch/log-identity"
FILE: Final = "identity"
# Locked by whatever serves the folder: one broker, or the processes of several.
LOCK: Final = "lock"


# What the page shows of the last hour: a file for each broker. Nothing is lost with it.
PAGE: Final = "page"


def last_hour(data: Path, broker: int) -> Path:
    return data / PAGE / f"last-hour-{broker}"


class NotTogether(AnabranchError):
    """One of the two is missing, or belongs to another broker."""


def lock(data: Path, *, is_shared: bool = False) -> int | None:
    """A descriptor that keeps every other broker from the folder until it is closed; None if the folder is in use.
    Brokers that share their metadata share the lock.

    Processes that inherit the descriptor keep the folder locked for as long as they live."""
    descriptor = os.open(data / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


async def name_log(metadata: MetadataStore, data: Path) -> str:
    """Gives the log and metadata that is elsewhere one name, if neither has one; returns it. Called again, it changes
    nothing. NotTogether if one of them has another, or belongs to metadata in the folder."""
    stored = await metadata.get(IDENTITY, fresh=True)
    found = await asyncio.to_thread(_read, data / LOG / FILE)
    if stored is None:
        if (data / METADATA).exists() or any((data / LOG / "wal").glob("*/*.wal")):
            # Brokers of other metadata would not find a topic for any of its ledgers, and delete them.
            raise NotTogether(f"{data} has messages of brokers with other metadata: name an empty folder")
        name = found or secrets.token_hex(8)
        if not found:
            await asyncio.to_thread(_write, data / LOG / FILE, name)
        return (await metadata.put(IDENTITY, name.encode())).value.decode()
    await check_named_log(metadata, data)
    return stored.value.decode()


async def check_named_log(metadata: MetadataStore, data: Path) -> None:
    """NotTogether unless the log in this folder is the one that metadata elsewhere names."""
    stored = await metadata.get(IDENTITY, fresh=True)
    found = await asyncio.to_thread(_read, data / LOG / FILE)
    if stored is None:
        raise NotTogether("the cluster was never made: run `anabranch cluster init` with the same URLs")
    name = stored.value.decode()
    if found != name:
        what = f"belongs to another cluster ({FILE} says {found})" if found else "is missing"
        raise NotTogether(
            f"this cluster's log is named {name}, and {data / LOG} {what}: is the folder mounted, and the right one?"
        )


def check_metadata(data: Path) -> None:
    """Called before the metadata is opened, which would create it. NotTogether if only the metadata is missing."""
    log = data / LOG
    if not (data / METADATA).exists() and any((log / "wal").glob("*/*.wal")):
        raise NotTogether(
            f"{log} has messages, but {data / METADATA} is missing, which says whose they are: restore it from the "
            f"backup that the log is from; to give all messages up, delete {log}"
        )


async def check_log(metadata: MetadataStore, data: Path) -> None:
    """NotTogether unless the log is the one that the metadata names. At the first start both are given the name."""
    stored = await metadata.get(IDENTITY)
    found = await asyncio.to_thread(_read, data / LOG / FILE)
    if stored is None:
        # The first start, one that was interrupted here, or the first of a release with names. The file is written
        # first: a name in the metadata then means that the log has it, too.
        name = found or secrets.token_hex(8)
        if not found:
            await asyncio.to_thread(_write, data / LOG / FILE, name)
        await metadata.put(IDENTITY, name.encode())
        return
    name = stored.value.decode()
    if found != name:
        whose = (
            f"belongs to other metadata ({FILE} says {found})" if found else "is missing, or was not restored"
        )
        raise NotTogether(
            f"{data / METADATA} and the log do not belong together: {data / LOG} {whose}. Restore both from one "
            f"backup; to start without the old messages, put {name} into {data / LOG / FILE}"
        )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def _write(file: Path, name: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{FILE}.part")
    with part.open("w", encoding="utf-8") as out:
        out.write(f"{name}\n")
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
