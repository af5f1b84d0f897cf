"""Which defaults depend on the number of brokers."""

from __future__ import annotations

from itertools import pairwise

from anabranch.broker.config.config import loaded
from anabranch.broker.config.shared_defaults import BUNDLES, for_brokers, shared_bundles
from anabranch.broker.config.units import BROKERS_MAX
from anabranch.model.bundles import bundle_ranges
from anabranch.model.names import NamespaceName
from anabranch.model.placement import placed


def test_a_namespace_of_several_brokers_has_at_least_four_bundles_for_each() -> None:
    counts = [shared_bundles(brokers) for brokers in range(2, BROKERS_MAX + 1)]
    assert counts[0] == 64
    assert counts[-1] == 256
    assert all(a <= b for a, b in pairwise(counts))
    assert all(count & (count - 1) == 0 and count >= 4 * brokers for brokers, count in enumerate(counts, 2))


def test_one_broker_has_the_default_of_pulsar_and_several_have_more() -> None:
    found = loaded()
    assert for_brokers(found, 1) is found
    assert found.config.default_number_of_namespace_bundles == 4
    several = for_brokers(found, 3)
    assert several.config.default_number_of_namespace_bundles == 64
    assert str(several.origin(BUNDLES)) == "the default for 3 brokers"
    assert found.config.default_number_of_namespace_bundles == 4


def test_a_number_that_was_set_wins_even_if_it_is_the_default_of_one_broker() -> None:
    for number in (4, 1, 100):
        found = loaded(environ={"ANABRANCH_DEFAULT_NUMBER_OF_NAMESPACE_BUNDLES": str(number)})
        assert for_brokers(found, 16).config.default_number_of_namespace_bundles == number


def test_sixteen_brokers_share_a_new_namespace() -> None:
    edges = [f"0x{min(number << 26, 0xFFFFFFFF):08x}" for number in range(65)]
    bundles = bundle_ranges(edges).bundles(NamespaceName("public", "default"))
    owners = placed(bundles, [f"host:{port}" for port in range(16)])
    assert sorted(list(owners.values()).count(broker) for broker in set(owners.values())) == [4] * 16
