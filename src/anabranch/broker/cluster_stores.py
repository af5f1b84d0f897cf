"""Opens the stores of a cluster by their URLs, and makes a cluster on them. Part of the composition root.

The brokers of a cluster have no folder in common that says who they are: a record in the metadata does. Only
`make_cluster` makes it, so that a wrong URL is an error and not a second, empty cluster.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime import data_folder, object_identity
from anabranch.broker.runtime.listening import StartError
from anabranch.broker.stores import (
    Stores,
    check_untiered,
    file_log,
    lock_folder,
    make_folder,
    object_log,
    object_medium,
    object_refusals,
)
from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import check_entity
from anabranch.storage.port import LogStore

# What every cluster has: its name.
CLUSTER: Final = "/anabranch/cluster"
SESSION_TIMEOUT_MIN_MS: Final = 1_000


class ClusterMark(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a cluster in its metadata."""

    cluster_name: str


_decode: Final = msgspec.json.Decoder(ClusterMark).decode


@contextlib.asynccontextmanager
async def metadata_of(config: BrokerConfig, *, makes_folder: bool = False) -> AsyncIterator[MetadataStore]:
    """A session at the metadata store that the settings name. `makes_folder`: as part of making a cluster."""
    url = config.metadata_store_url
    if not url.startswith("zk:"):
        raise StartError(
            f"{url!r} names no metadata store that brokers can share: use zk://host1,host2,host3/folder"
        )
    if importlib.util.find_spec("kazoo") is None:
        raise StartError("zk:// needs kazoo, which is not installed: pip install 'anabranch[zookeeper]'")
    # Imported only if needed.
    from anabranch.metadata.zookeeper.address import zookeeper_address
    from anabranch.metadata.zookeeper.link import ZooKeeperAccess
    from anabranch.metadata.zookeeper.store import ZooKeeperMetadata

    timeout_ms = config.metadata_store_session_timeout_millis
    if timeout_ms < SESSION_TIMEOUT_MIN_MS:
        raise StartError(
            f"metadataStoreSessionTimeoutMillis is {timeout_ms}: a pause of the machine would end sessions; the least "
            f"is {SESSION_TIMEOUT_MIN_MS}"
        )
    access = ZooKeeperAccess(
        session_timeout_ms=timeout_ms,
        credentials=_credentials(config.zoo_keeper_auth_file),
        has_tls=config.zoo_keeper_tls_enabled,
        tls_trust_certs_file=_readable("TrustCerts", config.zoo_keeper_tls_trust_certs_file_path),
        tls_certificate_file=_readable("Certificate", config.zoo_keeper_tls_certificate_file_path),
        tls_key_file=_readable("Key", config.zoo_keeper_tls_key_file_path),
        verifies_host=config.zoo_keeper_tls_hostname_verification_enabled,
    )
    store = await ZooKeeperMetadata.connect(zookeeper_address(url), access, makes_chroot=makes_folder)
    try:
        yield store
    finally:
        await store.close()


def _credentials(file: str) -> str:
    if not file:
        return ""
    try:
        found = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"zooKeeperAuthFile: cannot read {file}: {error}") from None
    user, colon, password = found.partition(":")
    if not (user and colon and password) or "\n" in found:
        raise StartError(f"zooKeeperAuthFile: {file} must be one line, user:password")
    return found


def _readable(name: str, file: str) -> str:
    """kazoo would try to read it for ever, and say so in its log only."""
    if file and not os.access(file, os.R_OK):
        raise StartError(f"zooKeeperTls{name}FilePath: cannot read {file}")
    return file


class SharedLog(Protocol):
    """A log that brokers share, as its URL names it."""

    def settings(self, config: BrokerConfig) -> BrokerConfig:
        """The settings of a broker that uses it."""
        ...

    async def make(self, metadata: MetadataStore) -> None:
        """Makes it the log of that metadata. Called again, it changes nothing; NotTogether if it is another's."""
        ...

    def opened(self, metadata: MetadataStore, config: BrokerConfig) -> AbstractAsyncContextManager[LogStore]:
        """The log, not started, for a broker with these settings. NotTogether if it is not that of the metadata."""
        ...


