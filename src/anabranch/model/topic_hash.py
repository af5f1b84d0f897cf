"""A short hash of a set of topic names, as Pulsar computes it. Pure.

Clients send the hash of the set that they hold, and a broker that has the same set sends nothing.
`CommandGetTopicsOfNamespace` and `CommandWatchScalableTopics` share it.
"""

from __future__ import annotations

from collections.abc import Iterable

from crc32c import crc32c


def topic_hash(names: Iterable[str]) -> str:
    """CRC32C of the sorted names, in UTF-8 and joined by commas: 8 hex digits, the lowest byte first."""
    # Java sorts by UTF-16 units, which is not the order of code points beyond the first 65,536.
    ordered = sorted(names, key=_units)
    return crc32c(",".join(ordered).encode()).to_bytes(4, "little").hex()


def _units(name: str) -> bytes:
    return name.encode("utf-16-be")
