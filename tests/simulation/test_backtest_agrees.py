"""One trace through a live broker on simulated time and through the backtest: the same decisions, event by event.

Broker, load reporter, automatic scaler, controller and log are the real ones, with the settings they have by default;
only the loop, the clock and the stores are simulated. What flows is published to whichever segments are there.

A broker's ticks and its rounds of measuring begin together, so that every sixth round would coincide with a tick, and
which of both comes first would be anybody's guess. Here the broker is held up for a moment, which sets them apart.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.autoscale.policy import ScalePolicy
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.scalable.load.auto_policy import broker_policy
from anabranch.pipelines.replay.replay import Timing, replay
from anabranch.pipelines.replay.trace import KeyShares, Trace
from simulation.live_broker import TIMING, Event, live, stream, trace


def backtested(trace: Trace, policy: ScalePolicy, timing: Timing) -> list[Event]:
    return [
        (one.at_ms, one.kind, one.segments, one.rule, one.because)
        for one in replay(trace, policy, timing).decisions
    ]


TRACES = {
    "a topic that grows and shrinks": trace(stream([(80_000, 900), (20_000, 600), (64, 2400)])),
    "bursts of every length": trace(
        stream([(640, 70), (30_016, 80), (0, 400), (15_040, 30), (640, 900), (25_024, 200), (128, 1900)])
    ),
    "a hot key among others": trace(
        stream([(6_400, 300), (32_000, 1500), (640, 1200)]),
        stream([(0, 200), (25_600, 1800), (0, 1000)], KeyShares.of({12_345: 1.0})),
    ),
    "on the limits": trace(stream([(10_048, 300), (9_984, 700), (1_024, 400), (960, 1000), (2_048, 300)])),
    "a day's end": trace(stream([(level, 120) for level in range(40_000, 0, -3_200)] + [(0, 1800)])),
    "half of the keys busy": trace(
        stream([(51_200, 1500), (64, 1500)], KeyShares.of({1_024 * n: 1.0 for n in range(32)}))
    ),
}
SETTINGS = {
    "defaults": BrokerConfig(),
    "quick": BrokerConfig(
        scalable_topic_split_cooldown=25.0,
        scalable_topic_merge_cooldown=45.0,
        scalable_topic_merge_window=95.0,
        scalable_topic_max_segments=6,
        scalable_topic_max_dag_depth=2,
    ),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("name", TRACES)
def test_the_backtest_decides_what_a_live_broker_decides(name: str, settings: str) -> None:
    config = SETTINGS[settings]
    found = live(TRACES[name], config)
    assert found, "a trace without a decision proves nothing"
    assert backtested(TRACES[name], broker_policy(config), TIMING) == found


def test_a_limit_on_bytes_is_obeyed_alike() -> None:
    config = BrokerConfig(
        scalable_topic_split_bytes_rate_in_threshold=30_000.0,
        scalable_topic_merge_bytes_rate_in_threshold=3_000.0,
    )
    sized = trace(stream([(640, 300), (64, 700), (1_024, 400), (0, 900)], size=100))
    found = live(sized, config, is_sized=True)
    assert {event[1] for event in found} == {"split", "merge"}
    assert "bytesRateIn" in found[0][4]
    assert backtested(sized, broker_policy(config), TIMING) == found


@pytest.mark.parametrize("settings", SETTINGS)
def test_consumers_that_come_and_go_are_followed_alike(settings: str) -> None:
    config = SETTINGS[settings]
    crowd = trace(
        stream([(640, 600), (90_048, 500), (128, 2000)]),
        consumers={
            0: {"orders": 1},
            125: {"orders": 3},
            131: {"orders": 3, "audit": 5},
            407: {"orders": 6, "audit": 1},
            1444: {"orders": 2, "audit": 1},
            1800: {"orders": 2, "audit": 3},
            2000: {},
        },
    )
    found = live(crowd, config)
    assert {event[3] for event in found} >= {"consumers", "cold"}
    # Nobody reads what these consumers are given, so no sealed segment goes before its time.
    assert backtested(crowd, broker_policy(config), replace(TIMING, kept_ms=None)) == found
