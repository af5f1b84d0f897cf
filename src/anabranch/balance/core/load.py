"""The load of brokers and of their bundles: values, how they are smoothed, when they are reported and how long they
count. Pure.

A broker's load is one number, 1.0 for a resource in full use: the largest of its weighted resources, as a moving
average. What a bundle contributes to it is an estimate: the bundle's share of its broker's messages and bytes. Nothing
here measures, publishes or keeps anything.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from anabranch.autoscale.verdict import percent, span
from anabranch.balance.core.settings import BalanceSettings
from anabranch.model.names import SYSTEM_NAMESPACE

# Pulsar compares bundles in steps of these sizes, so that small changes do not change the order.
_THROUGHPUT_STEP: Final = 1e5
_MSG_RATE_STEP: Final = 100.0
_CROWD_STEP: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """One broker's load at one moment. Resources are shares, 1.0 for full use."""

    measured_ms: int
    # The share of a core that the thread of the broker's loop used.
    cpu: float = 0.0
    memory: float = 0.0
    # The memory outside of Python's objects: buffers and caches, as shares of their limits.
    direct_memory: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0
    # The bytes that its log moves, as a share of what its disk can move.
    disk: float = 0.0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    # Bytes a second.
    throughput_in: float = 0.0
    throughput_out: float = 0.0
    bundles: int = 0
    topics: int = 0
    # Moving averages, of the largest weighted resource and of the bytes; `measured` sets them.
    load: float = 0.0
    throughput: float = 0.0

    @property
    def msg_rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput_now(self) -> float:
        return self.throughput_in + self.throughput_out


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoad:
    """What flows through one bundle."""

    bundle: str  # `tenant/namespace/0x…_0x…`
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    throughput_in: float = 0.0
    throughput_out: float = 0.0
    topics: int = 0
    # Producers and consumers.
    sessions: int = 0

    @property
    def msg_rate(self) -> float:
        return self.msg_rate_in + self.msg_rate_out

    @property
    def throughput(self) -> float:
        return self.throughput_in + self.throughput_out


@dataclass(frozen=True, slots=True)
class TopBundles:
    """A broker's report of its heaviest bundles, the lightest of them first."""

    measured_ms: int
    bundles: tuple[BundleLoad, ...] = ()


# -- smoothing


def weighted(load: BrokerLoad, settings: BalanceSettings) -> float:
    """The largest of the broker's resources, each by its weight."""
    return max(
        load.cpu * settings.cpu_weight,
        load.memory * settings.memory_weight,
        load.direct_memory * settings.direct_memory_weight,
        load.bandwidth_in * settings.bandwidth_in_weight,
        load.bandwidth_out * settings.bandwidth_out_weight,
        load.disk * settings.disk_weight,
    )


def smoothed(before: float, sample: float, history_share: float) -> float:
    """The next exponential moving average."""
    return before * history_share + sample * (1.0 - history_share)


def measured(sample: BrokerLoad, before: BrokerLoad | None, settings: BalanceSettings) -> BrokerLoad:
    """The sample with its averages. `before` is the measurement before it, or None to start the averages again: for a
    first sample, and after the broker got or lost a bundle, when the past says little."""
    now = weighted(sample, settings)
    if before is None:
        return replace(sample, load=now, throughput=sample.throughput_now)
    return replace(
        sample,
        load=smoothed(before.load, now, settings.history_share),
        throughput=smoothed(before.throughput, sample.throughput_now, settings.history_share),
    )


# -- reporting


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    is_due: bool
    because: str


