"""ZooKeeper's requests as bytes, and its answers taken apart. Pure.

Each request has what kazoo's connection asks for: a `type`, `serialize` and `deserialize`. They are ours because kazoo
lacks three of them (a persistent recursive watch, its removal, many reads in one packet), and because names come back
in a form of UTF-8 that it does not read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar

_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_MULTI: Final = struct.Struct("!i?i")
_EVENT: Final = struct.Struct("!ii")
_NO_BYTES: Final = -1

T_co = TypeVar("T_co", covariant=True)

EPHEMERAL: Final = 1
ANY_VERSION: Final = -1
PERSISTENT_RECURSIVE: Final = 1
ANY_WATCHER: Final = 3
ALL_PERMISSIONS: Final = 31
_ERROR: Final = -1
# Types of events that say that a node is not as it was. A recursive watch has no others.
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4


class NodeStat(NamedTuple):
    """ZooKeeper's figures of a node, in the order of the wire."""

    created_zxid: int
    modified_zxid: int
    created_ms: int
    modified_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: int  # The session that an ephemeral ends with; 0 for any other node.
    value_bytes: int
    children: int
    children_zxid: int


class StoredNode(NamedTuple):
    value: bytes
    stat: NodeStat


class AclEntry(NamedTuple):
    """Who may do what with a node."""

    scheme: str
    id: str
    permissions: int = ALL_PERMISSIONS


OPEN_TO_ALL: Final = (AclEntry("world", "anyone"),)
CREATOR_ONLY: Final = (AclEntry("auth", ""),)


class ZooKeeperRequest(Protocol[T_co]):
    """What is asked; `T_co` is what a positive answer has."""

    type: ClassVar[int]

    def serialize(self) -> bytes: ...

    def deserialize(self, data: bytes, at: int) -> T_co: ...


@dataclass(frozen=True, slots=True)
class CreateNode:
    type: ClassVar[int] = 15
    path: str
    value: bytes
    acl: Sequence[AclEntry]
    flags: int = 0

    def serialize(self) -> bytes:
        acl = b"".join(_INT.pack(one.permissions) + _text(one.scheme) + _text(one.id) for one in self.acl)
        return b"".join(
            (_text(self.path), _bytes(self.value), _INT.pack(len(self.acl)), acl, _INT.pack(self.flags))
        )

    def deserialize(self, data: bytes, at: int) -> NodeStat:
        _, at = _read_text(data, at)
        return _read_stat(data, at)


@dataclass(frozen=True, slots=True)
class DeleteNode:
    type: ClassVar[int] = 2
    path: str
    version: int

    def serialize(self) -> bytes:
        return _text(self.path) + _INT.pack(self.version)

    def deserialize(self, data: bytes, at: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class FindNode:
    type: ClassVar[int] = 3
    path: str

    def serialize(self) -> bytes:
        return _text(self.path) + b"\0"

    def deserialize(self, data: bytes, at: int) -> NodeStat:
        return _read_stat(data, at)


@dataclass(frozen=True, slots=True)
class GetNode:
    type: ClassVar[int] = 4
    path: str

    def serialize(self) -> bytes:
        return _text(self.path) + b"\0"

    def deserialize(self, data: bytes, at: int) -> StoredNode:
        return _read_node(data, at)[0]


@dataclass(frozen=True, slots=True)
class SetNode:
    type: ClassVar[int] = 5
    path: str
    value: bytes
    version: int

    def serialize(self) -> bytes:
        return _text(self.path) + _bytes(self.value) + _INT.pack(self.version)

    def deserialize(self, data: bytes, at: int) -> NodeStat:
        return _read_stat(data, at)


@dataclass(frozen=True, slots=True)
class ListChildren:
    type: ClassVar[int] = 8
    path: str

    def serialize(self) -> bytes:
        return _text(self.path) + b"\0"

    def deserialize(self, data: bytes, at: int) -> list[str]:
        return _read_names(data, at)[0]


@dataclass(frozen=True, slots=True)
class SyncWithLeader:
    """Answered once this server has all that its leader had when it was asked."""

    type: ClassVar[int] = 9
    path: str

    def serialize(self) -> bytes:
        return _text(self.path)

    def deserialize(self, data: bytes, at: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ReadMany:
    """Nodes, or children of nodes, in one packet. A part's answer is None for a node that is absent."""

    type: ClassVar[int] = 22
    parts: Sequence[GetNode | ListChildren]

    def serialize(self) -> bytes:
        out = bytearray()
        for part in self.parts:
            out += _MULTI.pack(part.type, False, _ERROR)
            out += part.serialize()
        out += _MULTI.pack(_ERROR, True, _ERROR)
        return bytes(out)

    def deserialize(self, data: bytes, at: int) -> list[StoredNode | list[str] | None]:
        """RefusedRequest with the first error that is not the absence of a node."""
        found: list[StoredNode | list[str] | None] = []
        while True:
            kind, is_done, _ = _MULTI.unpack_from(data, at)
            at += _MULTI.size
            if is_done:
                return found
            if kind == _ERROR:
                code: int = _INT.unpack_from(data, at)[0]
                at += _INT.size
                if code != NO_NODE:
                    raise RefusedRequest(code)
                found.append(None)
            elif kind == GetNode.type:
                node, at = _read_node(data, at)
                found.append(node)
            else:
                names, at = _read_names(data, at)
                found.append(names)


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Every change of the node and of all below it is told, until it is removed or the connection ends."""

    type: ClassVar[int] = 106
    path: str

    def serialize(self) -> bytes:
        return _text(self.path) + _INT.pack(PERSISTENT_RECURSIVE)

    def deserialize(self, data: bytes, at: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class RemoveWatch:
    type: ClassVar[int] = 18
    path: str

    def serialize(self) -> bytes:
        return _text(self.path) + _INT.pack(ANY_WATCHER)

    def deserialize(self, data: bytes, at: int) -> None:
        return None


class NodeEvent(NamedTuple):
    """What a watch tells."""

    kind: int
    path: str


def read_event(data: bytes, at: int) -> NodeEvent:
    kind, _ = _EVENT.unpack_from(data, at)
    return NodeEvent(kind, _read_text(data, at + _EVENT.size)[0])


# -- refusals, by ZooKeeper's numbers

NO_NODE: Final = -101
BAD_VERSION: Final = -103
EPHEMERALS_HAVE_NO_CHILDREN: Final = -108
NODE_EXISTS: Final = -110
HAS_CHILDREN: Final = -111


class RefusedRequest(Exception):
    """A server's answer to a request that it did not carry out."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ZooKeeper's error {code}")
        self.code = code


# -- parts of packets


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack_from(data, at)
    at += _INT.size
    if size == _NO_BYTES:  # A node that was made without a value, by ZooKeeper's own tools.
        return b"", at
    return bytes(data[at : at + size]), at + size


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _read_bytes(data, at)
    try:
        return found.decode(), at
    except UnicodeDecodeError:
        # Java writes a character outside the Basic Multilingual Plane as two surrogates of three bytes each.
        pairs = found.decode(errors="surrogatepass")
        return pairs.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), at


def _read_names(data: bytes, at: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(data, at)
    at += _INT.size
    names = []
    for _ in range(count):
        name, at = _read_text(data, at)
        names.append(name)
    return names, at


def _read_stat(data: bytes, at: int) -> NodeStat:
    return NodeStat._make(_STAT.unpack_from(data, at))


def _read_node(data: bytes, at: int) -> tuple[StoredNode, int]:
    value, at = _read_bytes(data, at)
    return StoredNode(value, _read_stat(data, at)), at + _STAT.size
