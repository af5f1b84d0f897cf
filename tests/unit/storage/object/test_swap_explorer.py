"""How locations are exchanged, on every interleaving (`swap_explorer.py`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unit.storage.object.swap_explorer import SwapLawBroken, SwapPlan, SwapSabotage, explore_swaps

PLANS = [
    SwapPlan(rewriters=((0, 1), (1, 2)), sweeps=1),
    SwapPlan(rewriters=((0, 1), (0, 2)), sweeps=1),
    SwapPlan(rewriters=((0, 1), (1, 1)), sweeps=2, repeats=1),
    SwapPlan(rewriters=((0, 2), (1, 1)), sweeps=1, repeats=1),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_the_newest_map_names_exists_in_every_interleaving(plan: SwapPlan) -> None:
    assert explore_swaps(plan) > 1_000


@pytest.mark.parametrize(
    "sabotage", [one for one in SwapSabotage if one is not SwapSabotage.NONE], ids=lambda one: one.value
)
def test_each_way_to_exchange_locations_wrongly_is_found(sabotage: SwapSabotage) -> None:
    def is_found(plan: SwapPlan) -> bool:
        try:
            explore_swaps(replace(plan, sabotage=sabotage))
        except SwapLawBroken:
            return True
        return False

    assert any(is_found(plan) for plan in PLANS)
