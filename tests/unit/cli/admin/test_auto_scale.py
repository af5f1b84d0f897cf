"""`anabranch topics policy` and `explain`, against a real broker; fields and their units."""

from __future__ import annotations

import json

import pytest

from anabranch.cli.admin import rest
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from anabranch.cli.parsing.auto_scale_fields import BY_WORD, parsed, shown
from anabranch.cli.parsing.options import UsageError

Capture = pytest.CaptureFixture[str]


def topics(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topics", "--admin-url", broker.admin_url, *arguments])


def said(capsys: Capture) -> list[str]:
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.splitlines()


def refused(capsys: Capture) -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("anabranch: ")
    assert found.err.count("\n") == 1
    return found.err


def rows(lines: list[str]) -> dict[str, tuple[str, str]]:
    """Value and level by field."""
    cells = [line.split() for line in lines[3:]]
    return {word: (" ".join(value), level) for word, *value, level in cells}


# -- one topic


def test_fields_are_set_one_by_one_shown_with_their_level_and_removed(
    broker: BrokerProcess, capsys: Capture
) -> None:
    topics(broker, "create", "--scalable", "tuned")
    capsys.readouterr()
    set_one = ["--max-segments", "8", "--split-cooldown", "2m", "--split-bytes-rate-in", "20MB"]
    assert topics(broker, "policy", "set", "tuned", *set_one) == 0
    assert topics(broker, "policy", "set", "topic://public/default/tuned", "--max-segments", "9") == 0
    assert said(capsys) == ["topic://public/default/tuned: policy set"] * 2
    path = "/admin/v2/scalable/public/default/tuned/autoScalePolicy"
    assert rest.call(broker.admin_url, "GET", path) == {
        "maxSegments": 9,
        "splitCooldownSeconds": 120,
        "splitBytesRateInThreshold": 20_000_000,
    }
    assert topics(broker, "policy", "get", "tuned") == 0
    lines = said(capsys)
    assert lines[0] == "topic://public/default/tuned: automatic splits and merges are on"
    found = rows(lines)
    assert found.keys() == BY_WORD.keys()
    assert found["max-segments"] == ("9", "topic")
    assert found["split-cooldown"] == ("2 min", "topic")
    assert found["split-bytes-rate-in"] == ("20 MB/s", "topic")
    assert found["merge-window"] == ("5 min", "broker")
    assert topics(broker, "policy", "remove", "tuned", "max-segments") == 0
    assert said(capsys) == ["topic://public/default/tuned: policy removed"]
    assert topics(broker, "policy", "get", "tuned", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["set"] == {"splitCooldownSeconds": 120, "splitBytesRateInThreshold": 20_000_000}
    assert answer["policy"]["maxSegments"] == {"value": 64, "from": "broker"}
    assert topics(broker, "policy", "remove", "tuned") == 0
    assert rest.call(broker.admin_url, "GET", path) is None


def test_removing_the_last_field_leaves_nothing_set(broker: BrokerProcess) -> None:
    topics(broker, "create", "--scalable", "emptied")
    topics(broker, "policy", "set", "emptied", "--enabled", "off")
    assert topics(broker, "policy", "remove", "emptied", "enabled") == 0
    path = "/admin/v2/scalable/public/default/emptied/autoScalePolicy"
    assert rest.call(broker.admin_url, "GET", path) is None


# -- a namespace


def test_a_namespace_is_told_from_a_topic_by_its_one_slash(broker: BrokerProcess, capsys: Capture) -> None:
    rest.call(broker.admin_url, "PUT", "/admin/v2/namespaces/public/tuned")
    topics(broker, "create", "topic://public/tuned/t")
    capsys.readouterr()
    assert topics(broker, "policy", "set", "public/tuned", "--enabled", "off", "--min-segments", "2") == 0
    assert said(capsys) == ["public/tuned: policy set"]
    assert topics(broker, "policy", "get", "public/tuned") == 0
    lines = said(capsys)
    assert lines[0] == "public/tuned: automatic splits and merges are off (set for the namespace)"
    assert rows(lines)["min-segments"] == ("2", "namespace")
    assert topics(broker, "policy", "get", "topic://public/tuned/t") == 0
    assert rows(said(capsys))["enabled"] == ("off", "namespace")
    assert topics(broker, "policy", "remove", "public/tuned") == 0
    assert said(capsys) == ["public/tuned: policy removed"]
    assert topics(broker, "policy", "get", "public/tuned") == 0
    assert rows(said(capsys))["enabled"] == ("on", "broker")


# -- refusals


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["set", "wrong-policy", "--min-segments", "100"], "maxSegments"),
        (["set", "wrong-policy", "--split-msg-rate-in", "1000"], "mergeMsgRateInThreshold"),
        (["set", "wrong-policy", "--split-cooldown", "-1"], "splitCooldownSeconds"),
        (["set", "wrong-policy", "--split-cooldown", "soon"], "duration"),
        (["set", "wrong-policy", "--max-segments", "1.5"], "whole"),
        (["set", "wrong-policy", "--enabled", "perhaps"], "on or off"),
        (["set", "wrong-policy"], "nothing to set"),
        (["set", "topic://public/default/missing", "--enabled", "off"], "does not exist"),
        (["get", "public/missing"], "does not exist"),
        (["remove", "wrong-policy", "maxsegs"], "max-segments"),
        (["get", "persistent://public/default/t"], "migrate"),
    ],
)
def test_refusals_are_one_line_with_advice(
    broker: BrokerProcess, capsys: Capture, arguments: list[str], advice: str
) -> None:
    topics(broker, "create", "--scalable", "wrong-policy")
    capsys.readouterr()
    assert topics(broker, "policy", *arguments) == 1
    assert advice in refused(capsys)


