"""Histories are followed while they grow."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak.history import Follower, Place, Writer, place
from soak.workload import ProducerPlan, mixed, payload_of, read_payload


def test_a_follower_sees_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "h"
    follower = Follower(path)
    assert list(follower.new()) == []
    writer = Writer(path)
    writer.note("s", "p", 1)
    writer.flush()
    with path.open("a") as half:
        half.write("s\tp")
    assert list(follower.new()) == [("s", "p", "1")]
    assert list(follower.new()) == []
    with path.open("a") as half:
        half.write("\t2\n")
    assert list(follower.new()) == [("s", "p", "2")]
    writer.close()


def test_a_place_is_read_from_four_fields() -> None:
    assert place(("a", "c", "-1", "3", "4", "-1"), 2) == Place(-1, 3, 4, -1)


@pytest.mark.parametrize("plan", mixed().producers, ids=lambda plan: plan.name)
def test_a_message_says_who_sent_it_and_any_changed_byte_is_noticed(plan: ProducerPlan) -> None:
    payload = next(found for n in range(100) if len(found := payload_of(plan, n)) > 200)
    producer, _, _ = read_payload(payload)
    assert producer == plan.name
    spoiled = payload[:-1] + bytes([payload[-1] ^ 1])
    with pytest.raises(ValueError, match="never sent"):
        read_payload(spoiled)
