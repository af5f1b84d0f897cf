"""What `anabranch topics explain` makes of a broker's answer: a story, in the reader's own time."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any

from anabranch.autoscale.policy import Override, ScalePolicy, resolve
from anabranch.cli.render.explain import page

NOON_MS = 1_700_049_600_000  # 12:00:00 UTC, 15 November 2023.
MINUTE_MS = 60_000


def decision(minute: float, kind: str = "stay", because: str = "", **more: Any) -> dict[str, Any]:
    """Given that many minutes before noon."""
    at_ms = NOON_MS - round(minute * MINUTE_MS)
    made = {"atMs": at_ms, "untilMs": at_ms, "kind": kind, "segments": [], "rule": "", "times": 1}
    return made | {"because": because} | more


def segment(start: int, end: int, children: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "hashRange": {"start": start, "end": end},
        "state": "SEALED" if children else "ACTIVE",
        "childIds": list(children),
        "load": None,
        "heat": None,
    } | more


def explained(*decisions: dict[str, Any], topic: Override | None = None, **more: Any) -> dict[str, Any]:
    return {
        "topic": "topic://public/default/orders",
        "nowMs": NOON_MS,
        "activeSegments": 1,
        "policy": resolve(ScalePolicy(), None, topic).to_json(),
        "problems": [],
        "now": {"kind": "stay", "segments": [], "because": "No split: all is idle. No merge: there is one."},
        "segments": {"0": segment(0, 0xFFFF)},
        "decisions": list(decisions),
    } | more


def shown(found: dict[str, Any], **options: Any) -> list[str]:
    return page(found, **({"zone": UTC} | options))


def part(lines: list[str], title: str) -> list[str]:
    """The lines below a title, up to an empty one."""
    start = next(n for n, line in enumerate(lines) if line.startswith(title))
    end = next((n for n in range(start, len(lines)) if not lines[n]), len(lines))
    return lines[start:end]


def test_a_split_is_told_with_its_time_its_children_and_its_reason() -> None:
    split = decision(
        12, "split", "segment 0 has msgRateIn 12,000/s, 120 % of its limit", segments=[0], rule="load"
    )
    segments = {"0": segment(0, 0xFFFF, (1, 2)), "1": segment(0, 0x7FFF), "2": segment(0x8000, 0xFFFF)}
    assert part(shown(explained(split, segments=segments)), "The last hour") == [
        "The last hour: 1 split",
        "  11:48:00  Split segment 0 into 1 and 2 for its load: segment 0 has 12,000 msg/s in, 120 % of its limit.",
    ]


def test_a_rebucket_is_told_with_its_successor_and_its_reason() -> None:
    more = decision(9, "rebucket", "5 consumers and room for 4", segments=[0], rule="consumers")
    fewer = decision(2, "rebucket", "1 would be enough", segments=[1], rule="idle")
    segments = {"0": segment(0, 0xFFFF, (1,)), "1": segment(0, 0xFFFF, (2,)), "2": segment(0, 0xFFFF)}
    assert part(shown(explained(more, fewer, segments=segments)), "The last hour") == [
        "The last hour: 2 rebuckets",
        "  11:51:00  Replaced segment 0 by 1 for consumers: 5 consumers and room for 4.",
        "  11:58:00  Replaced segment 1 by 2 as no consumer needed its entry buckets: 1 would be enough.",
    ]


def test_a_rebucket_that_is_due_and_one_that_waits_are_part_of_now() -> None:
    due = {"kind": "rebucket", "segments": [3], "because": "5 consumers and room for 4"}
    assert (
        part(shown(explained(now=due)), "Now")[1]
        == "  About to replace segment 3: 5 consumers and room for 4."
    )
    waits = "No split: all is idle. No merge: there is one. No rebucket: not yet."
    stay = {"kind": "stay", "segments": [], "because": waits}
    assert part(shown(explained(now=stay)), "Now")[1:] == [
        "  No split: all is idle.",
        "  No merge: there is one.",
        "  No rebucket: not yet.",
    ]


def test_a_merge_and_an_operation_by_hand_are_told() -> None:
    told = part(
        shown(
            explained(
                decision(20, "merge", "both were idle", segments=[1, 2], rule="cold"),
                decision(10, "split", "somebody asked for it", segments=[3], rule="manual"),
                decision(5, "failed", "segment 4 is sealed"),
            )
        ),
        "The last hour",
    )
    assert told == [
        "The last hour: 1 split, 1 merge, 1 failure",
        "  11:40:00  Merged segments 1 and 2 as both were cold: both were idle.",
        "  11:50:00  Split segment 3 by hand: somebody asked for it.",
        "  11:55:00  Failed: segment 4 is sealed.",
    ]


def test_a_reason_that_held_for_a_while_is_one_line_with_its_span_and_number_of_looks() -> None:
    held = decision(30, because="No split: cool. No merge: warm.", times=12, untilMs=NOON_MS - 18 * MINUTE_MS)
    assert "  11:30:00 to 11:42:00  Left as it was, 12 looks. No split: cool. No merge: warm." in shown(
        explained(held)
    )


def test_what_holds_now_comes_first_and_says_since_when() -> None:
    same = decision(
        15, because="No split: all is idle. No merge: there is one.", times=15, untilMs=NOON_MS - MINUTE_MS
    )
    lines = shown(explained(same))
    assert part(lines, "Now") == [
        "Now, and since 11:45:00 (15 looks)",
        "  No split: all is idle.",
        "  No merge: there is one.",
    ]
    assert part(lines, "The last hour") == ["The last hour: no split, no merge"]


def test_what_is_about_to_happen_is_said() -> None:
    now = {"kind": "merge", "segments": [1, 2], "because": "both are cold"}
    assert part(shown(explained(now=now)), "Now") == [
        "Now",
        "  About to merge segments 1 and 2: both are cold.",
    ]


def test_older_decisions_are_counted_and_shown_on_request() -> None:
    found = explained(decision(90, "split", "hot", segments=[0], rule="load"), decision(10, "failed", "no"))
    assert part(shown(found), "The last hour") == [
        "The last hour: 1 failure",
        "  11:50:00  Failed: no.",
        "  1 older decision: --all shows them",
    ]
    assert part(shown(found, is_all=True), "All that is remembered")[1] == (
        "  10:30:00  Split segment 0 for its load: hot."
    )


def test_times_are_the_readers_own_also_within_sentences() -> None:
    held = decision(1, because="No split: a cooldown until 2023-11-15 12:00:30 UTC.")
    lines = shown(explained(held), zone=timezone(timedelta(hours=2)))
    assert "  13:59:00  Left as it was. No split: a cooldown until 14:00:30." in lines


def test_rates_are_told_in_words() -> None:
    held = decision(1, because="No split: 2 has bytesRateOut 2.5 MB/s, and 3 msgRateIn 1,200/s.")
    assert "No split: 2 has 2.5 MB/s out, and 3 1,200 msg/s in." in "\n".join(shown(explained(held)))


def test_a_moment_of_another_day_has_its_date() -> None:
    held = decision(1, because="No merge: it is left alone until 2023-11-16 08:00:00 UTC.")
    assert "until 2023-11-16 08:00:00." in "\n".join(shown(explained(held)))


def test_loads_are_shown_beside_their_limits() -> None:
    load = {
        "msgRateIn": 4210.0,
        "bytesRateIn": 2e6,
        "msgRateOut": 30.0,
        "bytesRateOut": 512.0,
        "modifiedAtMs": NOON_MS - 5 * MINUTE_MS,
    }
    segments = {"1": segment(0, 0x7FFF, load=load, heat=0.421), "2": segment(0x8000, 0xFFFF)}
    rows = [line.split() for line in part(shown(explained(segments=segments)), "Load")[2:]]
    assert rows == [
        ["1", "0000-7fff", "4,210", "2", "MB", "30.0", "512", "B", "42", "%", "11:55:00"],
        ["2", "8000-ffff", "?", "?", "?", "?", "?", "not", "yet"],
    ]


def test_the_heading_says_whether_anything_happens_by_itself() -> None:
    assert shown(explained())[0] == (
        "topic://public/default/orders has 1 active segment; automatic splits and merges are on"
    )
    off = shown(explained(topic=Override(enabled=False)))[0]
    assert off.endswith("automatic splits and merges are off (set for the topic)")
    broken = shown(explained(problems=["minSegments is 9 and maxSegments 8"]))[0]
    assert "OFF, because the policy contradicts itself: minSegments is 9 and maxSegments 8" in broken


def test_what_was_set_for_the_topic_is_named() -> None:
    lines = shown(explained(topic=Override(max_segments=8, split_bytes_rate_in_threshold=20_000_000)))
    assert lines[-1] == (
        "Policy: max-segments 8 (topic), split-bytes-rate-in 20 MB/s (topic); all else as the broker is configured"
    )


def test_on_a_terminal_sentences_are_broken_between_words_and_figures_keep_their_units() -> None:
    because = "segment 0 has 12,000 msg/s in, 120 % of its split limit of 10,000/s " * 3
    found = explained(decision(12, "split", because.strip(), segments=[0], rule="load"))
    for width in (40, 61, 62, 63, 64, 65, 80):
        lines = part(shown(found, width=width), "The last hour")
        assert all(len(line) <= width for line in lines)
        assert not any(line.strip().startswith("%") for line in lines)
        assert " ".join(" ".join(lines).split()).endswith(f"for its load: {because.strip()}.")
    assert all(line.startswith(" " * 12) for line in part(shown(found, width=80), "The last hour")[2:])


def test_shares_of_segments_are_told_where_there_are_any() -> None:
    shares = [{"segment": 3, "subscription": "billing", "buckets": {"one": [0, 1], "two": [2]}}]
    assert part(shown(explained(shares=shares)), "Shares") == [
        "Shares",
        "  Segment 3 is shared in billing: one has buckets 0-1, two has bucket 2",
    ]
    assert not any(line.startswith("Shares") for line in shown(explained(shares=[])))


def test_a_segment_whose_entries_are_not_stamped_is_said_to_serve_one_consumer() -> None:
    load = {"msgRateIn": 1.0, "bytesRateIn": 1.0, "msgRateOut": 1.0, "bytesRateOut": 1.0, "modifiedAtMs": 1}
    segments = {
        "1": segment(0, 0x7FFF, load=load, heat=0.1),
        "2": segment(0x8000, 0xFFFF, load={**load, "unstamped": True}, heat=0.1),
    }
    assert part(shown(explained(segments=segments)), "Shares") == [
        "Shares",
        "  Segment 2 serves one consumer at a time: entries of late are in no single entry bucket",
    ]