# -- explain


def test_explain_tells_what_was_done_and_why_nothing_is_due(broker: BrokerProcess, capsys: Capture) -> None:
    topics(broker, "create", "--scalable", "asked")
    topics(broker, "split", "asked", "0")
    capsys.readouterr()
    assert topics(broker, "explain", "asked") == 0
    lines = said(capsys)
    assert (
        lines[0] == "topic://public/default/asked has 2 active segments; automatic splits and merges are on"
    )
    assert lines[2] == "Now"
    assert lines[3].startswith("  No split: ")
    assert lines[4].startswith("  No merge: ")
    assert lines[6] == "The last hour: 1 split"
    assert "Split segment 0 into 1 and 2 by hand" in lines[7]
    assert topics(broker, "explain", "asked", "--json") == 0
    assert json.loads(capsys.readouterr().out)["now"]["kind"] == "stay"


def test_a_topic_that_is_not_scalable_has_no_explanation(broker: BrokerProcess, capsys: Capture) -> None:
    assert topics(broker, "explain", "missing") == 1
    assert "does not exist" in refused(capsys)
    assert topics(broker, "explain", "persistent://public/default/missing") == 1
    assert "classic" in refused(capsys)


# -- values


@pytest.mark.parametrize(
    ("word", "text", "value"),
    [
        ("enabled", "Off", False),
        ("enabled", "true", True),
        ("max-segments", "8", 8),
        ("split-cooldown", "90", 90),
        ("split-cooldown", "5m", 300),
        ("merge-window", "1h", 3600),
        ("split-bytes-rate-in", "50MB", 50_000_000),
        ("split-bytes-rate-in", "50MB/s", 50_000_000),
        ("split-msg-rate-in", "2500.5", 2500.5),
    ],
)
def test_values_are_read_with_their_units(word: str, text: str, value: object) -> None:
    found = parsed(BY_WORD[word], text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("word", "text"),
    [("max-segments", "many"), ("split-cooldown", "500ms"), ("split-bytes-rate-in", "9 apples")],
)
def test_values_that_cannot_be_are_refused_with_the_option(word: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"--{word}"):
        parsed(BY_WORD[word], text)


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        ("enabled", True, "on"),
        ("split-cooldown", 60, "1 min"),
        ("split-cooldown", 0, "0 s"),
        ("split-cooldown", 90, "90 s"),
        ("merge-cooldown", 7200, "2 h"),
        ("split-bytes-rate-in", 50_000_000.0, "50 MB/s"),
        ("split-bytes-rate-out", 1_250_000_000, "1.25 GB/s"),
        ("merge-bytes-rate-out", 900, "900 B/s"),
        ("split-msg-rate-in", 10_000.0, "10,000 msg/s"),
        ("split-msg-rate-in", 2000.5, "2,000.5 msg/s"),
    ],
)
def test_values_are_shown_in_units_that_fit(word: str, value: float, text: str) -> None:
    assert shown(BY_WORD[word], value) == text
