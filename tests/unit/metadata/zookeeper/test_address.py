"""What `zk://…` names."""

import pytest

from anabranch.metadata.errors import BadStoreUrl
from anabranch.metadata.zookeeper.address import ZooKeeperAddress, above_chroot, zookeeper_address


@pytest.mark.parametrize(
    ("url", "servers", "chroot"),
    [
        ("zk://z1", (("z1", 2181),), ""),
        ("zk://z1,z2:2182,z3/prod", (("z1", 2181), ("z2", 2182), ("z3", 2181)), "/prod"),
        ("zk:z1:2181,z2/prod/eu", (("z1", 2181), ("z2", 2181)), "/prod/eu"),
        ("zk://[::1]:2182/", (("::1", 2182),), ""),
        ("zk://z1/prod/", (("z1", 2181),), "/prod"),
    ],
)
def test_a_url_names_servers_and_a_chroot(
    url: str, servers: tuple[tuple[str, int], ...], chroot: str
) -> None:
    assert zookeeper_address(url) == ZooKeeperAddress(servers, chroot)


def test_an_address_is_written_as_the_url_it_is_read_from() -> None:
    address = zookeeper_address("zk://z1,[::1]:2182/prod")
    assert str(address) == "zk://z1:2181,[::1]:2182/prod"
    assert zookeeper_address(str(address)) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd://z1", "does not start with zk://"),
        ("zk://", "'' is no host"),
        ("zk://z1,,z2", "'' is no host"),
        ("zk://z1:port", "is no host"),
        ("zk://z1:70000", "70000 is no port"),
        ("zk://z1:0", "0 is no port"),
        ("zk://z1//prod", "empty segment"),
        ("zk://z1/a/../b", "relative segment"),
        ("zk://z1/zookeeper", "reserved"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_the_reason(url: str, says: str) -> None:
    with pytest.raises(BadStoreUrl, match=says):
        zookeeper_address(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadStoreUrl) as refusal:
        zookeeper_address("zk://me:secret@z1/prod")
    assert "zooKeeperAuthFile" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_the_nodes_above_a_chroot_come_from_the_top() -> None:
    assert above_chroot("/a/b/c") == ["/a", "/a/b", "/a/b/c"]
    assert above_chroot("") == []
