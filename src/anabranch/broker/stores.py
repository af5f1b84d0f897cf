"""Opens the stores of a broker: a folder that is its own, or one that several brokers share.

A broker on its own opens SQLite in its process and locks the log. Brokers that share a folder have their metadata
served by another process, and each writes a log of its own beside those of the others. Part of the composition root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime import data_folder, object_identity
from anabranch.broker.runtime.listening import StartError
from anabranch.metadata.embedded import EmbeddedStore
from anabranch.metadata.errors import StoreInUse
from anabranch.metadata.port import MetadataStore, SessionState
from anabranch.metadata.sqlite import SqliteMetadata
from anabranch.storage.core.tiered import Tier
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.moving import TierPolicy
from anabranch.storage.port import LogStore

if TYPE_CHECKING:
    from anabranch.storage.object.medium import ObjectMedium

# What all brokers of a machine may take of its memory for written pages, and of its disk before files are rewritten.
PAGE_CACHE_BYTES: Final = 1 << 30
WAL_BYTES_MAX: Final = 32 << 30
# The least that a broker works with, however many share the settings.
SHARE_BYTES_MIN: Final = 1 << 20
# A folder whose processes were killed a moment ago is free once the last of them is gone.
LOCK_WAIT_S: Final = 2.0
# Metadata and brokers start at the same time, and the metadata may have much to recover.
METADATA_WAIT_S: Final = 50.0


@dataclass(frozen=True, slots=True)
class Stores:
    """What a broker is built on. The log is not started; the broker closes it."""

    metadata: MetadataStore
    log: LogStore


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def shared_budgets(config: BrokerConfig, brokers: int) -> BrokerConfig:
    """The settings of one of so many brokers: the limits on memory of this machine are divided among them. Those on the
    disk are not: each broker counts what all of them have written."""
    return msgspec.structs.replace(
        config,
        log_cache_bytes=_share(config.log_cache_bytes, brokers),
        max_pending_publish_bytes=_share(config.max_pending_publish_bytes, brokers),
    )


def _share(whole: int, brokers: int) -> int:
    return max(whole // brokers, min(whole, SHARE_BYTES_MIN))


def make_folder(data: Path) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is a file; name a folder" if data.is_file() else error.strerror or error
        raise StartError(f"cannot use {data}: {reason}") from None
    if not os.access(data, os.R_OK | os.W_OK | os.X_OK):
        raise StartError(f"cannot write to {data}: is the disk read-only, or the folder another user's?")


def _in_use(data: Path) -> StartError:
    return StartError(
        f"another broker serves {data} already: stop it, or name another folder with --data-dir"
    )


async def lock_folder(data: Path, *, is_shared: bool = False) -> int:
    """Makes the folder if it is absent, and locks it against every other broker and cluster, until the returned
    descriptor and all that were inherited from it are closed. Shared, it keeps out only those that lock it for
    themselves. StartError if it is in use."""
    make_folder(data)
    ends = asyncio.get_running_loop().time() + LOCK_WAIT_S
    while True:
        try:
            lock = data_folder.lock(data, is_shared=is_shared)
        except OSError as error:
            raise StartError(f"cannot use {data}: {error.strerror or error}") from None
        if lock is not None:
            return lock
        if asyncio.get_running_loop().time() > ends:
            raise _in_use(data)
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def opened_metadata(data: Path) -> AsyncIterator[tuple[SqliteMetadata, EmbeddedStore]]:
    """The metadata of a locked folder, which belongs to its log, and a session of it."""
    data_folder.check_metadata(data)
    try:
        service = await SqliteMetadata.open(data / data_folder.METADATA, clock_ms=now_ms)
    except StoreInUse:
        raise _in_use(data) from None
    try:
        session = await service.connect()
        await data_folder.check_log(session, data)
        yield service, session
    finally:
        await service.close()


@contextlib.asynccontextmanager
async def sole_stores(config: BrokerConfig) -> AsyncIterator[Stores]:
    """The stores of a broker that has its folder to itself."""
    data = Path(config.data_dir)
    lock = await lock_folder(data)
    try:
        async with opened_metadata(data) as (_, metadata):
            yield Stores(metadata, await _log(config, metadata))
    finally:
        os.close(lock)


@contextlib.asynccontextmanager
async def shared_stores(
    config: BrokerConfig, brokers: int, metadata_path: Path, on_session: Callable[[str], None]
) -> AsyncIterator[Stores]:
    """The stores of one of so many brokers. `on_session` is called with each metadata session that it has."""
    # Imported only if needed.
    from anabranch.metadata.remote import RemoteMetadata

    metadata = await RemoteMetadata.connect(metadata_path, wait_s=METADATA_WAIT_S)

    def changed(state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            on_session(metadata.session.id)

    metadata.session.on_change(changed)
    on_session(metadata.session.id)
    try:
        yield Stores(metadata, await _log(config, metadata, brokers=brokers, is_shared=True))
    finally:
        await metadata.close()


async def _log(
    config: BrokerConfig,
    metadata: MetadataStore,
    *,
    brokers: int = 1,
    is_shared: bool = False,
) -> LogStore:
    if config.log_url:
        check_untiered(config)
        with object_refusals():
            medium, log = object_log(config, is_sole=not is_shared)
            await object_identity.check(metadata, medium, Path(config.data_dir))
        return log
    await object_identity.check_local(metadata, Path(config.data_dir))
    return file_log(config, brokers=brokers, is_shared=is_shared)


def file_log(config: BrokerConfig, *, brokers: int = 1, is_shared: bool = False) -> FileLogStore:
    """The log in the folder `dataDir`. StartError if files of it are to be moved to a store that cannot be used."""
    return FileLogStore(
        Path(config.data_dir) / data_folder.LOG,
        clock_ms=now_ms,
        is_shared=is_shared,
        file_bytes=config.log_file_bytes,
        cache_bytes=config.log_cache_bytes,
        page_cache_bytes=PAGE_CACHE_BYTES // brokers,
        disk_reserve_bytes=config.log_disk_reserve_bytes,
        disk_bytes_max=config.log_disk_bytes_max or None,
        # Each broker rewrites its own; what is moved is chosen among the files of all.
        wal_bytes_max=min(WAL_BYTES_MAX, config.log_tier_local_bytes or WAL_BYTES_MAX) // brokers
        if config.log_tier_url
        else WAL_BYTES_MAX // brokers,
        tier=_tier(config),
        tier_policy=TierPolicy(config.log_tier_local_bytes, small_bytes=config.log_file_bytes // 8),
    )


def _tier(config: BrokerConfig) -> Tier | None:
    if not config.log_tier_url:
        return None
    # Imported only if needed.
    from anabranch.storage.object.policy import ObjectLogPolicy
    from anabranch.storage.tier.object_tier import open_tier

    with tier_refusals():
        return open_tier(tier_url(config), ObjectLogPolicy(block_cache_bytes=2 * config.log_cache_bytes))


@contextlib.contextmanager
def tier_refusals() -> Iterator[None]:
    """An object store that files cannot be moved to is a StartError."""
    from anabranch.storage.object.medium import MediumError

    try:
        yield
    except MediumError as error:
        raise StartError(f"cannot use logTierUrl: {error}") from error


def tier_url(config: BrokerConfig) -> str:
    """The URL of an object store, which a folder is as well."""
    scheme, colon, rest = config.log_tier_url.partition(":")
    return f"objects:{rest}" if scheme == "file" and colon else config.log_tier_url


def check_untiered(config: BrokerConfig) -> None:
    """StartError if files are to be moved of a log that has none."""
    if config.log_tier_url:
        raise StartError(
            f"logUrl is {config.log_url.partition('?')[0]}, so the log has no files that could be moved: leave out "
            "logTierUrl"
        )


def object_log(config: BrokerConfig, *, is_sole: bool = False) -> tuple[ObjectMedium, LogStore]:
    """The object store that the settings name and a new log in it, for a broker that is the only one on its metadata,
    or one of several. Within `object_refusals`."""
    # Imported only if needed.
    from anabranch.storage.object.core.choice import RewritePolicy
    from anabranch.storage.object.opening import open_object_log
    from anabranch.storage.object.policy import ObjectLogPolicy

    puts = config.log_object_puts_per_second
    policy = ObjectLogPolicy(
        puts_per_second=puts,
        puts_burst=max(1, round(2 * puts)),
        reclaim_seconds=max(1, config.log_object_reclaim_seconds),
        rewrite=RewritePolicy(waste_bytes=config.log_object_rewrite_waste_bytes),
        delete_delay_seconds=config.log_object_delete_delay_seconds,
        rewrite_bytes_per_second=config.log_object_rewrite_bytes_per_second,
        cache_bytes=config.log_cache_bytes,
        # Reading from the store again costs money, too.
        block_cache_bytes=2 * config.log_cache_bytes,
    )
    return open_object_log(config.log_url, clock_ms=now_ms, policy=policy, is_sole=is_sole)


def object_medium(url: str) -> ObjectMedium:
    """The object store that a URL names. Within `object_refusals`."""
    # Imported only if needed.
    from anabranch.storage.object.obstore_medium import open_medium

    return open_medium(url)


@contextlib.contextmanager
def object_refusals() -> Iterator[None]:
    """An object store that cannot be used is a StartError."""
    from anabranch.storage.object.medium import MediumError

    try:
        yield
    except MediumError as error:
        raise StartError(f"cannot use logUrl: {error}") from error
