"""What a broker does to bundles is counted and kept with its reason, wherever it was decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from anabranch.balance.core.states import BrokerRun, BundleChange
from anabranch.balance.core.transfer import LeaderHand, duty_of, ended, owned, split
from anabranch.broker.balance.balance_log import BalanceLog
from anabranch.broker.balance.channel.metadata_state_log import MetadataStateLog
from anabranch.broker.balance.channel.state_log import ChangeRejected
from anabranch.broker.balance.counted_state_log import CountedStateLog
from anabranch.broker.balance.counts import ADMIN, BalanceCounts, BalanceResult, ChannelEvent, MoveTime
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.bundles import BundleName

ME, OTHER = BrokerRun("me:1", "r1"), BrokerRun("other:1", "r2")
BUNDLE = BundleName.parse("public/default/0x00000000_0x80000000")
PARTS = tuple(
    BundleName.parse(f"public/default/{span}") for span in ("0x00000000_0x40000000", "0x40000000_0x80000000")
)


@dataclass
class Counted:
    stored: MetadataStateLog
    counts: BalanceCounts = field(default_factory=BalanceCounts)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.decisions = BalanceLog(lambda: 0)
        self.log = CountedStateLog(self.stored, self.counts, self.decisions, ME, lambda: self.now_s)

    @property
    def now(self) -> BundleChange:
        return self.log.fold.bundles[BUNDLE]

    async def over(self, run: BrokerRun) -> None:
        """The bundle's next step is done by that broker."""
        duty = duty_of(run, self.now)
        assert duty is not None
        await self.log.append(ended(duty, self.now, run, 0))

    async def assigned(self, run: BrokerRun = ME) -> None:
        await self.log.append(owned(BUNDLE, 1, run, ME, 0, "a client asked"))
        await self.over(run)

    def told(self) -> list[tuple[str, str, str]]:
        return [(one.act.value, one.label, one.because) for one in reversed(self.decisions.recent())]


@pytest.fixture
async def counted() -> AsyncIterator[Counted]:
    made = Counted(MetadataStateLog(await MemoryMetadata(lambda: 0).connect()))
    await made.log.start()
    await made.log.lead(1)
    yield made
    await made.log.close()


async def test_assignments_are_counted_and_one_that_came_second_is_skipped(counted: Counted) -> None:
    await counted.assigned()
    with pytest.raises(ChangeRejected):
        await counted.log.append(owned(BUNDLE, 1, OTHER, ME, 0, "another client asked"))
    assert counted.counts.assigned == {BalanceResult.SUCCESS: 1, BalanceResult.SKIP: 1}
    assert counted.told() == [("assign", "Success", "a client asked")]
    assert counted.counts.published[ChannelEvent.ASSIGN, BalanceResult.FAILURE] == 1
    assert counted.counts.read[ChannelEvent.ASSIGN] == 2


async def test_moves_that_no_rule_has_decided_were_asked_for(counted: Counted) -> None:
    await counted.assigned()
    await counted.log.append(LeaderHand(ME, 1).transfer(counted.now, OTHER, 0, "an operator asked"))
    await counted.over(OTHER)
    await counted.log.append(LeaderHand(ME, 1).unload(counted.now, 0, "an operator asked again"))
    assert counted.counts.unloads == {(BalanceResult.SUCCESS, ADMIN): 2}
    assert counted.told()[1:] == [
        ("transfer", ADMIN, "an operator asked"),
        ("unload", ADMIN, "an operator asked again"),
    ]
    [told] = counted.decisions.recent(str(BUNDLE), most=1)
    assert (told.source, told.destination) == (OTHER.broker, "")


async def test_what_a_rule_is_deciding_it_tells_itself(counted: Counted) -> None:
    await counted.assigned()
    counted.counts.deciding.add(str(BUNDLE))
    await counted.log.append(LeaderHand(ME, 1).transfer(counted.now, OTHER, 0, "overloaded"))
    with pytest.raises(ChangeRejected):
        await counted.log.append(LeaderHand(ME, 1).unload(counted.now, 0, "overloaded"))
    assert counted.counts.unloads == {}
    assert len(counted.told()) == 1


async def test_a_split_by_hand_is_counted(counted: Counted) -> None:
    await counted.assigned()
    await counted.log.append(split(counted.now, PARTS, ME, 0, "an operator asked"))
    assert counted.counts.splits == {(BalanceResult.SUCCESS, ADMIN): 1}
    assert counted.told()[-1] == ("split", ADMIN, "an operator asked")
    with pytest.raises(ChangeRejected):
        await counted.log.append(split(counted.now, PARTS, ME, 0, "again"))
    assert counted.counts.splits[BalanceResult.FAILURE, "Unknown"] == 1


async def test_repairs_of_the_leader_are_counted_by_kind(counted: Counted) -> None:
    await counted.assigned(OTHER)
    hand = LeaderHand(ME, 1)
    await counted.log.append(hand.reassign(counted.now, ME, 0, "other:1 is gone"))
    await counted.log.append(hand.remove(counted.now, 0, "no namespace has it"))
    await counted.log.append(hand.forget(counted.now, 0, "long enough"))
    assert counted.counts.repairs == {"reassign": 1, "remove": 1, "forget": 1}
    assert ("repair", "reassign", "other:1 is gone") in counted.told()
    await counted.assigned(OTHER)
    with pytest.raises(ChangeRejected):
        await counted.log.append(LeaderHand(ME, 0).remove(counted.now, 0, "of no term"))
    assert counted.counts.failed_repairs == 1


async def test_the_time_of_a_move_is_measured_at_both_ends(counted: Counted) -> None:
    await counted.assigned()
    assert counted.counts.move_times[MoveTime.ASSIGN].count == 1
    await counted.log.append(LeaderHand(ME, 1).transfer(counted.now, OTHER, 0, "asked"))
    counted.now_s += 0.020
    for _ in range(2):
        # What is begun again after it was done counts once.
        counted.log.released(BUNDLE)
    counted.now_s += 0.005
    await counted.over(OTHER)
    for kind, ms in ((MoveTime.UNLOAD, 25.0), (MoveTime.RELEASE, 20.0), (MoveTime.DISCONNECT, 5.0)):
        given = counted.counts.move_times[kind]
        assert given.count == 1
        assert given.sum == pytest.approx(ms)
    assert counted.counts.move_times[MoveTime.ASSIGN].count == 1
