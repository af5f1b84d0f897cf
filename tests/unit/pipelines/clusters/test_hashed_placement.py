"""The placement by hash that arrays compute is the one that brokers compute."""

from __future__ import annotations

import pytest

from anabranch.model.bundles import BundleName
from anabranch.model.placement import placed
from anabranch.pipelines.clusters.hashed_placement import hashed_owners


def names(namespace: str, count: int) -> list[str]:
    edges = [at * 2**32 // count for at in range(count)] + [2**32 - 1]
    return [f"a/{namespace}/0x{edges[at]:08x}_0x{edges[at + 1]:08x}" for at in range(count)]


@pytest.mark.parametrize(
    ("bundles", "brokers"), [(4, 3), (16, 4), (64, 60), (64, 64), (64, 65), (64, 500), (128, 300)]
)
def test_arrays_place_bundles_as_brokers_do(bundles: int, brokers: int) -> None:
    living = [f"broker-{number}:6650" for number in range(brokers)]
    for namespace in ("one", "two"):
        own = names(namespace, bundles)
        wanted = placed([BundleName.parse(one) for one in own], living)
        found = hashed_owners(own, living)
        assert [living[one] for one in found] == [wanted[BundleName.parse(one)] for one in own]


def test_each_namespace_is_placed_by_itself() -> None:
    living = [f"broker-{number}:6650" for number in range(40)]
    one, two = names("one", 64), names("two", 64)
    assert hashed_owners(one + two, living).tolist() == [
        *hashed_owners(one, living).tolist(),
        *hashed_owners(two, living).tolist(),
    ]
