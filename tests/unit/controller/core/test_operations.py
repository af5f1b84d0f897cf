"""The table of stages: whole, without dead ends, and refused to whoever leaves it."""

from __future__ import annotations

from enum import Enum

import pytest

from anabranch.controller.core import events as e
from anabranch.controller.core.operations import (
    NEXT,
    CollectStage,
    DeleteStage,
    ReshapeStage,
    Seeking,
    SeekStage,
    Stage,
    SubscribeStage,
    UnsubscribeStage,
    at,
)

KINDS: list[type[Enum]] = [
    ReshapeStage,
    SubscribeStage,
    UnsubscribeStage,
    SeekStage,
    CollectStage,
    DeleteStage,
]


def test_the_table_has_every_stage_and_leads_to_stages_of_the_same_operation() -> None:
    assert list(NEXT) == [stage for kind in KINDS for stage in kind]
    for stage, following in NEXT.items():
        assert all(type(after) is type(stage) for after in following)


@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_is_reached_from_the_first_and_leads_to_one_end(kind: type[Enum]) -> None:
    first: Stage = next(stage for stage in NEXT if isinstance(stage, kind))
    reached, todo = {first}, [first]
    while todo:
        for after in NEXT[todo.pop()]:
            if after not in reached:
                reached.add(after)
                todo.append(after)
    assert reached == set(kind)
    assert len([stage for stage in reached if not NEXT[stage]]) == 1


def test_an_operation_cannot_leave_the_table() -> None:
    seeking = Seeking(e.SeekRequested(1, "billing", 0))
    assert at(seeking, SeekStage.READ_TOPIC).stage is SeekStage.READ_TOPIC
    with pytest.raises(AssertionError, match="does not lead to"):
        at(seeking, SeekStage.MOVE)
