"""The latest decisions of a balancer, with their reasons."""

from __future__ import annotations

import logging

import pytest

from anabranch.broker.balance.balance_log import BalanceAct, BalanceLog

SHED = BalanceAct.SHED


class Clock:
    ms = 0

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


def test_a_decision_is_kept_with_its_reason_and_its_brokers() -> None:
    decisions = BalanceLog(Clock())
    decisions.done(BalanceAct.TRANSFER, "t/n/0x1", "Overloaded", "a is full", source="a:1", destination="b:1")
    [found] = decisions.recent()
    assert found.to_json() == {
        "act": "transfer",
        "subject": "t/n/0x1",
        "isDone": True,
        "label": "Overloaded",
        "because": "a is full",
        "atMs": 1,
        "untilMs": 1,
        "times": 1,
        "source": "a:1",
        "destination": "b:1",
    }


def test_the_same_no_again_lengthens_the_entry_and_keeps_the_latest_figures() -> None:
    decisions = BalanceLog(Clock())
    for load in ("10 %", "20 %"):
        decisions.left(SHED, "", "Balanced", f"the mean is {load}")
    decisions.left(SHED, "", "HitCount", "once")
    assert [(one.label, one.because, one.at_ms, one.until_ms, one.times) for one in decisions.recent()] == [
        ("HitCount", "once", 3, 3, 1),
        ("Balanced", "the mean is 20 %", 1, 2, 2),
    ]


def test_a_no_after_a_yes_is_a_new_entry() -> None:
    decisions = BalanceLog(Clock())
    decisions.left(SHED, "x", "Heavy", "too heavy")
    decisions.done(SHED, "x", "Overloaded", "moved")
    decisions.left(SHED, "x", "Heavy", "too heavy")
    assert [one.is_done for one in decisions.recent("x")] == [False, True, False]


def test_decisions_about_a_bundle_or_a_broker_are_found_by_its_name() -> None:
    decisions = BalanceLog(Clock())
    decisions.done(BalanceAct.TRANSFER, "x", "Admin", "asked", source="a:1", destination="b:1")
    decisions.done(BalanceAct.UNLOAD, "y", "Admin", "asked", source="b:1")
    assert [one.subject for one in decisions.recent("b:1")] == ["y", "x"]
    assert [one.subject for one in decisions.recent("x")] == ["x"]
    assert [one.subject for one in decisions.recent(most=1)] == ["y"]


def test_the_oldest_decisions_are_dropped() -> None:
    decisions = BalanceLog(Clock(), kept_max=3)
    for number in range(5):
        decisions.left(SHED, f"bundle {number}", "Heavy", "too heavy")
    assert [one.subject for one in decisions.recent()] == ["bundle 4", "bundle 3", "bundle 2"]
    # What was dropped is told anew, not lengthened.
    decisions.left(SHED, "bundle 0", "Heavy", "too heavy")
    assert decisions.recent("bundle 0")[0].times == 1
    assert len(decisions) == 3


def test_each_decision_is_logged_once_and_again_only_while_debugging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "anabranch.broker.balance.balance_log")
    debugging = [False]
    decisions = BalanceLog(Clock(), is_debugging=lambda: debugging[0])
    for _ in range(3):
        decisions.left(SHED, "", "Balanced", "all alike")
    decisions.left(SHED, "x", "Heavy", "too heavy", is_detail=True)
    decisions.left(SHED, "y", "Failure", "refused", failed=True)
    decisions.done(BalanceAct.TRANSFER, "x", "Overloaded", "full", source="a", destination="b")
    assert [record.getMessage() for record in caplog.records] == [
        "shed: no: all alike (Balanced)",
        "shed of y: no: refused (Failure)",
        "transfer of x from a to b: full (Overloaded)",
    ]
    assert caplog.records[1].levelno == logging.WARNING
    caplog.clear()
    debugging[0] = True
    decisions.left(SHED, "", "Balanced", "all alike")
    assert [record.getMessage() for record in caplog.records] == ["shed: no: all alike (Balanced), 4 times"]