class SharedFolder:
    """Files in one folder, which every broker reaches under the same name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settings(self, config: BrokerConfig) -> BrokerConfig:
        return msgspec.structs.replace(config, data_dir=str(self.folder))

    async def make(self, metadata: MetadataStore) -> None:
        await object_identity.check_local(metadata, self.folder)
        make_folder(self.folder)
        await data_folder.name_log(metadata, self.folder)

    @contextlib.asynccontextmanager
    async def opened(self, metadata: MetadataStore, config: BrokerConfig) -> AsyncIterator[LogStore]:
        await object_identity.check_local(metadata, self.folder)
        await data_folder.check_named_log(metadata, self.folder)
        lock = await lock_folder(self.folder, is_shared=True)
        try:
            yield file_log(config, is_shared=True)
        finally:
            os.close(lock)


class SharedObjects:
    """Objects in a store, which every broker reaches. The brokers keep nothing on their machines."""

    def __init__(self, url: str) -> None:
        self.url = url

    def settings(self, config: BrokerConfig) -> BrokerConfig:
        return msgspec.structs.replace(config, data_dir="")

    async def make(self, metadata: MetadataStore) -> None:
        with object_refusals():
            medium = object_medium(self.url)
            try:
                await object_identity.name_log(metadata, medium)
            finally:
                await medium.close()

    @contextlib.asynccontextmanager
    async def opened(self, metadata: MetadataStore, config: BrokerConfig) -> AsyncIterator[LogStore]:
        check_untiered(config)
        with object_refusals():
            medium, log = object_log(config)
            await object_identity.check_named(metadata, medium)
        yield log


def shared_log(url: str) -> SharedLog:
    """The log that a URL names: the only place that knows which kinds there are. StartError for any other."""
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if parts.netloc in ("", "localhost") and parts.path.strip("/"):
            return SharedFolder(Path(unquote(parts.path)))
        case "s3" | "objects":
            return SharedObjects(url)
    raise StartError(
        f"{parts.scheme or url!r} names no log: use s3://bucket/prefix, or file:///folder, which all "
        "brokers share"
    )


async def member_settings(metadata: MetadataStore, config: BrokerConfig, *, is_named: bool) -> BrokerConfig:
    """The settings of a broker of the cluster in this metadata, with its name, and as its log wants them."""
    name = await cluster_name(metadata)
    if is_named and config.cluster_name != name:
        raise StartError(f"clusterName is {config.cluster_name}, and the cluster in the metadata is {name}")
    return shared_log(config.log_url).settings(msgspec.structs.replace(config, cluster_name=name))


@contextlib.asynccontextmanager
async def member_stores(metadata: MetadataStore, config: BrokerConfig) -> AsyncIterator[Stores]:
    """The stores of a broker with these settings. The caller, who made the session, closes it."""
    async with shared_log(config.log_url).opened(metadata, config) as log:
        yield Stores(metadata, log)


async def cluster_name(metadata: MetadataStore) -> str:
    """StartError if there is no cluster in this metadata."""
    found = await metadata.get(CLUSTER, fresh=True)
    if found is None:
        raise StartError("there is no cluster in this metadata: make it with `anabranch cluster init`")
    try:
        return _decode(found.value).cluster_name
    except msgspec.DecodeError as error:
        raise StartError(f"{CLUSTER} in the metadata cannot be read: {error}") from None


async def make_cluster(metadata: MetadataStore, config: BrokerConfig) -> bool:
    """Makes the cluster that the settings name; False if it is there already, whole. The record comes last, so that an
    interrupted call is repeated."""
    check_entity("cluster", config.cluster_name)
    found = await metadata.get(CLUSTER, fresh=True)
    if found is not None and (name := await cluster_name(metadata)) != config.cluster_name:
        raise StartError(f"there is a cluster in this metadata already, {name}")
    await shared_log(config.log_url).make(metadata)
    if found is not None:
        return False
    with contextlib.suppress(AlreadyExists):
        await metadata.create(CLUSTER, msgspec.json.encode(ClusterMark(config.cluster_name)))
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
