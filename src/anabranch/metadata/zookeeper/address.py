"""What `zk://…` names: the servers of an ensemble, and the node below which everything of ours stands. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from anabranch.metadata.errors import BadStoreUrl, InvalidPath
from anabranch.metadata.paths import ROOT, check_path

SCHEME: Final = "zk"
DEFAULT_PORT: Final = 2181
_SHAPE: Final = "zk://host1:2181,host2:2181,host3:2181/folder"
_HOST: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\[\]:@\s/]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class ZooKeeperAddress:
    """The servers in the order of the URL. `chroot` is empty for the root, else it starts with `/`."""

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""

    @property
    def hosts(self) -> str:
        """The servers as ZooKeeper's own tools write them."""
        return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.servers)

    def __str__(self) -> str:
        return f"{SCHEME}://{self.hosts}{self.chroot}"


def zookeeper_address(url: str) -> ZooKeeperAddress:
    """`zk://h1,h2:2182/folder`, or Pulsar's `zk:h1,h2/folder`. BadStoreUrl says what is wrong."""
    rest = url.removeprefix(f"{SCHEME}:")
    if rest == url:
        raise BadStoreUrl(f"{url!r} does not start with {SCHEME}://; the form is {_SHAPE}")
    rest = rest.removeprefix("//")
    hosts, slash, path = rest.partition("/")
    if "@" in hosts:
        # A command line is no place for a password; and it would be in every log line that names the store.
        raise BadStoreUrl(
            f"a URL of ZooKeeper has no user or password: name a file with zooKeeperAuthFile; the form is {_SHAPE}"
        )
    servers = tuple(_server(text.strip(), url) for text in hosts.split(","))
    chroot = "/" + path.rstrip("/") if slash and path.rstrip("/") else ""
    if chroot:
        try:
            check_path(chroot)
        except InvalidPath as error:
            raise BadStoreUrl(f"{url!r}: {error}") from None
    return ZooKeeperAddress(servers, chroot)


def _server(text: str, url: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise BadStoreUrl(f"{url!r}: {text!r} is no host, or host:port; the form is {_SHAPE}")
    port = int(found["port"] or DEFAULT_PORT)
    if not 0 < port < 65_536:
        raise BadStoreUrl(f"{url!r}: {port} is no port")
    return found["host"].strip("[]"), port


def above_chroot(chroot: str) -> list[str]:
    """The nodes that must be there for the chroot, the highest first."""
    parts = chroot.split("/")[1:] if chroot and chroot != ROOT else []
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
