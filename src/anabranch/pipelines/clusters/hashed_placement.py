"""The placement of bundles without a balancer, for clusters of any size. Pure.

`model.placement.placed` is what brokers compute, namespace by namespace. It scores each pair of bundle and broker one
by one, which takes minutes for a thousand brokers with a hundred thousand bundles; the same scores come from arrays
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import numpy as np

from anabranch.balance.core.load import namespace_of
from anabranch.model.bundles import BundleName
from anabranch.model.placement import placed, placement_key
from anabranch.pipelines.clusters.cluster_trace import Ints

# So many pairs for each bundle are sorted first: the highest scores nearly always place all bundles.
_PAIRS_EACH: Final = 12
# Below, arrays are not worth it.
_PAIRS_MIN: Final = 2_000


def hashed_owners(bundles: Sequence[str], brokers: Sequence[str]) -> Ints:
    """The number of each bundle's broker. The bundles of a namespace must follow each other."""
    found: list[int] = []
    names = sorted(brokers)
    numbers = {name: number for number, name in enumerate(brokers)}
    keys = np.array([placement_key(name) for name in names], dtype=np.uint64)
    for _, group in groupby(bundles, namespace_of):
        found += [numbers[name] for name in _placed(list(group), names, keys)]
    return np.array(found, dtype=np.int64)


def _placed(bundles: list[str], names: list[str], keys: np.typing.NDArray[np.uint64]) -> list[str]:
    if len(bundles) * len(names) >= _PAIRS_MIN and len(bundles) <= len(names):
        found = _one_each(bundles, keys)
        if found is not None:
            return [names[broker] for broker in found]
    parsed = [BundleName.parse(one) for one in bundles]
    owners = placed(parsed, names)
    return [owners[one] for one in parsed]


def _one_each(bundles: list[str], keys: np.typing.NDArray[np.uint64]) -> list[int] | None:
    """Places no more bundles than there are brokers; None if the highest scores are not enough for all of them."""
    own = np.array([placement_key(one) for one in bundles], dtype=np.uint64)
    scores = _mixed(own[:, None] ^ keys[None, :]).ravel()
    count = min(len(scores), _PAIRS_EACH * len(bundles))
    highest = np.argpartition(scores, len(scores) - count)[len(scores) - count :]
    # As `placed` sorts: the highest score first, then the bundle, then the broker.
    highest = highest[np.lexsort((highest, ~scores[highest]))]
    owners = [-1] * len(bundles)
    taken: set[int] = set()
    left = len(bundles)
    for pair in highest.tolist():
        bundle, broker = divmod(pair, len(keys))
        if owners[bundle] < 0 and broker not in taken:
            owners[bundle] = broker
            taken.add(broker)
            left -= 1
            if not left:
                return owners
    return None


def _mixed(values: np.typing.NDArray[np.uint64]) -> np.typing.NDArray[np.uint64]:
    """The finalizer of splitmix64, as in `model.placement`: products of this type wrap around."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)
