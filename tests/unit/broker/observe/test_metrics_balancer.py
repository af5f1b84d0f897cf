"""The balancer's figures: every one that is declared, under Pulsar's labels."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.orphans import RepairKind
from anabranch.balance.core.states import BrokerRun
from anabranch.balance.core.transfer import LeaderHand, owned
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.channel.state_log import ChangeRejected, StateLog
from anabranch.broker.balance.counted_state_log import CountedStateLog
from anabranch.broker.balance.counts import ADMIN, BalanceCounts, BalanceResult, MoveTime
from anabranch.broker.observe.metric_names import METRICS
from anabranch.broker.observe.metrics_balancer import add_balancer
from anabranch.broker.observe.metrics_page import Page
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.bundles import BundleName

ME, OTHER = BrokerRun("me:6650", "r1"), BrokerRun("other:6650", "r2")
ONE, TWO = (
    BundleName.parse(f"public/default/{edges}")
    for edges in ("0x00000000_0x80000000", "0x80000000_0xffffffff")
)


@dataclass
class Balancer:
    """Implements `MeasuredBalancer`."""

    states: StateLog
    counts: BalanceCounts
    me: BrokerRun = ME
    load: BrokerLoad | None = None
    term: int = 0
    lookups_waiting: int = 0
    doubt: list[str] = field(default_factory=list)

    def why_safe_mode(self) -> str | None:
        return self.doubt[0] if self.doubt else None

    async def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        page = Page()
        await add_balancer(page, 'cluster="east"', self)
        self.text = b"".join(page.pieces()).decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    async def one(self, name: str, **labels: str) -> float:
        """The only sample of that name with those labels."""
        (value,) = [
            value
            for (found, has), value in (await self.samples()).items()
            if found == name and labels.items() <= has
        ]
        return value


@pytest.fixture
async def balancer() -> Any:
    counts = BalanceCounts()
    stored = MetadataStateLog(await MemoryMetadata(lambda: 0).connect())
    log = CountedStateLog(stored, counts, BalanceLog(lambda: 0), ME, lambda: 0.0)
    await log.start()
    yield Balancer(log, counts)
    await log.close()


async def test_every_metric_of_the_balancer_is_declared_and_told(balancer: Balancer) -> None:
    balancer.load, balancer.term = BrokerLoad(measured_ms=1, cpu=0.5, load=0.4), 3
    balancer.counts.unload(BalanceResult.SUCCESS, ADMIN)
    balancer.counts.split(BalanceResult.SUCCESS, ADMIN)
    balancer.counts.looked_up("assigned", False)
    await balancer.samples()
    told = set(re.findall(r"^# TYPE (\S+) (\S+)$", balancer.text, re.MULTILINE))
    ours = re.compile("pulsar_(lb|sunit)_|anabranch_(bundle|balancer)_")
    assert told == {(name, metric.kind) for name, metric in METRICS.items() if ours.match(name)}


async def test_loads_are_in_percent_and_the_smoothed_one_is_a_share(balancer: Balancer) -> None:
    balancer.load = BrokerLoad(measured_ms=1, cpu=0.5, disk=0.75, load=0.25)
    assert await balancer.one("pulsar_lb_cpu_usage", broker="me:6650", metric="loadBalancing") == 50.0
    assert await balancer.one("anabranch_balancer_disk_usage") == 75.0
    assert await balancer.one("pulsar_lb_resource_usage", feature="max") == 0.75
    assert await balancer.one("pulsar_lb_resource_usage", feature="max_ema") == 0.25


async def test_decisions_are_counted_by_result_and_reason(balancer: Balancer) -> None:
    counts = balancer.counts
    counts.unload(BalanceResult.SUCCESS, "Overloaded")
    counts.unload(BalanceResult.SUCCESS, ADMIN)
    counts.unload(BalanceResult.SKIP, "Balanced")
    counts.unload(BalanceResult.FAILURE)
    counts.split(BalanceResult.SUCCESS, "MsgRate")
    counts.split(BalanceResult.FAILURE)
    counts.assign(BalanceResult.SUCCESS)
    counts.shed_brokers = 1
    breakdown = "pulsar_lb_unload_broker_breakdown_total"
    assert await balancer.one(breakdown, result="Success", reason="Overloaded") == 1
    assert await balancer.one(breakdown, result="Skip", reason="Balanced") == 1
    assert await balancer.one(breakdown, result="Failure", reason="Unknown") == 1
    assert await balancer.one("pulsar_lb_unload_bundle_total", metric="bundleUnloading") == 2
    assert await balancer.one("pulsar_lb_unload_broker_total") == 1
    assert await balancer.one("pulsar_lb_bundles_split_total", metric="bundlesSplit") == 1
    splits = "pulsar_lb_bundles_split_breakdown_total"
    assert await balancer.one(splits, result="Success", reason="MsgRate") == 1
    assert await balancer.one("pulsar_lb_assign_broker_breakdown_total", result="Success") == 1
    assert await balancer.one("pulsar_lb_assign_broker_breakdown_total", result="Failure") == 0


async def test_the_spread_of_loads_is_told_by_the_leader_alone(balancer: Balancer) -> None:
    balancer.counts.load_mean, balancer.counts.load_std = 0.5, 0.3
    assert not [name for name, _ in await balancer.samples() if name == "pulsar_lb_resource_usage_stats"]
    assert await balancer.one("anabranch_balancer_leading") == 0
    balancer.term = 1
    assert await balancer.one("pulsar_lb_resource_usage_stats", feature="max_ema", stat="avg") == 0.5
    assert await balancer.one("pulsar_lb_resource_usage_stats", feature="max_ema", stat="std") == 0.3
    assert await balancer.one("anabranch_balancer_leading") == 1


async def test_states_owners_and_changes_of_the_channel_are_told(balancer: Balancer) -> None:
    log = balancer.states
    await log.lead(4)
    await log.append(owned(ONE, 1, ME, ME, 0, "asked"))
    await log.append(owned(TWO, 1, OTHER, ME, 0, "asked"))
    before = log.fold.get(ONE)
    assert before is not None
    with pytest.raises(ChangeRejected):
        await log.append(LeaderHand(ME, 4).transfer(before, OTHER, 0, "not yet assigned"))
    assert await balancer.one("anabranch_bundle_states", state="assigning") == 2
    assert await balancer.one("anabranch_bundle_states", state="assigned") == 0
    assert await balancer.one("pulsar_sunit_state_chn_owned_su_total") == 0
    published = "pulsar_sunit_state_chn_event_publish_ops_total"
    assert await balancer.one(published, event="Assign", result="Total") == 2
    assert await balancer.one(published, event="Unload", result="Total") == 1
    assert await balancer.one(published, event="Unload", result="Failure") == 1
    assert await balancer.one("pulsar_sunit_state_chn_subscribe_ops_total", event="Assign") == 2
    assert await balancer.one("anabranch_balancer_term") == 4
    assert await balancer.one("anabranch_bundle_channel_lag_seconds") == 0.0


async def test_lookups_waits_repairs_and_safe_mode_are_told(balancer: Balancer) -> None:
    counts = balancer.counts
    counts.looked_up("assigning", False)
    counts.looked_up("assigning", True)
    counts.lookup_waits.observe(0.3)
    counts.lookup_waits.observe(20.0)
    counts.repair(RepairKind.REASSIGN)
    counts.repair(RepairKind.FORGET)
    counts.failed_repairs += 1
    counts.move_times[MoveTime.RELEASE].observe(15.0)
    balancer.lookups_waiting = 7
    lookups = "pulsar_sunit_state_chn_owner_lookup_total"
    assert await balancer.one(lookups, state="assigning", result="Total") == 2
    assert await balancer.one(lookups, state="assigning", result="Failure") == 1
    assert await balancer.one("anabranch_bundle_lookup_wait_seconds_count") == 2
    assert await balancer.one("anabranch_bundle_lookups_waiting") == 7
    assert await balancer.one("pulsar_sunit_state_chn_orphan_su_cleanup_ops_total") == 1
    assert await balancer.one("pulsar_sunit_state_chn_su_tombstone_cleanup_ops_total") == 1
    assert await balancer.one("pulsar_sunit_state_chn_cleanup_ops_total", result="Failure") == 1
    assert await balancer.one("anabranch_bundle_repairs_total", kind="remove") == 0
    assert await balancer.one("pulsar_lb_release_latency_ms_bucket", le="20") == 1
    assert await balancer.one("anabranch_balancer_safe_mode") == 0
    balancer.doubt.append("the store is in doubt")
    assert await balancer.one("anabranch_balancer_safe_mode") == 1
