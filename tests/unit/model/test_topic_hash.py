"""The hash of a set of topics, against hashes that Pulsar's own client computed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.topic_hash import topic_hash

A, B = "topic://public/default/a", "topic://public/default/b"
# By `TopicList.calculateHash` of pulsar-common 5.0.0-M1: see tests/vectors/NamespaceWatch.java.
GOLDEN = [
    ("00000000", []),
    ("9c20e29b", [A]),
    ("ad97d07d", [B, A]),
    ("d33b7154", [f"{A},topic", B]),
    ("260a6d14", [f"{A}/b/c", A]),
    (
        "2c47bd77",
        ["topic://public/default/zähler", "topic://public/default/zahl", "topic://public/default/日本語"],
    ),
    # By code points the face comes last; in Java it is two surrogates, which come before the tilde.
    (
        "357a0396",
        ["topic://public/default/\uff5e", "topic://public/default/\U0001f600", "topic://public/default/e"],
    ),
    (
        "79835d6b",
        ["persistent://public/default/orders-partition-0", "persistent://public/default/orders-partition-1"],
    ),
    ("ef7abb8c", [f"topic://public/default/t{n}" for n in range(1000)]),
]


@pytest.mark.parametrize(("expected", "names"), GOLDEN, ids=[expected for expected, _ in GOLDEN])
def test_the_hash_is_the_one_that_pulsars_client_computes(expected: str, names: list[str]) -> None:
    assert topic_hash(names) == expected


@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True), st.randoms())
def test_the_order_of_the_names_does_not_matter(names: list[str], chance: object) -> None:
    shuffled = sorted(names, key=lambda _: chance.random())  # type: ignore[attr-defined]  # A random.Random.
    assert topic_hash(shuffled) == topic_hash(names)
    assert len(topic_hash(names)) == 8
