"""Brokers, bundles and their loads, written down in a line each."""

from __future__ import annotations

from anabranch.balance.core.load import BrokerLoad, BundleLoad

NOW = 1_800_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
MEGABYTE = 1e6


def broker_load(
    load: float, *, throughput: float | None = None, at: int = NOW, bundles: int = 10, topics: int = 100
) -> BrokerLoad:
    """A broker with that load, all of it CPU, and 100 MB/s for a full core unless told."""
    data = 100 * MEGABYTE * load if throughput is None else throughput
    return BrokerLoad(
        measured_ms=at,
        cpu=load,
        msg_rate_in=data / 2_000,
        msg_rate_out=data / 2_000,
        throughput_in=data / 2,
        throughput_out=data / 2,
        bundles=bundles,
        topics=topics,
        load=load,
        throughput=data,
    )


def bundle_load(bundle: str, load: float, *, topics: int = 10, sessions: int = 20) -> BundleLoad:
    """A bundle that takes that share of a core, by the measure of `broker_load`."""
    data = 100 * MEGABYTE * load
    return BundleLoad(
        bundle=bundle,
        msg_rate_in=data / 2_000,
        msg_rate_out=data / 2_000,
        throughput_in=data / 2,
        throughput_out=data / 2,
        topics=topics,
        sessions=sessions,
    )


def name(number: int, namespace: str = "acme/sales") -> str:
    """The name of one of 4,096 bundles."""
    last = (number + 1) << 20 if number < 4_095 else 0xFFFFFFFF
    return f"{namespace}/0x{number << 20:08x}_0x{last:08x}"
