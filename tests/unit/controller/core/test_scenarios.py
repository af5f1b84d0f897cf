"""The scenario files under `tests/scenarios`: what the controller does, as prose that can be reviewed.

`REWRITE_SCENARIOS=1 pytest …/test_scenarios.py` writes down what it does today; then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unit.controller.core.script import played

SCENARIOS = Path(__file__).parents[3] / "scenarios"


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda p: p.stem)
def test_the_controller_does_what_the_scenario_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    today = "\n".join(played(text)) + "\n"
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text(today, encoding="utf-8")
        return
    assert today == text


def test_there_are_scenarios() -> None:
    assert len(list(SCENARIOS.glob("*.txt"))) >= 10
