"""Names: what parses, what is refused, and that every accepted name survives its encodings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.paths import check_path
from anabranch.model.names import (
    LOCAL_BYTES_MAX,
    PARTITION_INDEX_MAX,
    Domain,
    InvalidName,
    NamespaceName,
    TopicName,
    decode_local,
    encode_local,
)

legal = "abcXYZ0189-=:._"
entities = st.text(legal, min_size=1, max_size=20).filter(lambda s: s not in (".", ".."))
locals_ = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="/"), min_size=1, max_size=40
).filter(lambda s: s.strip() and s[-1] > " " and s[0] > " ")


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("acme/sales/orders", "persistent://acme/sales/orders"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("topic://a/b/c/d", "topic://a/b/c/d"),
        ("segment://a/b/t/0-7FFF-01", "segment://a/b/t/0000-7fff-1"),
        ("persistent://a/b/x%2Fy", "persistent://a/b/x%2Fy"),
        ("persistent://a/b/mit ümlaut?#", "persistent://a/b/mit ümlaut?#"),
    ],
)
def test_short_and_full_forms_name_the_same_topic(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full
    assert TopicName.parse(full) == TopicName.parse(text)
    assert hash(TopicName.parse(full)) == hash(TopicName.parse(text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "blank"),
        ("persistent://a/b/ ", "blank"),
        ("persistent://a/b", "form"),
        ("a/b", "neither"),
        ("a/b/c/d", "neither"),
        ("kafka://a/b/c", "unknown domain"),
        ("persistent://prop/cluster/ns/t", "cluster"),
        ("persistent://a b/ns/t", "invalid tenant"),
        ("persistent:///ns/t", "invalid tenant"),
        ("persistent://../ns/t", "invalid tenant"),
        ("persistent://t/./t", "invalid namespace"),
        ("persistent://täna/ns/t", "invalid tenant"),
        ("persistent://a\n/ns/t", "invalid tenant"),
        ("t ", "white space"),
        (" t", "white space"),
        ("\ud800", "Unicode"),
        ("segment://a/b/t", "does not end in"),
        ("segment://a/b/t/0-10000-1", "does not end in"),
        ("segment://a/b/t/8000-7fff-1", "ends before it starts"),
        ("x" * (LOCAL_BYTES_MAX + 1), "limit"),
        ("persistent://" + "x" * 201 + "/ns/t", "limit"),
    ],
)
def test_a_refused_name_says_which_rule_it_breaks(text: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason):
        TopicName.parse(text)


@pytest.mark.parametrize("text", ["a", "a/b/c", "a/", "/a", "", "a/b c"])
def test_a_namespace_is_a_tenant_and_a_name(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


@given(entities, entities, locals_, st.sampled_from([Domain.PERSISTENT, Domain.NON_PERSISTENT, Domain.TOPIC]))
def test_every_legal_name_survives_text_and_storage_path(
    tenant: str, ns: str, local: str, domain: Domain
) -> None:
    name = NamespaceName(tenant, ns).topic(local, domain)
    assert TopicName.parse(str(name)) == name
    assert TopicName.from_storage_path(name.storage_path) == name
    assert check_path(f"/managed-ledgers/{name.storage_path}").count("/") == 5


@given(locals_, st.integers(0, PARTITION_INDEX_MAX))
def test_a_partition_knows_its_topic_and_its_siblings(local: str, index: int) -> None:
    topic = NamespaceName("a", "b").topic(local).base
    partition = topic.partition(index)
    assert partition.partition_index == index
    assert partition.base == topic
    assert partition.partition(0) == topic.partition(0)
    assert partition.schema_path == topic.schema_path


@pytest.mark.parametrize(
    "local",
    [
        "t-partition-01",
        "t-partition--1",
        "t-partition-",
        "t-partition-x",
        "-partition-1",
        "t-partition-2147483648",
    ],
)
def test_only_canonical_numbers_make_a_partition(local: str) -> None:
    assert not TopicName.parse(local).is_partition


def test_a_partition_of_a_name_with_the_suffix_inside_splits_at_the_last_one() -> None:
    name = TopicName.parse("a-partition-0-partition-3")
    assert name.partition_index == 3
    assert name.base.local == "a-partition-0"


@pytest.mark.parametrize("local", [".", "..", "*", "~", "a b", "a+b", "a%2Fb", "ü", "a/b"])
def test_local_names_are_encoded_as_javas_url_encoder_does(local: str) -> None:
    expected = {
        "~": "%7E",
        "a b": "a+b",
        "a+b": "a%2Bb",
        "*": "*",
        "a/b": "a%2Fb",
        "a%2Fb": "a%252Fb",
        ".": "%2E",
    }
    assert encode_local(local) == expected.get(local, encode_local(local))
    assert decode_local(encode_local(local)) == local


def test_a_segment_keeps_its_parent_and_range_in_its_storage_path() -> None:
    name = TopicName.parse("segment://a/b/orders/eu/0000-7fff-12")
    assert (name.local, name.segment) == ("orders/eu", "0000-7fff-12")
    assert TopicName.from_storage_path(name.storage_path) == name


def test_storage_paths_that_name_no_topic_are_refused() -> None:
    for path in ("a/b/persistent", "a/b/kafka/t", "a/b/c/d/e/f", "a/b/segment/t", "a/b/persistent/t/0-1-2"):
        with pytest.raises(InvalidName):
            TopicName.from_storage_path(path)
