"""What a live broker publishes of itself, replayed: the same decisions again, as far as history tells.

The same brokers and traces as in test_backtest_agrees.py. Here the replay is not given the trace but what the broker
said about it: stretches of load, and changes of consumers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.autoscale.policy import ScalePolicy
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.scalable.load.auto_policy import broker_policy
from anabranch.broker.scalable.load.history_records import HistoryRecord
from anabranch.pipelines.replay.load_history_schema import (
    COLUMNS,
    NO_SEGMENT,
    RATE_COLUMNS,
    SECONDS,
    UNKNOWN,
    trace_of,
)
from anabranch.pipelines.replay.replay import Timing, replay
from anabranch.pipelines.replay.trace import KeyShares
from simulation.live_broker import BOOT_S, MINUTE, SECOND, TOPIC, Event, lived, stream, trace


def columns_of(records: list[HistoryRecord]) -> dict[str, Any]:
    """As `pipelines/load_history.py` has them in Spark."""
    rows: list[dict[str, Any]] = []
    for record in records:
        if (load := record.load) is not None:
            ms = record.at - load.since
            for n in range(1, load.samples + 1):
                rates = {name: getattr(load, name) for name in RATE_COLUMNS}
                where = {
                    "segment": load.segment,
                    "range_start": load.range_start,
                    "range_end": load.range_end,
                }
                when = {"at": load.since + round(ms * n / load.samples), SECONDS: ms / 1000 / load.samples}
                rows.append({**where, **when, **rates, "consumers": UNKNOWN})
        elif record.consumers is not None:
            most = max(record.consumers.subscriptions.values(), default=0)
            rows.append({"segment": NO_SEGMENT, "at": record.at, "consumers": most})
    end = max(record.at for record in records if record.heartbeat is not None)
    rows.append({"segment": NO_SEGMENT, "at": end, "consumers": UNKNOWN})
    names = [*(name for name in COLUMNS if name != "topic"), SECONDS]
    return {name: np.array([row.get(name, 0) for row in rows]) for name in names}


def replayed(
    records: list[HistoryRecord], config: BrokerConfig, policy: ScalePolicy | None = None, **timing: Any
) -> list[Event]:
    recorded = trace_of(columns_of(records))
    # Ticks are a minute apart from when the broker was started, which history does not say.
    first = (int(BOOT_S * SECOND) - recorded.start_ms) % MINUTE or MINUTE
    return [
        (one.at_ms, one.kind, one.segments, one.rule, one.because)
        for one in replay(
            recorded, policy or broker_policy(config), replace(Timing(first_tick_ms=first), **timing)
        ).decisions
    ]


WOBBLING = "never the same for long"
WAVES = [(30_016 + 1_024 * (n % 7), 10) for n in range(90)] + [(640, 1200)]
TRACES = {
    "a topic that grows and shrinks": trace(stream([(80_000, 900), (20_000, 600), (64, 2400)])),
    "bursts of every length": trace(
        stream([(640, 70), (30_016, 80), (0, 400), (15_040, 30), (640, 900), (25_024, 200), (128, 1900)])
    ),
    WOBBLING: trace(stream(WAVES)),
}


@pytest.mark.parametrize("name", TRACES)
def test_history_gives_the_same_decisions_at_the_same_moments(name: str) -> None:
    config = BrokerConfig()
    events, records = lived(TRACES[name], config)
    assert {event[1] for event in events} == {"split", "merge"}
    found = replayed(records, config)
    assert [event[:4] for event in found] == [event[:4] for event in events]
    # Samples told together have one average: where a load wobbles, figures within sentences are a little off.
    assert (found == events) == (name != WOBBLING)


def test_a_topics_own_policy_is_told_and_gives_the_same_decisions() -> None:
    """Replayed under its broker's policy, the same history made other splits and merges."""
    config = BrokerConfig()
    own = {"splitMsgRateInThreshold": 30_000.0, "mergeMsgRateInThreshold": 12_000.0, "maxSegments": 3}
    events, records = lived(TRACES["a topic that grows and shrinks"], config, policy=own)
    assert events
    told = [one.decision.policy for one in records if one.decision is not None]
    (text,) = set(told)
    assert text is not None
    policy = ScalePolicy.of_json(json.loads(text))
    assert (policy.max_segments, policy.split.msg_rate_in) == (3, 30_000.0)
    assert replayed(records, config, policy) == events
    assert replayed(records, config) != events


def test_consumers_are_told_to_the_millisecond() -> None:
    config = BrokerConfig()
    crowd = trace(
        stream([(640, 600), (90_048, 500), (128, 2000)]),
        consumers={0: {"orders": 1}, 125: {"orders": 3}, 407: {"orders": 6}, 1444: {"orders": 2}, 2000: {}},
    )
    events, records = lived(crowd, config)
    assert {event[3] for event in events} == {"consumers", "load", "cold"}
    # Nobody reads what these consumers are given, so no sealed segment goes before its time. History names no
    # subscription, so the sentences differ in that.
    found = replayed(records, config, kept_ms=None)
    assert [event[:4] for event in found] == [event[:4] for event in events]


def test_decisions_are_published_with_their_sentences_and_so_are_reasons_to_stay() -> None:
    events, records = lived(TRACES["bursts of every length"], BrokerConfig())
    told = [(record.at, record.decision) for record in records if record.decision is not None]
    done = [
        (at, one.kind, one.segments, one.rule, one.because)
        for at, one in told
        if one.kind in ("split", "merge")
    ]
    assert done == events
    stays = [one for _, one in told if one.kind == "stay"]
    assert {one.no_split for one in stays} >= {"cooldown", "not_needed"}
    assert {one.topic for _, one in told} == {str(TOPIC)}
    # What was published of the whole is little: samples that are alike are told together.
    loads = [record.load for record in records if record.load is not None]
    assert len(loads) < sum(load.samples for load in loads) / 3


def test_a_hot_key_is_where_history_and_life_part() -> None:
    """Within a segment keys are taken to be even, so a replay that splits earlier than life did finds it too late."""
    config = BrokerConfig()
    hot = trace(
        stream([(6_400, 300), (32_000, 900)]),
        stream([(0, 200), (25_600, 1000)], KeyShares.of({12_345: 1.0})),
    )
    events, records = lived(hot, config)
    found = replayed(records, config)
    assert [event[:4] for event in found[:4]] == [event[:4] for event in events[:4]]
    assert found != events
