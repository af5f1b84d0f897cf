"""What load history has of the balancer."""

from __future__ import annotations

from typing import Any

from anabranch.broker.balance.load.history import BUNDLES_MAX, BalanceHistory
from unit.broker.balance.load.rig import broker_load, bundle_load, tops


class Records:
    """Implements `HistoryOfBalance`."""

    def __init__(self) -> None:
        self.found: list[tuple[int, dict[str, Any]]] = []

    def balance(self, at_ms: int, **found: Any) -> None:
        self.found.append((at_ms, found))


def test_a_report_is_recorded_at_the_time_from_which_it_counts() -> None:
    records = Records()
    top = tops(bundle_load("a/b/0x0", 10), measured_ms=7)
    BalanceHistory(records, lambda: 99).report_taken("one:1", broker_load(0.5, measured_ms=7), top)
    [(at_ms, found)] = records.found
    told = found["broker_load"]
    assert (at_ms, told.broker) == (7, "one:1")
    assert told.report(7) == (broker_load(0.5, measured_ms=7), top)


def test_bundles_are_recorded_in_parts_and_those_without_traffic_are_not() -> None:
    records = Records()
    busy = [bundle_load(f"a/b/{n}", 1.0) for n in range(BUNDLES_MAX + 1)]
    BalanceHistory(records, lambda: 5).bundles_measured([*busy, bundle_load("idle", 0.0)])
    parts = [found["bundle_loads"] for _, found in records.found]
    assert [(one.part, one.parts, len(one.bundles)) for one in parts] == [(0, 2, BUNDLES_MAX), (1, 2, 1)]


def test_a_broker_without_traffic_says_so() -> None:
    records = Records()
    BalanceHistory(records, lambda: 5).bundles_measured([])
    assert [(found["bundle_loads"].parts, found["bundle_loads"].bundles) for _, found in records.found] == [
        (1, ())
    ]


def test_a_split_is_recorded_with_its_reason() -> None:
    records = Records()
    history = BalanceHistory(records, lambda: 5)
    history.split_decided("a/b/0x0", "MsgRate", "busy", ["a/b/0x1", "a/b/0x2"], is_done=True)
    [(at_ms, found)] = records.found
    told = found["bundle_split"]
    assert (at_ms, told.bundle, told.label, told.children) == (
        5,
        "a/b/0x0",
        "MsgRate",
        ("a/b/0x1", "a/b/0x2"),
    )
