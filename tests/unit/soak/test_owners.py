"""Whether bundles have owners, from what was seen alone."""

from __future__ import annotations

from soak.owners import OWNED_S_MAX, OwnerWatch

OWNED = {"state": "assigned", "owner": "127.0.0.1:8080", "version": 4}
LOST = {"state": "assigned", "owner": None, "version": 4}


def test_a_bundle_without_an_owner_for_too_long_is_told_once_with_its_state() -> None:
    watch = OwnerWatch()
    for now_s in (10.0, 10 + OWNED_S_MAX, 10.1 + OWNED_S_MAX, 30.0):
        watch.see(now_s, {"public/a/0x0_0x8": LOST, "public/a/0x8_0xf": OWNED})
    assert len(watch.violations) == 1
    assert watch.violations[0].startswith(
        "public/a/0x0_0x8: without an owner for 5.1 s: {'state': 'assigned'"
    )
    assert watch.longest_s == 20.0


def test_the_time_begins_again_with_every_owner_and_with_every_storm() -> None:
    watch = OwnerWatch()
    watch.see(0.0, {"b": LOST})
    watch.see(4.0, {"b": OWNED})
    watch.see(5.0, {"b": {**LOST, "state": "assigning"}})
    watch.see(9.0, {"b": LOST})
    watch.storm()
    watch.see(11.0, {"b": LOST})
    watch.see(15.0, {"b": LOST})
    assert watch.violations == []
    watch.see(16.5, {"b": LOST})
    assert len(watch.violations) == 1


def test_bundles_that_nobody_has_asked_for_need_no_owner() -> None:
    watch = OwnerWatch()
    for now_s in (0.0, 60.0):
        watch.see(
            now_s, {name: {"state": name, "owner": None} for name in ("unassigned", "freed", "deleted")}
        )
    assert watch.violations == []
    assert watch.longest_s == 0.0


def test_changes_are_the_versions_of_all_bundles() -> None:
    watch = OwnerWatch()
    watch.see(0.0, {"a": OWNED, "b": {**OWNED, "version": 3}, "c": {"state": "unassigned", "owner": None}})
    assert watch.changes == 7
