"""The judge of subscriptions that several clients ask for: what was promised is there, and nothing else stays."""

from __future__ import annotations

from typing import Any

from soak.checker import VIOLATIONS_OF_ONE_MAX, Violations
from soak.waiting import TOPIC, judge


def verdict(promised: set[str], found: dict[str, Any]) -> list[str]:
    violations = Violations()
    judge(promised, found, violations)
    return violations.found


def stats(*, durable: bool = True, consumers: int = 0) -> dict[str, Any]:
    return {"isDurable": durable, "consumers": [{}] * consumers}


def test_what_was_promised_and_what_nobody_was_told_of_may_be_there() -> None:
    assert verdict({"one"}, {"one": stats(), "another": stats()}) == []


def test_a_subscription_that_was_promised_and_does_not_exist_is_found() -> None:
    assert verdict({"one", "two"}, {"one": stats()}) == [
        f"{TOPIC}: subscription two was reported as made, and does not exist"
    ]


def test_a_readers_subscription_without_a_reader_is_found() -> None:
    [found] = verdict(set(), {"sticky-1": stats(durable=False)})
    assert "sticky-1" in found
    assert "nobody owns it" in found


def test_a_consumer_whose_client_has_hung_up_is_found() -> None:
    [found] = verdict({"one"}, {"one": stats(consumers=1)})
    assert "clients that are gone" in found


def test_violations_of_one_do_not_hide_those_of_another() -> None:
    violations = Violations()
    for number in range(1000):
        violations.add(f"a: message {number} never came")
    violations.add("b: message 0 never came")
    assert len(violations.found) == VIOLATIONS_OF_ONE_MAX + 1
    assert violations.count == 1001