def report_due(new: BrokerLoad, last: BrokerLoad | None, settings: BalanceSettings) -> ReportVerdict:
    """Whether the load is to be published, given the one that was published last; None if there is none.

    Pulsar reports a change of more than its threshold at once, and an unchanged load after 15 minutes. The views are
    topics that lose messages, and a lost report would be missed for that long; so an unchanged load is reported again
    after a minute (`report_refresh_s`), and after Pulsar's key at the latest.
    """
    if last is None:
        return ReportVerdict(True, "nothing was reported yet")
    age_ms = new.measured_ms - last.measured_ms
    if age_ms < settings.report_interval_ms_min:
        return ReportVerdict(
            False, f"the last report is younger than {span(settings.report_interval_ms_min)}"
        )
    if age_ms >= settings.report_age_ms_max:
        return ReportVerdict(True, f"the last report is {span(age_ms)} old")
    changes = (
        # A load is a share already, so its change counts in points; the others change relative to themselves.
        (abs(weighted(new, settings) - weighted(last, settings)), "load"),
        (_change(last.msg_rate, new.msg_rate), "message rate"),
        (_change(last.throughput_now, new.throughput_now), "throughput"),
        (_change(last.bundles, new.bundles), "number of bundles"),
    )
    most, what = max(changes, key=lambda one: one[0])
    moved = "changed from zero" if math.isinf(most) else f"changed by {percent(most)}"
    return ReportVerdict(100.0 * most > settings.report_change_percent, f"the {what} {moved}")


def _change(old: float, new: float) -> float:
    if old == new:
        return 0.0
    return abs(new - old) / old if old else math.inf


# -- time to live


def is_outdated(measured_ms: int, now_ms: int, settings: BalanceSettings) -> bool:
    """Whether a report is too old to count; the leader then removes its key from the view."""
    return now_ms - measured_ms > 1_000 * settings.load_ttl_s


def outdated(
    reports: Mapping[str, BrokerLoad] | Mapping[str, TopBundles], now_ms: int, settings: BalanceSettings
) -> list[str]:
    """The keys of the reports that are too old, in order."""
    return sorted(key for key, one in reports.items() if is_outdated(one.measured_ms, now_ms, settings))


# -- bundles


def namespace_of(bundle: str) -> str:
    return bundle.rpartition("/")[0]


def weight_order(one: BundleLoad) -> tuple[int, int, int, int]:
    """Pulsar's order of bundles, the lightest first: bytes in, bytes out, messages, then topics and sessions."""
    return (
        _steps(one.throughput_in, _THROUGHPUT_STEP),
        _steps(one.throughput_out, _THROUGHPUT_STEP),
        _steps(one.msg_rate, _MSG_RATE_STEP),
        (one.topics + one.sessions) // _CROWD_STEP,
    )


def _steps(value: float, step: float) -> int:
    return math.floor(value / step + 0.5)


def top_bundles(
    bundles: Iterable[BundleLoad], now_ms: int, has_policies: Callable[[str], bool], settings: BalanceSettings
) -> TopBundles:
    """The report of a broker that owns these bundles. `has_policies` tells of a namespace whether it has an isolation
    policy or an anti-affinity group.

    Bundles without traffic, of the system's namespace, of namespaces that are never shed, and (unless the settings
    allow them) with policies are left out: the leader must not move them.
    """
    moving = (
        one
        for one in bundles
        if one.throughput + one.msg_rate > 0
        and (namespace := namespace_of(one.bundle)) != str(SYSTEM_NAMESPACE)
        and namespace not in settings.unshed_namespaces
        and (settings.sheds_bundles_with_policies or not has_policies(namespace))
    )
    # The name breaks ties, so that the same bundles are reported each time.
    heaviest = heapq.nlargest(
        settings.top_bundles_max, moving, key=lambda one: (weight_order(one), one.bundle)
    )
    return TopBundles(now_ms, tuple(reversed(heaviest)))


def bundle_loads(load: BrokerLoad, bundles: Iterable[BundleLoad]) -> dict[str, float]:
    """What each of these bundles contributes to its broker's load.

    A loop spends its time on messages and on bytes; so the mean of both shares counts. Broker and bundles are not
    measured at one moment: the bundles together never come out heavier than their broker.
    """
    listed = list(bundles)
    messages = max(load.msg_rate, math.fsum(one.msg_rate for one in listed))
    data = max(load.throughput_now, math.fsum(one.throughput for one in listed))
    kinds = (messages > 0) + (data > 0)
    if not kinds:
        return {one.bundle: 0.0 for one in listed}
    return {
        one.bundle: load.load
        * ((one.msg_rate / messages if messages else 0.0) + (one.throughput / data if data else 0.0))
        / kinds
        for one in listed
    }
