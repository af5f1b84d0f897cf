"""What the brokers of a cluster find out about its stores before they use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from anabranch.broker import cluster_stores
from anabranch.broker.cluster_stores import (
    cluster_name,
    make_cluster,
    member_settings,
    member_stores,
    metadata_of,
    shared_log,
)
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.runtime.data_folder import NotTogether
from anabranch.broker.runtime.listening import StartError
from anabranch.broker.stores import lock_folder, sole_stores
from anabranch.metadata.embedded import EmbeddedStore
from anabranch.metadata.memory import MemoryMetadata


@pytest.fixture
async def metadata() -> AsyncIterator[EmbeddedStore]:
    store = await MemoryMetadata(lambda: 0).connect()
    yield store
    await store.close()


@pytest.fixture
def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig(
        cluster_name="river", metadata_store_url="zk://z1/river", log_url=f"file://{tmp_path}/log"
    )


async def opened(metadata: EmbeddedStore, config: BrokerConfig, *, is_named: bool = True) -> BrokerConfig:
    """As a broker starts: its settings, once both stores were opened."""
    found = await member_settings(metadata, config, is_named=is_named)
    async with member_stores(metadata, found):
        return found


async def test_a_cluster_is_made_once_and_its_brokers_know_its_name(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path
) -> None:
    assert await make_cluster(metadata, config) is True
    assert await make_cluster(metadata, config) is False
    assert await cluster_name(metadata) == "river"
    unnamed = msgspec.structs.replace(config, cluster_name="standalone")
    found = await opened(metadata, unnamed, is_named=False)
    assert (found.cluster_name, found.data_dir) == ("river", f"{tmp_path}/log")


async def test_without_a_cluster_no_broker_starts(metadata: EmbeddedStore, config: BrokerConfig) -> None:
    with pytest.raises(StartError, match="anabranch cluster init"):
        await opened(metadata, config)
    assert await metadata.scan("/") == []


async def test_a_broker_of_another_name_is_refused(metadata: EmbeddedStore, config: BrokerConfig) -> None:
    await make_cluster(metadata, config)
    other = msgspec.structs.replace(config, cluster_name="lake")
    with pytest.raises(StartError, match="clusterName is lake, and the cluster in the metadata is river"):
        await opened(metadata, other)
    with pytest.raises(StartError, match="a cluster in this metadata already, river"):
        await make_cluster(metadata, other)


async def test_a_log_of_another_cluster_or_none_is_refused(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path
) -> None:
    """Its ledgers would belong to no topic, and be deleted."""
    await make_cluster(metadata, config)
    absent = msgspec.structs.replace(config, log_url=f"file://{tmp_path}/not-mounted")
    with pytest.raises(NotTogether, match=r"is missing: is the folder mounted"):
        await opened(metadata, absent)
    assert not (tmp_path / "not-mounted").exists()
    others = await MemoryMetadata(lambda: 0).connect()
    elsewhere = msgspec.structs.replace(config, log_url=f"file://{tmp_path}/other")
    await make_cluster(others, elsewhere)
    with pytest.raises(NotTogether, match="belongs to another cluster"):
        await opened(metadata, elsewhere)
    with pytest.raises(NotTogether, match="belongs to another cluster"):
        await make_cluster(metadata, elsewhere)
    await others.close()


async def test_a_log_of_objects_is_named_by_its_cluster_alone(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path
) -> None:
    objects = msgspec.structs.replace(config, log_url=f"objects://{tmp_path}/bucket")
    with pytest.raises(StartError, match="anabranch cluster init"):
        await opened(metadata, objects)
    assert await make_cluster(metadata, objects) is True
    assert await make_cluster(metadata, objects) is False
    assert (await opened(metadata, objects)).data_dir == ""
    elsewhere = msgspec.structs.replace(config, log_url=f"objects://{tmp_path}/other")
    with pytest.raises(NotTogether, match="do not belong together: the log is missing"):
        await opened(metadata, elsewhere)
    others = await MemoryMetadata(lambda: 0).connect()
    await make_cluster(others, elsewhere)
    with pytest.raises(NotTogether, match="belongs to other metadata"):
        await opened(metadata, elsewhere)
    await others.close()


async def test_a_cluster_does_not_change_between_files_and_objects(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path
) -> None:
    """Its topics would be without their messages."""
    objects = msgspec.structs.replace(config, log_url=f"objects://{tmp_path}/bucket")
    await make_cluster(metadata, config)
    for refused in (make_cluster, opened):
        with pytest.raises(NotTogether, match="the log of this cluster is in a folder"):
            await refused(metadata, objects)
    others = await MemoryMetadata(lambda: 0).connect()
    await make_cluster(others, objects)
    for refused in (make_cluster, opened):
        with pytest.raises(NotTogether, match="is in an object store"):
            await refused(others, config)
    await others.close()


async def test_an_object_store_that_cannot_be_used_is_said_at_the_start(
    metadata: EmbeddedStore, config: BrokerConfig
) -> None:
    wrong = msgspec.structs.replace(config, log_url="s3://bucket/prefix?endpont=http://localhost")
    with pytest.raises(StartError, match=r"cannot use logUrl: .*unknown option endpont"):
        await make_cluster(metadata, wrong)


async def test_a_folder_with_messages_of_others_is_not_taken_for_a_cluster(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path
) -> None:
    async with sole_stores(BrokerConfig(data_dir=str(tmp_path / "log"))):
        pass
    with pytest.raises(NotTogether, match="name an empty folder"):
        await make_cluster(metadata, config)
    assert await metadata.scan("/") == []


async def test_brokers_of_a_cluster_share_its_folder_and_keep_out_a_broker_on_its_own(
    metadata: EmbeddedStore, config: BrokerConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.stores.LOCK_WAIT_S", 0.0)
    await make_cluster(metadata, config)
    found = await opened(metadata, config)
    async with member_stores(metadata, found), member_stores(metadata, found):
        with pytest.raises(StartError, match="another broker serves"):
            await lock_folder(tmp_path / "log")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://bucket/prod", "names no log"),
        ("file://", "names no log"),
        ("file:///", "names no log"),
        ("file://host/folder", "names no log"),
        ("/folder", "names no log"),
    ],
)
def test_a_url_that_names_no_log_is_refused(url: str, says: str) -> None:
    with pytest.raises(StartError, match=says):
        shared_log(url)


def test_a_folder_may_have_any_name() -> None:
    assert shared_log("file:///srv/my%20log/").settings(BrokerConfig()).data_dir == "/srv/my log"


async def test_metadata_that_cannot_be_shared_is_refused() -> None:
    for url in ("", "rocksdb:/x", "/folder"):
        with pytest.raises(StartError, match="no metadata store that brokers can share"):
            async with metadata_of(BrokerConfig(metadata_store_url=url)):
                pass


async def test_a_session_that_a_short_pause_would_end_is_refused() -> None:
    config = BrokerConfig(metadata_store_url="zk://z1", metadata_store_session_timeout_millis=200)
    with pytest.raises(StartError, match="metadataStoreSessionTimeoutMillis is 200"):
        async with metadata_of(config):
            pass


@pytest.mark.parametrize("content", ["", "user", "user:", ":password", "a:b\nc:d"])
async def test_credentials_that_cannot_be_read_are_refused_and_not_repeated(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "auth"
    file.write_text(content)
    config = BrokerConfig(metadata_store_url="zk://z1", zoo_keeper_auth_file=str(file))
    with pytest.raises(StartError, match="one line, user:password") as refusal:
        async with metadata_of(config):
            pass
    assert "password:" not in str(refusal.value)
    config = msgspec.structs.replace(config, zoo_keeper_auth_file=str(tmp_path / "absent"))
    with pytest.raises(StartError, match="cannot read"):
        async with metadata_of(config):
            pass


async def test_a_tls_file_that_cannot_be_read_is_said_at_the_start(tmp_path: Path) -> None:
    config = BrokerConfig(
        metadata_store_url="zk://z1", zoo_keeper_tls_trust_certs_file_path=str(tmp_path / "absent.pem")
    )
    with pytest.raises(StartError, match="zooKeeperTlsTrustCertsFilePath: cannot read"):
        async with metadata_of(config):
            pass


def test_only_addresses_of_this_machine_count_as_such() -> None:
    assert [cluster_stores.is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [cluster_stores.is_loopback(host) for host in ("10.0.0.1", "0.0.0.0", "broker-1")] == [False] * 3
