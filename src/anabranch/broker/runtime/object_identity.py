"""Metadata and a log in an object store belong together, as those of a folder do (`data_folder.py`).

Both hold the same name, given at the first start. Metadata whose messages are elsewhere would have topics without them;
a log below a prefix that other metadata uses, too, would be taken from its broker.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path
from typing import Final

from anabranch.broker.runtime.data_folder import IDENTITY as FOLDER_IDENTITY
from anabranch.broker.runtime.data_folder import LOG, NotTogether
from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.storage.object.medium import MediumMissingError, ObjectMedium
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.object.requests import asked, create_settled

# Where the name is stored: in the metadata, and in the store, with the format of the log.
IDENTITY: Final = "/anabranch/object-log-identity"
KEY: Final = "identity"
_FORMAT: Final = "anabranch object log 1"


async def check(metadata: MetadataStore, medium: ObjectMedium, data: Path) -> None:
    """NotTogether unless the log is the one that the metadata of this folder names. At the first start both are given
    the name."""
    _refuse_local(data)
    stored, found = await _names(metadata, medium)
    _compare(stored, found, medium, f"the metadata of {data}")


async def name_log(metadata: MetadataStore, medium: ObjectMedium) -> None:
    """Gives the log and metadata that is elsewhere one name, if neither has one. NotTogether if one of them has
    another, or the metadata has a log in a folder."""
    await _refuse_folder(metadata)
    stored, found = await _names(metadata, medium)
    _compare(stored, found, medium, "the metadata of this cluster")


async def check_named(metadata: MetadataStore, medium: ObjectMedium) -> None:
    """NotTogether unless the log is the one that metadata elsewhere names."""
    await _refuse_folder(metadata)
    stored = await metadata.get(IDENTITY, fresh=True)
    if stored is None:
        raise NotTogether("the cluster was never made: run `anabranch cluster init` with the same URLs")
    _compare(stored, await _read(medium), medium, "the metadata of this cluster")


async def check_belongs(metadata: MetadataStore, medium: ObjectMedium) -> None:
    """NotTogether unless the log is the one that the metadata names, wherever that is."""
    stored = await metadata.get(IDENTITY, fresh=True)
    if stored is None:
        raise NotTogether("the log of this metadata is not in an object store")
    _compare(stored, await _read(medium), medium, "this metadata")


async def _names(metadata: MetadataStore, medium: ObjectMedium) -> tuple[Versioned, str]:
    """What the metadata and the log are named, once both have a name."""
    stored = await metadata.get(IDENTITY, fresh=True)
    found = await _read(medium)
    if stored is None:
        stored = await _name(metadata, medium, found)
        found = await _read(medium)
    return stored, found


def _compare(stored: Versioned, found: str, medium: ObjectMedium, whose_metadata: str) -> None:
    if found != stored.value.decode():
        whose = f"belongs to other metadata ({KEY} says {found})" if found else "is missing"
        raise NotTogether(
            f"{whose_metadata} and the log in {medium.url('')} do not belong together: the log {whose}"
        )


async def _name(metadata: MetadataStore, medium: ObjectMedium, found: str) -> Versioned:
    """The first start, or one that was interrupted here. Brokers that start together agree on one name."""
    has_messages = False
    if found:
        has_messages = bool(await asked(lambda: medium.list("wal"), ObjectLogPolicy()))
    if has_messages:
        stored = await metadata.get(IDENTITY, fresh=True)
        if stored is not None:
            return stored
        raise NotTogether(
            f"{medium.url('')} holds the log of other metadata: name another prefix, or restore that metadata"
        )
    if not found:
        # The store first: a name in the metadata then means that the log has it, too.
        body = f"{_FORMAT}\n{secrets.token_hex(8)}\n".encode()
        await create_settled(medium, KEY, body, ObjectLogPolicy())
        found = await _read(medium)
    with contextlib.suppress(AlreadyExists):
        await metadata.create(IDENTITY, found.encode())
    stored = await metadata.get(IDENTITY, fresh=True)
    assert stored is not None
    return stored


async def check_local(metadata: MetadataStore, data: Path) -> None:
    """NotTogether if the metadata's log is in an object store, and no log in the folder is wanted."""
    if await metadata.get(IDENTITY, fresh=True) is not None:
        raise NotTogether(f"the log of {data} is in an object store: set logUrl as it was at the first start")


async def _refuse_folder(metadata: MetadataStore) -> None:
    if await metadata.get(FOLDER_IDENTITY, fresh=True) is not None:
        raise NotTogether(
            "the log of this cluster is in a folder: name it as `anabranch cluster init` was told"
        )


def _refuse_local(data: Path) -> None:
    if any((data / LOG / "wal").glob("*/*.wal")):
        raise NotTogether(
            f"{data / LOG} has messages, which a log in an object store would not: name another folder"
        )


async def _read(medium: ObjectMedium) -> str:
    try:
        data = await asked(lambda: medium.get(KEY), ObjectLogPolicy())
    except MediumMissingError:
        return ""
    told, _, name = bytes(data).decode(errors="replace").strip().partition("\n")
    if told != _FORMAT:
        raise NotTogether(f"{medium.url(KEY)} is not of this release: {told[:60]!r}")
    return name
