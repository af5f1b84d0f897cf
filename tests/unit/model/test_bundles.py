"""Bundles: every topic lies in exactly one, and it is the one that Pulsar names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.bundles import HASH_SPACE_END, BundleName, bundle_hash, bundle_ranges
from anabranch.model.names import InvalidName, NamespaceName, TopicName

SALES = NamespaceName("acme", "sales")


@st.composite
def boundaries(draw: st.DrawFn) -> tuple[str, ...]:
    inner = draw(st.sets(st.integers(1, HASH_SPACE_END - 1), max_size=40))
    return tuple(f"0x{edge:08x}" for edge in (0, *sorted(inner), HASH_SPACE_END))


@given(boundaries(), st.text("abcdefgh-0123", min_size=1, max_size=12))
def test_a_topic_lies_in_exactly_one_bundle(edges: tuple[str, ...], local: str) -> None:
    topic, ranges = SALES.topic(local), bundle_ranges(edges)
    assert [bundle for bundle in ranges.bundles(SALES) if bundle.holds(topic)] == [ranges.of(topic)]


@given(boundaries())
def test_every_hash_belongs_to_the_range_that_begins_at_or_before_it(edges: tuple[str, ...]) -> None:
    ranges = bundle_ranges(edges)
    assert ranges.at(HASH_SPACE_END) == ranges.names[-1]
    for first, name in zip(ranges.edges, ranges.names, strict=False):
        assert ranges.at(first) == name
        assert ranges.at(first - 1) != name or first == 0


def test_a_topics_hash_is_the_crc32_of_its_full_name() -> None:
    assert bundle_hash(TopicName.parse("persistent://public/default/t")) == 0x823CD929
    assert bundle_hash(TopicName.parse("persistent://public/default/t-partition-0")) != 0x823CD929


def test_bundles_are_named_by_their_namespace_and_range() -> None:
    ranges = bundle_ranges(("0x00000000", "0x80000000", "0xffffffff"))
    second = BundleName(SALES, "0x80000000_0xffffffff")
    assert ranges.bundle(SALES, "0x80000000_0xFFFFFFFF") == second
    assert BundleName.parse(str(second)) == second
    assert second.edges == (0x80000000, HASH_SPACE_END)
    for wrong in ("0x00000000_0xffffffff", "0x80000000", "all", "0x90000000_0xffffffff"):
        assert ranges.bundle(SALES, wrong) is None
    for wrong in ("acme/sales", "acme/sales/0x0_0x1", "0x00000000_0xffffffff"):
        with pytest.raises(InvalidName):
            BundleName.parse(wrong)


def test_topics_of_other_namespaces_are_in_no_bundle_of_this_one() -> None:
    whole = bundle_ranges().bundles(SALES)[0]
    assert whole.holds(SALES.topic("t"))
    assert not whole.holds(NamespaceName("acme", "other").topic("t"))
