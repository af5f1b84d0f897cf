"""Figures of the load balancer, for Prometheus: Pulsar's names and labels where it has them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.orphans import RepairKind
from anabranch.balance.core.states import BrokerRun, BundleState
from anabranch.broker.balance.channel.state_log import StateLog
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult, ChannelEvent
from anabranch.broker.observe.metrics_page import Page, escaped

# The event loop goes on with other work after so many bundles.
BUNDLES_PER_TURN: Final = 5000
# As Pulsar counts: every attempt, and those of them that failed.
_TOTAL: Final = "Total"


class MeasuredBalancer(Protocol):
    """The parts of a balancer that its metrics are computed from."""

    @property
    def me(self) -> BrokerRun: ...

    @property
    def counts(self) -> BalanceCounts: ...

    @property
    def states(self) -> StateLog: ...

    @property
    def load(self) -> BrokerLoad | None:
        """As last measured."""

    @property
    def term(self) -> int:
        """The term of this broker's leadership; 0 while it does not lead."""

    @property
    def lookups_waiting(self) -> int: ...

    def why_safe_mode(self) -> str | None: ...


async def add_balancer(page: Page, cluster: str, balancer: MeasuredBalancer) -> None:
    labels = f'{cluster},broker="{escaped(balancer.me.broker)}"'
    if balancer.load is not None:
        _add_load(page, f'{labels},metric="loadBalancing"', balancer.load)
    _add_decisions(page, labels, balancer)
    _add_channel(page, f'{labels},metric="sunitStateChn"', balancer.counts)
    await _add_states(page, labels, balancer)


def _add_load(page: Page, labels: str, load: BrokerLoad) -> None:
    shares = {
        "pulsar_lb_cpu_usage": load.cpu,
        "pulsar_lb_memory_usage": load.memory,
        "pulsar_lb_directMemory_usage": load.direct_memory,
        "pulsar_lb_bandwidth_in_usage": load.bandwidth_in,
        "pulsar_lb_bandwidth_out_usage": load.bandwidth_out,
        "anabranch_balancer_disk_usage": load.disk,
    }
    page.add_all(labels, {name: 100 * share for name, share in shares.items()})
    page.add("pulsar_lb_resource_usage", f'{labels},feature="max"', max(shares.values()))
    page.add("pulsar_lb_resource_usage", f'{labels},feature="max_ema"', load.load)


def _add_decisions(page: Page, labels: str, balancer: MeasuredBalancer) -> None:
    counts = balancer.counts
    unloading, splitting = f'{labels},metric="bundleUnloading"', f'{labels},metric="bundlesSplit"'
    page.add("pulsar_lb_unload_broker_total", unloading, counts.shed_brokers)
    page.add("pulsar_lb_unload_bundle_total", unloading, counts.unloaded_bundles)
    page.add("pulsar_lb_bundles_split_total", splitting, counts.split_bundles)
    for (result, reason), count in sorted(counts.unloads.items()):
        told = f'{unloading},result="{result}",reason="{escaped(reason)}"'
        page.add("pulsar_lb_unload_broker_breakdown_total", told, count)
    for (result, reason), count in sorted(counts.splits.items()):
        told = f'{splitting},result="{result}",reason="{escaped(reason)}"'
        page.add("pulsar_lb_bundles_split_breakdown_total", told, count)
    for result in BalanceResult:
        told = f'{labels},metric="assign",result="{result}"'
        page.add("pulsar_lb_assign_broker_breakdown_total", told, counts.assigned[result])
    if balancer.term:
        for stat, value in (("avg", counts.load_mean), ("std", counts.load_std)):
            told = f'{unloading},feature="max_ema",stat="{stat}"'
            page.add("pulsar_lb_resource_usage_stats", told, value)
    for kind, times in counts.move_times.items():
        page.add_histogram(f"pulsar_lb_{kind}_latency_ms", unloading, times)
    for result in BalanceResult:
        told = f'{labels},result="{result}"'
        page.add("anabranch_balancer_load_reports_total", told, counts.reports[result])


def _add_channel(page: Page, labels: str, counts: BalanceCounts) -> None:
    for state in sorted({*counts.lookups, *counts.failed_lookups}):
        for result, count in (
            (_TOTAL, counts.lookups[state]),
            (BalanceResult.FAILURE, counts.failed_lookups[state]),
        ):
            told = f'{labels},state="{escaped(state)}",result="{result}"'
            page.add("pulsar_sunit_state_chn_owner_lookup_total", told, count)
    for event in ChannelEvent:
        failed = counts.published[event, BalanceResult.FAILURE]
        total = failed + counts.published[event, BalanceResult.SUCCESS]
        for result, count in ((_TOTAL, total), (BalanceResult.FAILURE, failed)):
            told = f'{labels},event="{event}",result="{result}"'
            page.add("pulsar_sunit_state_chn_event_publish_ops_total", told, count)
        told = f'{labels},event="{event}",result="{_TOTAL}"'
        page.add("pulsar_sunit_state_chn_subscribe_ops_total", told, counts.read[event])
    failure = f'{labels},result="{BalanceResult.FAILURE}"'
    page.add("pulsar_sunit_state_chn_cleanup_ops_total", failure, counts.failed_repairs)
    page.add_all(
        labels,
        {
            "pulsar_sunit_state_chn_orphan_su_cleanup_ops_total": counts.repairs[RepairKind.REASSIGN],
            "pulsar_sunit_state_chn_su_tombstone_cleanup_ops_total": counts.repairs[RepairKind.FORGET],
        },
    )


async def _add_states(page: Page, labels: str, balancer: MeasuredBalancer) -> None:
    log, counts = balancer.states, balancer.counts
    states: Counter[BundleState] = Counter()
    owned = 0
    for number, change in enumerate(list(log.fold.bundles.values()), 1):
        if change.state is not None:
            states[change.state] += 1
        owned += change.owner == balancer.me
        if number % BUNDLES_PER_TURN == 0:
            await asyncio.sleep(0)
    for state in BundleState:
        page.add("anabranch_bundle_states", f'{labels},state="{state}"', states[state])
    page.add("pulsar_sunit_state_chn_owned_su_total", f'{labels},metric="sunitStateChn"', owned)
    page.add_all(
        labels,
        {
            "anabranch_bundle_lookups_waiting": balancer.lookups_waiting,
            "anabranch_bundle_channel_lag_seconds": log.lag_s,
            "anabranch_bundle_channel_following": int(log.is_following),
            "anabranch_bundle_changes_rejected_total": log.fold.rejected,
            "anabranch_balancer_leading": int(balancer.term > 0),
            "anabranch_balancer_term": log.fold.term,
            "anabranch_balancer_safe_mode": int(balancer.why_safe_mode() is not None),
        },
    )
    for kind in RepairKind:
        page.add("anabranch_bundle_repairs_total", f'{labels},kind="{kind}"', counts.repairs[kind])
    page.add_histogram("anabranch_bundle_lookup_wait_seconds", labels, counts.lookup_waits)
