"""What ZooKeeper's refusals mean to users of the port. Pure."""

from __future__ import annotations

from typing import Final

from anabranch.metadata.errors import (
    AlreadyExists,
    EphemeralParent,
    InvalidPath,
    MetadataError,
    NotEmpty,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from anabranch.metadata.paths import parent
from anabranch.metadata.zookeeper.requests import (
    EPHEMERALS_HAVE_NO_CHILDREN,
    HAS_CHILDREN,
    NODE_EXISTS,
)

_BAD_ARGUMENTS: Final = -8
_UNIMPLEMENTED: Final = -6
_MEANINGS: Final = {
    -4: "the connection to ZooKeeper broke",
    -7: "ZooKeeper did not answer in time",
    -112: "the ZooKeeper session has ended",
    -118: "the ZooKeeper session went on at another server",
    -122: "ZooKeeper did not answer in time",
    -127: "ZooKeeper has too much to do",
}
_FORBIDDEN: Final = {
    -102: "ZooKeeper does not let this broker use {path}: check zooKeeperAuthFile, and the ACL of the node",
    -114: "ZooKeeper refuses the ACL of {path}: without credentials there is no creator to give the node to",
    -115: "ZooKeeper refuses the credentials of zooKeeperAuthFile",
    -124: "ZooKeeper asks for credentials that this release does not have (SASL)",
}
_QUOTA: Final = -125


def meaning(code: int, path: str) -> MetadataError:
    """The error of the port for a refusal of an operation on the node at that path, where no caller knows better."""
    match code:
        case _ if code == NODE_EXISTS:
            return AlreadyExists(path)
        case _ if code == HAS_CHILDREN:
            return NotEmpty(path)
        case _ if code == EPHEMERALS_HAVE_NO_CHILDREN:
            return EphemeralParent(parent(path))
        case _ if code == _BAD_ARGUMENTS:
            return InvalidPath(f"ZooKeeper refuses {path!r}")
        case _ if code == _QUOTA:
            return StoreFull(f"ZooKeeper's quota of {path} is used up")
        case _ if code == _UNIMPLEMENTED:
            return StoreForbidden("ZooKeeper does not know what it was asked: 3.6 or later is needed")
        case _ if code in _FORBIDDEN:
            return StoreForbidden(_FORBIDDEN[code].format(path=path))
        case _:
            return StoreUnavailable(_MEANINGS.get(code, f"ZooKeeper refused with error {code}"))
