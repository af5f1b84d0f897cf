"""When a broker leaves everything as it is."""

from __future__ import annotations

import pytest

from anabranch.balance.core.health import StoreHealth

STABLE_S = 150.0
WELL = StoreHealth().connected(10.0)


def test_a_first_start_waits_for_the_store_and_for_nothing_else() -> None:
    assert StoreHealth().why_safe_mode(5.0, STABLE_S) == "the metadata store has not answered yet"
    assert WELL.why_safe_mode(10.0, STABLE_S) is None


def test_a_store_that_was_in_doubt_must_be_well_for_a_while() -> None:
    doubtful = WELL.in_doubt("the session is in doubt")
    assert doubtful.why_safe_mode(10.0**6, STABLE_S) == "the session is in doubt"
    back = doubtful.connected(1000.0)
    assert back.connected(1100.0) == back
    assert back.why_safe_mode(1149.9, STABLE_S) is not None
    assert back.why_safe_mode(1150.0, STABLE_S) is None


@pytest.mark.parametrize(
    ("before", "after", "is_trouble"),
    [
        ("abc", "a", True),
        ("abc", "ax", True),
        ("abc", "ab", False),
        ("abcd", "ab", False),
        ("abcd", "a", True),
        ("ab", "a", False),
        ("a", "", False),
        ("abc", "abcdef", False),
    ],
)
def test_most_brokers_that_vanish_at_once_are_the_stores_trouble(
    before: str, after: str, is_trouble: bool
) -> None:
    seen = WELL.brokers_seen(list(before), list(after), 50.0)
    assert (seen.why_safe_mode(50.0, STABLE_S) is not None) is is_trouble
    assert seen.why_safe_mode(50.0 + STABLE_S, STABLE_S) is None
