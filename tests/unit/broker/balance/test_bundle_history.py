"""The changes of bundles that a broker remembers."""

from __future__ import annotations

from dataclasses import replace

from anabranch.balance.core.states import BrokerRun, BundleAction, BundleChange, BundleFlow, BundleState
from anabranch.broker.balance.bundle_history import KEPT_MS, BundleHistory
from anabranch.model.bundles import BundleName

ONE = BundleName.parse("public/default/0x00000000_0x80000000")
OTHER = BundleName.parse("public/default/0x80000000_0xffffffff")
A = BrokerRun("a:6650", "run")


class Clock:
    ms = 10_000_000

    def __call__(self) -> int:
        return self.ms


def change(bundle: BundleName, version: int, at_ms: int) -> BundleChange:
    return BundleChange(
        bundle,
        BundleFlow.ASSIGNMENT,
        BundleAction.OWN,
        BundleState.ASSIGNING,
        version,
        A,
        to=A,
        at_ms=at_ms,
    )


def test_a_reader_gets_all_changes_of_the_bundles_that_have_changed_since() -> None:
    clock = Clock()
    history = BundleHistory(clock)
    first, second = change(ONE, 1, clock.ms), change(OTHER, 1, clock.ms)
    history.read([first, second])
    seen_ms = clock.ms
    assert history.since(seen_ms) == []
    clock.ms += 5
    third = change(ONE, 2, clock.ms)
    history.read([third])
    assert history.since(seen_ms) == [first, third]
    assert history.of(OTHER) == [second]
    assert history.since(0) == [first, second, third]


def test_a_change_that_is_read_again_is_kept_once() -> None:
    clock = Clock()
    history = BundleHistory(clock)
    history.read([change(ONE, 1, clock.ms)])
    history.read([change(ONE, 1, clock.ms)])
    assert len(history) == 1
    # A bundle that was forgotten begins again with the same version.
    history.read([replace(change(ONE, 1, clock.ms), at_ms=clock.ms + 1)])
    assert len(history) == 2


def test_an_hour_is_kept_and_no_more_changes_than_there_is_room_for() -> None:
    clock = Clock()
    history = BundleHistory(clock, changes_max=3)
    history.read([change(ONE, 1, clock.ms - KEPT_MS - 1)])
    assert len(history) == 0
    history.read([change(ONE, version, clock.ms) for version in range(1, 6)])
    assert [one.version for one in history.of(ONE)] == [3, 4, 5]
    clock.ms += KEPT_MS + 1
    assert history.since(0) == []
