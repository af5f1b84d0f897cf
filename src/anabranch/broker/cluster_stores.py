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
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime import data_folder, object_identity
from anabranch.broker.runtime.listening import StartError
from anabranch.broker.stores import Stores, file_log, lock_folder, make_folder, object_log, object_refusals
from anabranch.metadata.errors import AlreadyExists
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import check_entity

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


# Of logs in object stores; `objects:///folder` keeps the objects in a folder, for trials and tests.
_OBJECT_STORES: Final = frozenset({"s3", "objects"})


def log_folder(url: str) -> Path | None:
    """The folder of `file:///folder`; None for a log in an object store. StartError for a URL that names no log."""
    parts = urlsplit(url)
    if parts.scheme in _OBJECT_STORES:
        return None
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise StartError(
            f"{parts.scheme or url!r} names no log: use s3://bucket/prefix, or file:///folder for a folder that all "
            "brokers share"
        )
    return Path(unquote(parts.path))


async def member_settings(metadata: MetadataStore, config: BrokerConfig, *, is_named: bool) -> BrokerConfig:
    """The settings of a broker of the cluster in this metadata: its name, and its log's folder as `dataDir`. A broker
    whose log is in an object store has no folder."""
    name = await cluster_name(metadata)
    if is_named and config.cluster_name != name:
        raise StartError(f"clusterName is {config.cluster_name}, and the cluster in the metadata is {name}")
    folder = log_folder(config.log_url)
    return msgspec.structs.replace(config, cluster_name=name, data_dir="" if folder is None else str(folder))


@contextlib.asynccontextmanager
async def member_stores(metadata: MetadataStore, config: BrokerConfig) -> AsyncIterator[Stores]:
    """The stores of a broker with these settings. The caller, who made the session, closes it."""
    if not config.data_dir:
        with object_refusals():
            medium, log = object_log(config)
            await object_identity.check_named(metadata, medium)
        yield Stores(metadata, log)
        return
    data = Path(config.data_dir)
    await object_identity.check_local(metadata, data)
    await data_folder.check_named_log(metadata, data)
    lock = await lock_folder(data, is_shared=True)
    try:
        yield Stores(metadata, file_log(config, is_shared=True))
    finally:
        os.close(lock)


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
    folder = log_folder(config.log_url)
    if folder is None:
        with object_refusals():
            medium, _ = object_log(config)
            await object_identity.name_log(metadata, medium)
            await medium.close()
    else:
        await object_identity.check_local(metadata, folder)
        make_folder(folder)
        await data_folder.name_log(metadata, folder)
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
