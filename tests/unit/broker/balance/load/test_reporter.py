"""A broker's measurement of itself and of its bundles, and when the leader hears of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from anabranch.balance.core.load import BrokerLoad, BundleLoad, TopBundles
from anabranch.broker.balance.counts import BalanceCounts, BalanceResult
from anabranch.broker.balance.load.bundle_figures import TOPICS_PER_TURN, bundle_figures
from anabranch.broker.balance.load.reporter import BrokerLoadReporter
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.errors import NotReadyError
from anabranch.model.bundles import BundleName, bundle_ranges
from anabranch.model.names import TopicName
from unit.broker.balance.load.rig import Situation
from unit.broker.balance.load.traffic import Consumer, Subscribed, Traffic

ME = "me:1"
HALVES = bundle_ranges(("0x00000000", "0x80000000", "0xffffffff"))


def topic(local: str, namespace: str = "public/default") -> TopicName:
    return TopicName.parse(f"persistent://{namespace}/{local}")


def in_half(half: int) -> TopicName:
    """A topic of the first or the second bundle."""
    return next(name for n in range(100) if HALVES.of(name := topic(f"t{n}")).range == HALVES.names[half])


@dataclass
class Reporting:
    """A broker whose topics, bundles and resources a test sets, and the reports that its leader took."""

    situation: Situation = field(default_factory=Situation)
    topics: list[Traffic] = field(default_factory=list)
    owned: list[BundleName] = field(default_factory=list)
    used: ResourceShares = field(default_factory=ResourceShares)
    reports: list[tuple[BrokerLoad, TopBundles]] = field(default_factory=list)
    counts: BalanceCounts = field(default_factory=BalanceCounts)
    refused: bool = False
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.reporter = BrokerLoadReporter(
            ME,
            self.situation.current,
            lambda: self.topics,
            self,
            self.shares,
            self.report,
            self.situation.now_ms,
            self.counts,
            has_policies=lambda namespace: namespace == "bound/space",
        )

    def bundle(self, topic: TopicName) -> BundleName | None:
        return HALVES.of(topic)

    def owned_by(self, broker: str) -> list[BundleName]:
        return self.owned if broker == ME else []

    def shares(self, bytes_in: float, bytes_out: float) -> ResourceShares:
        return self.used

    async def report(self, load: BrokerLoad, top: TopBundles) -> None:
        if self.refused:
            raise NotReadyError("no broker leads at this moment")
        self.reports.append((load, top))
        self.taken.set()

    async def after(self, ms: int) -> bool:
        """Whether the round after so long reported."""
        self.situation.ms += ms
        before = len(self.reports)
        await self.reporter.round()
        return len(self.reports) > before


async def test_bundles_have_the_sums_of_their_topics() -> None:
    first, second = in_half(0), in_half(1)
    topics = [
        Traffic(first, (10.0, 1000.0), ["p"], {"s": Subscribed([Consumer((5.0, 500.0, 0.0))] * 2)}),
        Traffic(first.namespace.topic(first.local), (1.0, 100.0)),
        Traffic(second, (3.0, 30.0)),
    ]
    found = await bundle_figures(topics, HALVES.of, HALVES.bundles(first.namespace))
    one, two = (f"public/default/{name}" for name in HALVES.names)
    assert found == {
        one: BundleLoad(
            bundle=one,
            msg_rate_in=11.0,
            msg_rate_out=10.0,
            throughput_in=1100.0,
            throughput_out=1000.0,
            topics=2,
            sessions=3,
        ),
        two: BundleLoad(bundle=two, msg_rate_in=3.0, throughput_in=30.0, topics=1),
    }


async def test_a_bundle_without_an_open_topic_is_there_and_idle() -> None:
    owned = HALVES.bundles(topic("t").namespace)
    assert [one.topics for one in (await bundle_figures([], HALVES.of, owned)).values()] == [0, 0]


async def test_the_loop_goes_on_while_many_topics_are_summed() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await bundle_figures([Traffic(topic("t"))] * (3 * TOPICS_PER_TURN), HALVES.of, [])
    assert turns == 3
    counting.cancel()


async def test_a_report_has_the_brokers_shares_rates_and_heaviest_bundles() -> None:
    rig = Reporting(used=ResourceShares(0.5, 0.25, 0.1, 0.2, 0.3, 0.4))
    rig.owned = HALVES.bundles(topic("t").namespace)
    rig.topics = [Traffic(in_half(0), (10.0, 1e6)), Traffic(topic("x", "pulsar/system"), (10.0, 1e6))]
    await rig.reporter.round()
    [(load, top)] = rig.reports
    assert (load.cpu, load.memory, load.direct_memory) == (0.5, 0.25, 0.1)
    assert (load.bandwidth_in, load.bandwidth_out, load.disk, load.load) == (0.2, 0.3, 0.4, 0.5)
    assert (load.msg_rate_in, load.throughput_in, load.bundles, load.topics) == (20.0, 2e6, 2, 2)
    assert [one.bundle for one in top.bundles] == [f"public/default/{HALVES.names[0]}"]
    assert rig.reporter.load == load
    assert set(rig.reporter.bundles) >= {f"public/default/{name}" for name in HALVES.names}


async def test_bundles_with_policies_are_not_offered_to_the_leader() -> None:
    rig = Reporting()
    rig.topics = [Traffic(topic("t", "bound/space"), (10.0, 1e6))]
    await rig.reporter.round()
    assert rig.reports[0][1].bundles == ()
    rig.situation.change(sheds_bundles_with_policies=True)
    assert await rig.after(60_000)
    assert len(rig.reports[1][1].bundles) == 1


async def test_a_steady_load_is_reported_once_a_minute() -> None:
    rig = Reporting(used=ResourceShares(0.5))
    assert await rig.after(0)
    assert [await rig.after(5000) for _ in range(12)] == [False] * 11 + [True]


async def test_a_load_that_has_moved_is_reported_but_not_more_often_than_allowed() -> None:
    rig = Reporting(used=ResourceShares(0.5))
    assert await rig.after(0)
    rig.used = ResourceShares(0.65)
    assert not await rig.after(4999)
    assert await rig.after(1)
    rig.used = ResourceShares(0.7)
    assert not await rig.after(5000)


async def test_loads_are_smoothed_until_other_bundles_come() -> None:
    rig = Reporting(used=ResourceShares(0.0))
    await rig.after(0)
    rig.used = ResourceShares(1.0)
    await rig.after(5000)
    assert rig.reporter.load is not None
    assert rig.reporter.load.load == pytest.approx(0.1)
    rig.owned = HALVES.bundles(topic("t").namespace)
    await rig.after(5000)
    assert rig.reporter.load.load == 1.0


async def test_what_was_not_taken_is_reported_again_in_the_next_round() -> None:
    rig = Reporting(refused=True)
    assert not await rig.after(0)
    rig.refused = False
    assert await rig.after(5000)
    assert rig.counts.reports == {BalanceResult.FAILURE: 1, BalanceResult.SUCCESS: 1}


async def test_another_leader_hears_at_once() -> None:
    rig = Reporting()
    rig.situation.change(report_interval_ms_min=3_600_000)
    running = asyncio.create_task(rig.reporter.run())
    async with asyncio.timeout(10):
        await rig.taken.wait()
        rig.taken.clear()
        rig.reporter.report_now()
        await rig.taken.wait()
    assert len(rig.reports) == 2
    running.cancel()


async def test_a_round_that_fails_does_not_end_the_rounds(caplog: pytest.LogCaptureFixture) -> None:
    rig = Reporting()
    rig.situation.change(report_interval_ms_min=1)
    rig.topics = [Traffic(topic("t"), ("no number", 0.0))]  # type: ignore[arg-type]
    running = asyncio.create_task(rig.reporter.run())
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(10):
            while not caplog.records:  # noqa: ASYNC110 - the log is no event.
                await asyncio.sleep(0)
            rig.topics = []
            await rig.taken.wait()
    running.cancel()


async def test_the_debug_mode_logs_every_round(caplog: pytest.LogCaptureFixture) -> None:
    rig = Reporting()
    with caplog.at_level(logging.INFO):
        await rig.after(0)
        assert caplog.records == []
        rig.situation.change(is_debugging=True)
        await rig.after(5000)
    assert "not sent" in caplog.text
