"""Bundles: the shares of a namespace's topics that brokers own. Pure.

A namespace's policies cut the 32-bit hash space at ascending boundaries. The topics whose names hash between two
neighbours are a bundle, and a bundle has one owner. A topic's hash is Pulsar's, the CRC32 of its full name, so that
both name the same bundle for a topic. Each partition and each segment has a name of its own, and so its own bundle.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

from anabranch.model.names import InvalidName, NamespaceName, TopicName

HASH_SPACE_END: Final = 0xFFFFFFFF
WHOLE: Final = ("0x00000000", "0xffffffff")

_RANGE: Final = re.compile(r"0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}")


def bundle_hash(topic: TopicName) -> int:
    """Where the topic lies in the hash space of its namespace."""
    return zlib.crc32(topic.text.encode())


@dataclass(frozen=True, slots=True, order=True)
class BundleName:
    """`tenant/namespace/0x00000000_0x40000000`: the hashes from the first boundary up to, without, the second."""

    namespace: NamespaceName
    range: str

    @classmethod
    def parse(cls, text: str) -> BundleName:
        space, _, hashes = text.rpartition("/")
        if not is_range(hashes):
            raise InvalidName(f"{text!r} does not end in a range of hashes such as 0x00000000_0xffffffff")
        return cls(NamespaceName.parse(space), hashes)

    @property
    def edges(self) -> tuple[int, int]:
        first, _, last = self.range.partition("_")
        return int(first, 16), int(last, 16)

    def holds(self, topic: TopicName) -> bool:
        """Whether the topic lies in this bundle."""
        if topic.namespace != self.namespace:
            return False
        first, last = self.edges
        place = bundle_hash(topic)
        return first <= place < last or place == last == HASH_SPACE_END

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"


@dataclass(frozen=True, slots=True)
class BundleRanges:
    """The bundles of a namespace, by the boundaries in its policies. Make them with `bundle_ranges`."""

    edges: tuple[int, ...]
    names: tuple[str, ...]  # `0x…_0x…`, ascending.

    def at(self, place: int) -> str:
        """The range that holds this hash. The last one holds the end of the hash space too."""
        return self.names[min(bisect_right(self.edges, place), len(self.names)) - 1]

    def of(self, topic: TopicName) -> BundleName:
        """The topic's bundle; the topic must be of the namespace with these ranges."""
        return BundleName(topic.namespace, self.at(bundle_hash(topic)))

    def bundle(self, namespace: NamespaceName, text: str) -> BundleName | None:
        """The bundle with this range, written in whatever case; None if it is not one of these."""
        if not is_range(text):
            return None
        first, _, last = text.partition("_")
        edges = (int(first, 16), int(last, 16))
        at = bisect_right(self.edges, edges[0]) - 1
        return BundleName(namespace, self.names[at]) if self.edges[at : at + 2] == edges else None

    def bundles(self, namespace: NamespaceName) -> list[BundleName]:
        return [BundleName(namespace, name) for name in self.names]


def is_range(text: str) -> bool:
    """Whether the text has the form of a bundle's range."""
    return _RANGE.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _ranges(boundaries: tuple[str, ...]) -> BundleRanges:
    edges = tuple(int(text, 16) for text in boundaries)
    return BundleRanges(edges, tuple(f"0x{first:08x}_0x{last:08x}" for first, last in pairwise(edges)))


def bundle_ranges(boundaries: Sequence[str] = WHOLE) -> BundleRanges:
    """The bundles between these boundaries, which ascend from 0x00000000 to 0xffffffff."""
    return _ranges(tuple(boundaries))
