"""Which strings name a node, and how paths are taken apart. Pure.

The rules are ZooKeeper's, so that a path accepted by an embedded store is accepted there too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from anabranch.metadata.errors import InvalidPath

PATH_BYTES_MAX = 4096
ROOT = "/"

# Control characters, surrogates, the private use area and the non-characters at the end of the first plane.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def check_path(path: str) -> str:
    """The path itself, once it is known to name a node other than the root."""
    if len(path) > PATH_BYTES_MAX:  # First: the rest takes time for each segment, and names the path.
        raise InvalidPath(f"path of {len(path)} characters, limit {PATH_BYTES_MAX} bytes")
    if not path.startswith("/"):
        raise InvalidPath(f"{path!r} does not start with '/'")
    if path == ROOT:
        raise InvalidPath("the root is not a record; name a path below it")
    segments = path.split("/")[1:]
    if "" in segments:
        raise InvalidPath(f"{path!r} has an empty segment")
    if "." in segments or ".." in segments:
        raise InvalidPath(f"{path!r} has a relative segment")
    if _FORBIDDEN.search(path):
        raise InvalidPath(f"{path!r} has a character that no store keeps")
    if path.startswith("/zookeeper/") or path == "/zookeeper":
        raise InvalidPath("/zookeeper is reserved")
    if len(path.encode()) > PATH_BYTES_MAX:
        raise InvalidPath(f"path of {len(path.encode())} bytes, limit {PATH_BYTES_MAX}")
    return path


def check_prefix(path: str) -> str:
    """As `check_path`, and the root will do."""
    return path if path == ROOT else check_path(path)


def parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name(path: str) -> str:
    return path.rpartition("/")[2]


def below(prefix: str) -> str:
    """What every path strictly below `prefix` starts with."""
    return prefix if prefix == ROOT else prefix + "/"


def upwards(path: str) -> Iterator[str]:
    """The path, its parent, and so on up to the root."""
    while path != ROOT:
        yield path
        path = parent(path)
    yield ROOT
