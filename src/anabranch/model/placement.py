"""Which broker each bundle of a namespace belongs to, by a hash over the brokers. Pure.

Every broker computes the same from the same brokers, without asking anybody. Each pair of bundle and broker has a score
(rendezvous hashing), and pairs are taken from the highest score down. A broker that has its share of the namespace's
bundles gets no more: with four bundles, as namespaces of a single broker have them, a hash alone would leave one of
three brokers without any in most cases. Some more bundles than necessary move when a broker comes or goes; that is the
price.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Final

from anabranch.model.bundles import BundleName

_MASK: Final = 2**64 - 1


def placement_key(text: str) -> int:
    """What the scores of a bundle or a broker are made from."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """The finalizer of splitmix64: each bit of the value changes half of the result's. A CRC would not do: it is
    linear, so that the order of two brokers would depend on a single bit."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def placed(bundles: Sequence[BundleName], brokers: Collection[str]) -> dict[BundleName, str]:
    """The broker of each of a namespace's bundles; none have one if there are no brokers.

    Each broker gets as many as every other, or one more.
    """
    if not brokers:
        return {}
    names = sorted(brokers)
    if len(names) == 1:
        return dict.fromkeys(bundles, names[0])
    keys = [placement_key(name) for name in names]
    pairs = [
        (-_mixed(place ^ key), bundle, broker)
        for bundle, place in enumerate(placement_key(str(one)) for one in bundles)
        for broker, key in enumerate(keys)
    ]
    pairs.sort()
    least, more = divmod(len(bundles), len(names))
    held = [0] * len(names)
    found: dict[BundleName, str] = {}
    for _, bundle, broker in pairs:
        if bundles[bundle] in found or held[broker] > least or (held[broker] == least and not more):
            continue
        if held[broker] == least:
            more -= 1
        held[broker] += 1
        found[bundles[bundle]] = names[broker]
    return found
