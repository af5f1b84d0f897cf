"""Rigs that are closed behind the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unit.broker.rig import Rig


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    return make_rig()
