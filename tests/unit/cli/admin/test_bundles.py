"""`anabranch bundles`: how the states of bundles are shown."""

from __future__ import annotations

import pytest

from anabranch.cli.admin.bundles import REQUESTS, hashes
from anabranch.cli.parsing.options import UsageError
from anabranch.cli.render.answers import View

VIEWS: dict[str, View] = {one.name: one.view for one in REQUESTS if one.view is not None}
OWNED = {
    "bundle": "0x00000000_0x40000000",
    "state": "assigned",
    "owner": "b-0:8080",
    "reason": "an operator moves it",
    "since": 1_700_000_000_000,
    "version": 7,
}
MOVING = {
    "bundle": "0x40000000_0x80000000",
    "state": "assigning",
    "owner": None,
    "source": "b-0:8080",
    "destination": "b-1:8080",
    "reason": "b-0 is about to end",
    "since": 1_700_000_000_000,
}
FREE = {
    "bundle": "0x80000000_0xffffffff",
    "state": "unassigned",
    "owner": None,
    "reason": "no client asked for it",
}


def test_a_list_has_a_line_for_each_bundle_and_says_where_a_moving_one_goes() -> None:
    heading, *rows = VIEWS["list"]([OWNED, MOVING, FREE])
    assert heading.split() == ["BUNDLE", "STATE", "OWNER", "SINCE", "REASON"]
    assert rows[0].split()[:3] == ["0x00000000_0x40000000", "assigned", "b-0:8080"]
    assert rows[0].endswith("an operator moves it")
    assert "b-0:8080 to b-1:8080" in rows[1]
    assert rows[2].split()[:4] == ["0x80000000_0xffffffff", "unassigned", "-", "-"]


def test_an_explanation_shows_the_owner_even_if_there_is_none_and_what_each_broker_has() -> None:
    told = VIEWS["explain"](
        {**FREE, "leader": "b-1:8080", "safeMode": None, "brokers": {"b-0:8080": 12, "b-1:8080": 3}}
    )
    assert any(line.split() == ["owner", "-"] for line in told)
    assert any(line.split() == ["leader", "b-1:8080"] for line in told)
    assert not any("safeMode" in line for line in told)
    assert [line.split() for line in told[-3:]] == [
        ["BROKER", "BUNDLES"],
        ["b-0:8080", "12"],
        ["b-1:8080", "3"],
    ]


def test_an_explanation_tells_moves_and_decisions_in_their_order_and_the_loads() -> None:
    move = {
        "kind": "transfer",
        "from": "b-1:6650",
        "to": "b-0:6650",
        "state": "assigned",
        "reason": "too warm",
    }
    decision = {"act": "shed", "isDone": False, "label": "TooHeavy", "because": "it is heavy", "times": 3}
    told = VIEWS["explain"](
        {
            **OWNED,
            "nowMs": 1_700_000_100_000,
            "moves": [{**move, "beganMs": 1_700_000_002_000, "endedMs": 1_700_000_002_007}],
            "decisions": [
                {**decision, "subject": "x", "atMs": 1_700_000_001_000, "untilMs": 1_700_000_001_500}
            ],
            "general": [{**decision, "because": "balanced", "untilMs": 1_700_000_009_000}],
            "silent": ["b-2:8080"],
            "loads": {"b-0:8080": {"load": 0.42}},
            "brokers": {"b-0:8080": 12, "b-1:8080": 3},
        }
    )
    start = told.index("The last hour")
    assert [line.split("  ")[-1] for line in told[start + 1 : start + 4]] == [
        "no shed of x, 3 times: it is heavy",
        "transfer b-1:6650 to b-0:6650 (assigned): too warm",
        "no shed, 3 times: balanced",
    ]
    assert "Not heard: b-2:8080" in told
    assert [line.split() for line in told[-2:]] == [["b-0:8080", "12", "42", "%"], ["b-1:8080", "3", "-"]]


def test_hashes_are_written_in_either_way() -> None:
    assert hashes("0x20000000,536870913") == [0x20000000, 0x20000001]
    with pytest.raises(UsageError, match="is no list of hashes"):
        hashes("0x2000,west")
