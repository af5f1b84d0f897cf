"""The protocol of writers and fencers, on every interleaving (`fence_explorer.py`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.storage.object.fence_explorer import OF_DELETION, Explored, LawBroken, Plan, Sabotage, explore

ONE = frozenset({1})
# Small plans, of different kinds: a fence for one ledger or for all, one fencer or two, near the writer or far.
SMALL = [
    Plan(commits=2, fencers=(ONE,), faults=1, distance=2),
    Plan(commits=3, fencers=(ONE,), faults=0, distance=2),
    Plan(commits=2, fencers=(None,), faults=1, distance=2),
    Plan(commits=2, fencers=(ONE, None), faults=0, distance=1),
    Plan(commits=3, fencers=(ONE,), faults=0, window=3, distance=1),
]


@pytest.mark.parametrize("plan", SMALL, ids=str)
def test_no_interleaving_breaks_the_law(plan: Plan) -> None:
    found = explore(plan)
    assert found.interleavings > 1_000_000
    assert found.ends > 1


@pytest.mark.timeout(900)
def test_two_fencers_for_one_ledger_agree_whatever_goes_wrong_once() -> None:
    found: Explored = explore(Plan(commits=2, fencers=(ONE, ONE), faults=1, distance=1))
    # Different worlds, not paths to them.
    assert found.worlds > 100_000


@pytest.mark.parametrize(
    "sabotage",
    [one for one in Sabotage if one not in {Sabotage.NONE, *OF_DELETION}],
    ids=lambda s: s.value,
)
def test_each_way_to_get_it_wrong_is_found(sabotage: Sabotage) -> None:
    with pytest.raises(LawBroken):
        explore(Plan(commits=2, fencers=(ONE,), faults=1, distance=2, sabotage=sabotage))


# With checkpoints, and commits that are deleted at any time after them.
DELETING = [
    Plan(commits=2, fencers=(ONE,), faults=1, distance=1, checkpoints=2),
    Plan(commits=3, fencers=(ONE,), faults=0, distance=1, checkpoints=1),
    Plan(commits=2, fencers=(None,), faults=1, distance=1, checkpoints=1),
    Plan(commits=1, fencers=(ONE, None), faults=0, window=1, distance=1, checkpoints=1),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("plan", DELETING, ids=str)
def test_no_interleaving_breaks_the_law_though_commits_are_deleted(plan: Plan) -> None:
    found = explore(plan)
    assert found.worlds > 5_000
    assert found.ends > 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sabotage", sorted(OF_DELETION, key=str), ids=lambda s: s.value)
def test_each_way_to_delete_too_much_or_to_believe_what_was_deleted_is_found(sabotage: Sabotage) -> None:
    assert any(_is_found(replace(plan, sabotage=sabotage)) for plan in DELETING)


def _is_found(plan: Plan) -> bool:
    try:
        explore(plan)
    except LawBroken:
        return True
    return False
