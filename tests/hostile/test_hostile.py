"""A part of the hostile client, the same each time: nothing that it sends costs anybody else anything.

The whole of it is `make fuzz`.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hostile.attack import BROKER_BYTES_MAX, Attack
from hostile.cases import Case, every, parse
from hostile.faults import FOUND
from hostile.rig import Rig

SEED = 15
SMALL, LARGE = 250, 12


def sample(brokers: int) -> list[Case]:
    """Cases that have found something before, and some of all others: fewer where several brokers are attacked."""
    cases = [case for case in every() if brokers > 1 or not case.state.needs_several]
    chance = random.Random(SEED)
    chosen = [parse(name) for names in FOUND.values() for name in names] if brokers == 1 else []
    chosen += chance.sample([case for case in cases if not case.is_large], SMALL // brokers)
    chosen += chance.sample([case for case in cases if case.is_large], LARGE // brokers)
    if brokers > 1:
        chosen += chance.sample([case for case in cases if case.state.needs_several], SMALL // brokers)
    chance.shuffle(chosen)
    return chosen


@pytest.mark.timeout(400)
@pytest.mark.parametrize("brokers", [1, 3])
def test_nobody_loses_anything_by_what_a_hostile_client_sends(tmp_path: Path, brokers: int) -> None:
    with Rig(tmp_path, brokers) as rig:
        attack = Attack(rig)
        attack.begin_round()
        for case in sample(brokers):
            attack.run(case)
        attack.linger()
        attack.end_round()
        assert attack.failures == [], "\n".join(map(str, attack.failures))
        assert attack.skipped == 0
        assert attack.published > 100
        assert 0 < attack.peak_bytes < BROKER_BYTES_MAX * brokers
        assert list(rig.losses()) == []
        # A message that was acknowledged and is not there would have been missed.
        history = tmp_path / "round-1" / "0.history"
        lines = history.read_text().splitlines()
        number, ledger, entry, digest = lines[-1].split()
        lines[0] = f"{number} {ledger} {int(entry) + 1_000_000} {digest}"
        lines[1] = lines[1][:-1] + ("0" if lines[1][-1] != "0" else "1")
        history.write_text("\n".join(lines) + "\n")
        gone, changed = rig.losses()
        assert "is gone" in gone
        assert "is another one" in changed
