"""A trace of what brokers have recorded of their bundles."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.balance.load.history import settings_json
from anabranch.broker.scalable.load.balance_records import (
    BrokerReported,
    BundleSample,
    BundlesMeasured,
    ShedMade,
)
from anabranch.broker.scalable.load.history_records import VERSION, HistoryRecord
from anabranch.pipelines.clusters.cluster_trace import LoadCost
from anabranch.pipelines.clusters.recorded_cluster import load_cost, recorded_cluster
from anabranch.pipelines.replay.trace import BadTrace

START, MINUTE = 1_800_000_000_000, 60_000
WHOLE, LEFT, RIGHT = "a/b/0x00000000_0xffffffff", "a/b/0x00000000_0x80000000", "a/b/0x80000000_0xffffffff"
OTHER = "a/c/0x00000000_0xffffffff"


def bundle(name: str, rate: float, topics: int = 4) -> BundleSample:
    load = BundleLoad(
        bundle=name,
        msg_rate_in=rate,
        throughput_in=100 * rate,
        msg_rate_out=2 * rate,
        throughput_out=200 * rate,
        topics=topics,
        sessions=2 * topics,
    )
    return BundleSample.of(load)


def told(minute: float, broker: str, *bundles: BundleSample, part: int = 0) -> HistoryRecord:
    at_ms = START + round(minute * MINUTE)
    return HistoryRecord(VERSION, broker, at_ms, bundle_loads=BundlesMeasured(part, 1, bundles))


def lived(minute: int, *brokers: str) -> HistoryRecord:
    settings = settings_json(BalanceSettings())
    made = ShedMade(1, brokers, (), False, "Balanced", "", 0.0, 0.0, 0.0, 0, (), (), settings)
    return HistoryRecord(VERSION, "x:1", START + minute * MINUTE, shed=made)


def test_a_bundle_has_its_load_wherever_it_was() -> None:
    records = [told(0, "x:1", bundle(WHOLE, 10), bundle(OTHER, 1)), told(1, "y:1", bundle(WHOLE, 20))]
    found = recorded_cluster("one", [*records, told(1, "x:1", bundle(OTHER, 3))])
    assert (found.bundles, found.brokers, found.samples) == ([WHOLE, OTHER], ["x:1", "y:1"], 2)
    assert found.owners.tolist() == [0, 0]
    assert found.rates(0)[:, 0].tolist() == [10, 1_000, 20, 2_000]
    assert found.rates(1)[0].tolist() == [20, 3]
    assert found.topics.tolist() == [4, 4]


def test_parts_of_a_bundle_that_was_split_add_up_to_it() -> None:
    records = [
        told(0, "x:1", bundle(WHOLE, 10, topics=4)),
        told(1, "x:1", bundle(LEFT, 3, topics=1)),
        told(1, "y:1", bundle(RIGHT, 4, topics=3)),
    ]
    found = recorded_cluster("one", records)
    assert found.bundles == [WHOLE]
    assert [found.rates(n)[0, 0] for n in range(2)] == [10, 7]
    assert found.topics.tolist() == [4]


def test_a_measurement_in_several_records_is_one_and_a_later_one_of_the_minute_replaces_it() -> None:
    records = [
        told(0, "x:1", bundle(WHOLE, 10)),
        told(0, "x:1", bundle(OTHER, 1), part=1),
        told(1, "x:1", bundle(WHOLE, 9), bundle(OTHER, 9)),
        told(1.9, "x:1", bundle(OTHER, 2)),
    ]
    found = recorded_cluster("one", records)
    assert found.rates(0)[0].tolist() == [10, 1]
    assert found.rates(1)[0].tolist() == [0, 2]


def test_figures_hold_over_a_minute_that_was_missed_and_no_longer() -> None:
    records = [told(0, "x:1", bundle(WHOLE, 10)), told(4, "x:1", bundle(WHOLE, 5))]
    found = recorded_cluster("one", records)
    assert [found.rates(n)[0, 0] for n in range(5)] == [10, 10, 0, 0, 5]


def test_brokers_live_while_the_leader_says_so() -> None:
    records = [told(0, "x:1", bundle(WHOLE, 1)), lived(1, "x:1"), lived(2, "x:1", "z:1"), lived(3, "z:1")]
    found = recorded_cluster("one", records)
    assert found.brokers == ["x:1", "z:1"]
    assert found.living == [
        (START, frozenset({0})),
        (START + 2 * MINUTE, frozenset({0, 1})),
        (START + 3 * MINUTE, frozenset({1})),
    ]


def test_what_messages_and_bytes_cost_is_told_by_the_reports() -> None:
    chance = np.random.default_rng(1)
    records = []
    for n in range(40):
        messages, data = chance.uniform(1e3, 1e5), chance.uniform(1e5, 1e8)
        load = BrokerLoad(
            measured_ms=n, cpu=0.05 + messages * 4e-6 + data * 3e-9, msg_rate_in=messages, throughput_in=data
        )
        told_load = BrokerReported.of("x:1", load, TopBundles(n))
        records.append(HistoryRecord(VERSION, "x:1", n, broker_load=told_load))
    found = load_cost(records)
    assert found.each_message == pytest.approx(4e-6)
    assert found.each_byte == pytest.approx(3e-9)
    assert found.idle == pytest.approx(0.05)
    assert load_cost(records[:3]) == LoadCost()


def test_history_without_bundles_is_refused() -> None:
    with pytest.raises(BadTrace, match="no loads of bundles"):
        recorded_cluster("one", [lived(1, "x:1")])
    with pytest.raises(BadTrace, match="a bundle that is none"):
        recorded_cluster("one", [told(0, "x:1", bundle("a/b/half", 1))])
