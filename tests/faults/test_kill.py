"""The short form of `make soak`: two kills under the whole mixed load."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import kill


@pytest.mark.timeout(400)
def test_kill_9_loses_reorders_doubles_and_skips_nothing(tmp_path: Path) -> None:
    assert kill.run(kill.Options(rounds=2, seed=5, seconds=1.5, folder=tmp_path)) == 0
