"""Bundles are spread evenly, by every broker in the same way, and most stay when a broker comes or goes."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.bundles import BundleName, bundle_ranges
from anabranch.model.names import NamespaceName
from anabranch.model.placement import placed

counts = st.integers(1, 24)


def bundles(count: int, space: str = "default") -> list[BundleName]:
    size = 2**32 // count
    edges = [*(f"0x{size * i:08x}" for i in range(count)), "0xffffffff"]
    return bundle_ranges(edges).bundles(NamespaceName("public", space))


def brokers(count: int) -> list[str]:
    return [f"10.0.0.{i}:6650" for i in range(count)]


@given(counts, counts)
def test_each_bundle_has_one_broker_and_each_broker_its_share(of_bundles: int, of_brokers: int) -> None:
    found = placed(bundles(of_bundles), brokers(of_brokers))
    assert set(found) == set(bundles(of_bundles))
    held = Counter(found.values())
    shares = [held[name] for name in brokers(of_brokers)]
    assert max(shares) - min(shares) <= 1


@given(counts, counts, st.randoms(use_true_random=False))
def test_the_order_in_which_brokers_are_seen_changes_nothing(
    of_bundles: int, of_brokers: int, chance: random.Random
) -> None:
    seen = brokers(of_brokers)
    before = placed(bundles(of_bundles), seen)
    chance.shuffle(seen)
    assert placed(bundles(of_bundles), seen) == before


def test_without_brokers_no_bundle_has_one() -> None:
    assert placed(bundles(4), []) == {}


def test_namespaces_share_the_brokers_evenly() -> None:
    held: Counter[str] = Counter()
    for number in range(300):
        held.update(placed(bundles(4, f"space-{number}"), brokers(3)).values())
    assert all(350 < held[name] < 450 for name in brokers(3)), held


def test_most_bundles_stay_when_a_broker_goes() -> None:
    moved = total = 0
    for number in range(100):
        shares = bundles(16, f"space-{number}")
        before, after = placed(shares, brokers(4)), placed(shares, brokers(3))
        gone = brokers(4)[3]
        moved += sum(before[one] != gone and before[one] != after[one] for one in shares)
        total += sum(before[one] != gone for one in shares)
    assert moved < total / 4, (moved, total)
