"""The short form of `python -m soak client`: every kind of consumer through splits, merges and lost connections.

And a judge that notices when something is done wrong on purpose.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.client import run as soak
from soak.client.conductor import Pace
from soak.client.world import Sabotage

PACE = Pace(operation_s=0.15, fault_s=0.25, membership_s=2.0)


def test_every_kind_of_consumer_keeps_its_promise_through_splits_merges_and_lost_connections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = soak.Options(
        operations=15, seed=7, folder=tmp_path, pace=PACE, life_s=(1.0, 4.0), per_second=100.0
    )
    assert soak.run(options) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("sabotage", "kinds", "told"),
    [
        (Sabotage.LOSS, ("stream", "queue"), "never dealt with"),
        (Sabotage.LOSS, ("checkpoint",), "never did"),
        (Sabotage.ORDER, ("stream",), "first came after"),
        (Sabotage.REPEAT, ("queue",), "without a reason"),
        (Sabotage.REPEAT, ("checkpoint-group",), "came again"),
        (Sabotage.DOUBLE, ("queue",), "stored twice"),
        (Sabotage.STALL, ("lodgers",), "lodgers stalls"),
    ],
    ids=lambda value: value.value if isinstance(value, Sabotage) else None,
)
def test_a_client_that_does_it_wrong_does_not_go_unnoticed(
    sabotage: Sabotage,
    kinds: tuple[str, ...],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = soak.Options(
        operations=10_000 if sabotage is Sabotage.STALL else 3,
        seed=3,
        folder=tmp_path,
        kinds=kinds,
        pace=Pace(operation_s=0.3, fault_s=1e9),
        quiet_s=0.5,
        stall_s=8.0,
        has_brooks=False,
        has_crowds=False,
        sabotage=sabotage,
    )
    assert soak.run(options) == 1
    assert told in capsys.readouterr().out
