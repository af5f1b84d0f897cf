"""Load reports on the wire of the views: what was written is read back, and nonsense is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.balance.core.load_json import BadLoad, decode_broker_load, decode_top_bundles, encode_report
from unit.balance.core.facts import NOW, name

numbers = st.floats(0, 1e12)
counts = st.integers(0, 10**9)
broker_loads = st.builds(
    BrokerLoad,
    measured_ms=st.integers(0, 10**13),
    cpu=numbers,
    bandwidth_out=numbers,
    disk=numbers,
    msg_rate_in=numbers,
    throughput_out=numbers,
    bundles=counts,
    topics=counts,
    load=numbers,
    throughput=numbers,
)
bundle_loads = st.builds(
    BundleLoad,
    bundle=st.builds(name, st.integers(0, 4_095)),
    msg_rate_out=numbers,
    throughput_in=numbers,
    topics=counts,
    sessions=counts,
)


@given(broker_loads)
def test_a_brokers_report_is_read_back(load: BrokerLoad) -> None:
    assert decode_broker_load(encode_report(load)) == load


@given(st.lists(bundle_loads, max_size=10))
def test_a_report_of_bundles_is_read_back_in_its_order(bundles: list[BundleLoad]) -> None:
    top = TopBundles(NOW, tuple(bundles))
    assert decode_top_bundles(encode_report(top)) == top


def test_fields_have_pulsars_names() -> None:
    written = json.loads(encode_report(BrokerLoad(measured_ms=NOW, msg_rate_in=1.0)))
    assert {"cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut", "msgRateIn", "topics"} <= set(
        written
    )


def test_unknown_fields_are_ignored_and_missing_ones_are_zero() -> None:
    assert decode_broker_load(b'{"measuredMs": 5, "moon": "full", "cpu": 1}') == BrokerLoad(
        measured_ms=5, cpu=1.0
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"nonsense",
        b"{}",
        b'{"measuredMs": "5"}',
        b'{"measuredMs": true}',
        b'{"measuredMs": 5, "cpu": -1}',
        b'{"measuredMs": 5, "cpu": NaN}',
        b'{"measuredMs": 5, "cpu": Infinity}',
        b'{"measuredMs": 5, "cpu": 1e400}',
        b'{"measuredMs": 5, "topics": "many"}',
        b"[" * 100_000,
        b'{"measuredMs": 1' + b"0" * 400 + b"}",
    ],
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(BadLoad):
        decode_broker_load(data)
    with pytest.raises(BadLoad):
        decode_top_bundles(data)


@pytest.mark.parametrize(
    "bundles", ["null", "{}", "[1]", "[{}]", '[{"bundle": 1}]', '[{"bundle": "a/b/c", "topics": -1}]']
)
def test_what_is_no_list_of_bundles_is_refused(bundles: str) -> None:
    with pytest.raises(BadLoad):
        decode_top_bundles(f'{{"measuredMs": 5, "bundles": {bundles}}}'.encode())
