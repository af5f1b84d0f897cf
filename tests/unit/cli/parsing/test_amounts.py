"""Amounts as people type them, answers as they read them, and figures read back from /metrics."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from anabranch.cli.admin.stats import by_topic, chosen, clients, measured, page, rows
from anabranch.cli.admin.subscriptions import message_id
from anabranch.cli.parsing.amounts import moment, seconds, size, switch
from anabranch.cli.render.answers import lines
from anabranch.cli.render.metrics_text import samples


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (seconds, "90", 90),
        (seconds, "15m", 900),
        (seconds, "1.5h", 5400),
        (seconds, "-1", -1),
        (size, "512M", 512 << 20),
        (size, "10GiB", 10 << 30),
        (size, "7", 7),
        (switch, "ON", True),
        (switch, "disable", False),
        (moment, "1700000000000", 1700000000000),
        (moment, "1970-01-01T00:01:00+00:00", 60_000),
    ],
)
def test_amounts_are_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [(seconds, "soon"), (seconds, "5y"), (size, "-2"), (size, "1X"), (switch, "2"), (moment, "x")],
)
def test_other_amounts_are_refused_with_an_example(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected"):
        read(text)


def test_message_ids_are_read_as_clients_print_them() -> None:
    assert message_id("12:5") == {"ledgerId": 12, "entryId": 5}
    assert message_id("(12,5,-1,0)") == {"ledgerId": 12, "entryId": 5, "partitionIndex": -1, "batchIndex": 0}


def test_answers_are_indented_below_their_names() -> None:
    assert lines({"a": 1, "long": None, "inner": {"b": True}, "list": [{"c": "x", "d": ["y", "z"]}]}) == [
        "a      1",
        "long   -",
        "inner:",
        "  b  yes",
        "list:",
        "  - c  x",
        "    d  y, z",
    ]


PAGE = """# TYPE pulsar_rate_in gauge
pulsar_rate_in{cluster="c",namespace="a/b",topic="persistent://a/b/t\\"1"} 5.0
pulsar_in_messages_total{cluster="c",namespace="a/b",topic="persistent://a/b/t\\"1"} 100
pulsar_out_bytes_total{cluster="c",namespace="a/b",topic="persistent://a/b/t\\"1",subscription="s"} 7
pulsar_msg_backlog{cluster="c",namespace="a/b",topic="persistent://a/b/u"} 3
pulsar_broker_rate_in{cluster="c"} 9
"""


def test_figures_are_read_from_metrics_and_rates_from_counters() -> None:
    found = samples(PAGE)
    assert found[0].labels["topic"] == 'persistent://a/b/t"1'
    before = rows(found)
    assert set(before) == {('persistent://a/b/t"1', ""), ("persistent://a/b/u", "")}
    later = rows(samples(PAGE.replace("} 100", "} 140")))
    assert [row.rate_in for row in measured(before, later, 2.0).values()] == [20.0, 0.0]
    assert [row.rate_in for row in measured(later, before, 2.0).values()] == [0.0, 0.0]
    assert [row.topic for row in chosen(before, "", "backlog", 1)] == ["persistent://a/b/u"]
    assert page(chosen(before, "", "name", 1), len(before))[-1] == "and 1 more"


@pytest.mark.parametrize("width", [130, 100, 80, 40])
def test_a_page_fits_its_screen_and_names_keep_their_ends(width: int) -> None:
    names = [f"persistent://public/default/orders-partition-{n}" for n in range(3)]
    text = "".join(f'pulsar_rate_in{{namespace="public/default",topic="{name}"}} 7\n' for name in names)
    found = list(rows(samples(text)).values())
    lines = page(found, 9, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == len(names) + 2
    for n, line in enumerate(lines[1:4]):
        assert f"partition-{n} " in line
    assert page(found, 3) == page(found, 3, 1000)


SEGMENTS = """
pulsar_msg_backlog{namespace="a/b",topic="topic://a/b/t",segment="0000-7fff-1"} 3
pulsar_producers_count{namespace="a/b",topic="topic://a/b/t",segment="0000-7fff-1"} 2
pulsar_msg_backlog{namespace="a/b",topic="topic://a/b/t",segment="8000-ffff-2"} 4
pulsar_in_messages_total{namespace="a/b",topic="topic://a/b/t",segment="8000-ffff-2"} 100
pulsar_producers_count{namespace="a/b",topic="topic://a/b/t",segment="8000-ffff-2"} 2
anabranch_scalable_topic_producers{namespace="a/b",topic="topic://a/b/t"} 2
pulsar_msg_backlog{namespace="a/b",topic="persistent://a/b/u"} 5
"""


def test_a_scalable_topic_is_one_row_unless_its_segments_are_asked_for() -> None:
    found = samples(SEGMENTS)
    apart = rows(found)
    assert [row.name for row in chosen(apart, "", "name", 0)] == [
        "persistent://a/b/u",
        "topic://a/b/t  0000-7fff-1",
        "topic://a/b/t  8000-ffff-2",
    ]
    together = by_topic(apart.values(), clients(found))
    assert {row.name: (row.backlog, row.producers) for row in together.values()} == {
        "topic://a/b/t": (7, 2),
        "persistent://a/b/u": (5, 0),
    }
    # A segment that is gone takes its counters with it: the others' rates are what they were.
    left = {key: row for key, row in apart.items() if key[1] != "0000-7fff-1"}
    later = rows(samples(SEGMENTS.replace("} 100", "} 140")))
    assert measured(left, later, 2.0)["topic://a/b/t", "8000-ffff-2"].rate_in == 20.0


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_that_differ_stay_different_on_a_narrow_screen(width: int) -> None:
    tail = "clickstream-events-of-the-shop/validated-and-enriched"
    names = [f"topic://public/{team}/{tail}" for team in ("alpha", "beta", "gamma")]
    text = "".join(f'pulsar_rate_in{{namespace="n",topic="{name}"}} 7\n' for name in names)
    lines = page(list(rows(samples(text)).values()), 3, width)
    assert max(map(len, lines)) <= width
    assert len({line.split("  ")[0] for line in lines[1:]}) == 3
