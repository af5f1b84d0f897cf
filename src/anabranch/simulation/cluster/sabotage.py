"""Faults built into a simulated cluster on purpose, to verify that a run notices them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Final

from anabranch.broker.broker import Broker
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.scalable.owner.segments import SegmentOwner
from anabranch.controller.ports import SegmentStatus
from anabranch.controller.records import Records
from anabranch.metadata.port import Versioned
from anabranch.model.hidden_writes import Fate, WriteBatch, WriteRecord
from anabranch.model.names import TopicName
from anabranch.model.position import Incarnation, LedgerId
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import Segment
from anabranch.simulation.core.replan import with_other_buckets
from anabranch.simulation.machine.disk import SlowLog
from anabranch.simulation.machine.store import Store
from anabranch.storage.port import LedgerState, LiveLedger


class Sabotage(Enum):
    PUBLISH_UNSEALED = "owners answer that a segment is sealed and leave it open"
    FORGET_CURSORS = "children are made without the subscriptions' cursors"
    HAND_OUT_EARLY = "owners report every sealed segment as drained"
    LEAVE_UNFENCED = "a broker that takes a topic over does not fence the one that had it"
    RELEASE_OPEN = "a broker says that it has released a topic, and goes on serving it"
    BELIEVE_OLD_READS = "brokers ask for fresh reads and get old ones"
    KNOW_LAST_OWNER = "a log does not learn of the ledgers that owners before a topic's last one wrote"
    SHOW_LOSERS = "owners show every attempt of a batch that is decided"
    LAST_CHANGE_WINS = "the bundle state channel takes every change, valid or not"
    OBEY_OLD_LEADERS = "the bundle state channel takes changes of leaders that were replaced"
    OBEY_FORMER_RUN = "a broker acts on states of bundles that name an earlier start of it"
    CUT_FIRST = "a split changes the boundaries before its children are in the channel"
    ACT_BEFORE_STORED = "a broker acts on its own changes of bundles before they are stored"
    REPLAN_N = "a leader that resumes a rebucket chooses another number of entry buckets than was planned"
    HAND_OVER_EARLY = (
        "an entry bucket goes to its new owner before the former one has acknowledged what it has of it"
    )
    SHARE_UNKNOWING = "consumers that know nothing of entry buckets are told to share segments"
    ONE_ID_FOR_ALL = "owners keep one sequence id for all entry buckets of a producer"
    SETTLE_UP_TO = (
        "a producer takes the highest id that a segment has of it for the last of each entry bucket"
    )
    ROUTE_BY_MIN = "an entry counts for the bucket of its least hash alone"
    OUTER_KEY = "an entry without a range of hashes counts for the bucket of its first message's key"
    ACK_FOR_OTHERS = "what a sharer acknowledges counts for earlier entries of the others, too"
    FORGET_LAG = "a bucket that was passed over does not read what it has missed"
    FORGET_ALL_OTHERS = "a reader of some buckets is not sent entries that may have keys of any bucket"
    FURTHEST_OF_ALL = "merging checkpoints takes the furthest bucket's position for every bucket"
    LEAVE_ORPHANS = "the leader leaves bundles of brokers that are gone as they are"


# Those that only a run with the load balancer can show.
OF_THE_BALANCER: Final = frozenset(
    (
        Sabotage.LAST_CHANGE_WINS,
        Sabotage.OBEY_OLD_LEADERS,
        Sabotage.OBEY_FORMER_RUN,
        Sabotage.CUT_FIRST,
        Sabotage.ACT_BEFORE_STORED,
        Sabotage.LEAVE_ORPHANS,
    )
)
# Those that only segments with several entry buckets can show.
OF_SHARING: Final = frozenset(
    (
        Sabotage.HAND_OVER_EARLY,
        Sabotage.SHARE_UNKNOWING,
        Sabotage.ONE_ID_FOR_ALL,
        Sabotage.SETTLE_UP_TO,
        Sabotage.ROUTE_BY_MIN,
        Sabotage.OUTER_KEY,
        Sabotage.ACK_FOR_OTHERS,
        Sabotage.FORGET_LAG,
    )
)
# Those that only checkpoint groups whose members share segments can show.
OF_GROUPS: Final = frozenset((Sabotage.FORGET_ALL_OTHERS, Sabotage.FURTHEST_OF_ALL))


class LyingOwner(SegmentOwner):
    """An owner that reports work which it has not done."""

    def __init__(self, broker: Broker, sabotage: frozenset[Sabotage]) -> None:
        super().__init__(broker.metadata, broker, broker.new_topics, broker.schemas, broker.now_ms)
        self._sabotage = sabotage

    async def create(self, topic: TopicName, segment: Segment, subscriptions: Sequence[str]) -> None:
        given = () if Sabotage.FORGET_CURSORS in self._sabotage else subscriptions
        await super().create(topic, segment, given)

    async def seal(self, topic: TopicName, segment: Segment) -> None:
        if Sabotage.PUBLISH_UNSEALED not in self._sabotage:
            await super().seal(topic, segment)

    async def status(self, topic: TopicName, segment: Segment) -> SegmentStatus:
        told = await super().status(topic, segment)
        if Sabotage.HAND_OUT_EARLY not in self._sabotage:
            return told
        cursors = {name: replace(c, is_drained=told.is_sealed) for name, c in told.subscriptions.items()}
        return replace(told, subscriptions=cursors)


class ReplanningRecords(Records):
    async def topic(self, topic: TopicName, *, fresh: bool = False) -> tuple[ScalableTopic, int] | None:
        found = await super().topic(topic, fresh=fresh)
        if found is None or found[0].plan is None:
            return found
        record, version = found
        return replace(record, plan=with_other_buckets(record, found[0].plan)), version


class Generous(WriteRecord):
    """Declares every attempt the winner."""

    def fates(self, attempts: Iterable[str]) -> dict[str, Fate]:
        return dict.fromkeys(attempts, Fate.VISIBLE) if self.is_decided else super().fates(attempts)


class GenerousRecords(WriteRecords):
    async def get(self, batch: WriteBatch) -> WriteRecord | None:
        found = await super().get(batch)
        if found is None:
            return None
        return Generous(**{one.name: getattr(found, one.name) for one in fields(found)})


class UnfencedLog(SlowLog):
    """A log whose former writers never learn that they were replaced."""

    async def take(
        self, incarnation: Incarnation, ledgers: Collection[LedgerId] | None
    ) -> Mapping[LedgerId, LedgerState]:
        taken = await super().take(incarnation, ledgers)
        if (wal := self._medium.wals.get(incarnation)) is not None:
            wal.fenced.clear()
            wal.is_fenced = False
        return taken


class HastyLog(SlowLog):
    """A log that gives the last word on ledgers that are still written."""

    async def release(self, ledgers: Collection[LedgerId]) -> Mapping[LedgerId, LedgerState]:
        return self._wal.states(ledgers)


class OldReads(Store):
    """A store whose fresh reads are as old as any."""

    async def get(self, path: str, *, fresh: bool = False) -> Versioned | None:
        return await super().get(path, fresh=False)


class ForgetfulLog(SlowLog):
    """A log that has heard only of ledgers which were there when it started, or which it took itself."""

    def know(self, live: Iterable[LiveLedger]) -> None:
        """Forgets it."""


BAD_LOGS: Final[Mapping[Sabotage, type[SlowLog]]] = {
    Sabotage.LEAVE_UNFENCED: UnfencedLog,
    Sabotage.RELEASE_OPEN: HastyLog,
    Sabotage.KNOW_LAST_OWNER: ForgetfulLog,
}


def corrupt(broker: Broker, sabotage: frozenset[Sabotage]) -> None:
    """Replaces the broker's segment owner with a lying one, also for parts that hold it already."""
    if Sabotage.RELEASE_OPEN in sabotage:

        async def release(name: TopicName, ledger: LedgerId) -> LedgerState | None:
            return (await broker.log.release([ledger])).get(ledger)

        setattr(broker.hand_over, "release", release)  # noqa: B010
        setattr(broker.hand_over, "owners_changed", lambda bundles: None)  # noqa: B010
    if Sabotage.SHOW_LOSERS in sabotage:
        generous = GenerousRecords(broker.metadata, broker.config.hidden_writes_lease_ms)
        setattr(broker.write_records, "get", generous.get)  # noqa: B010
    if Sabotage.REPLAN_N in sabotage:
        assert broker.scalable is not None
        setattr(broker.scalable.records, "topic", ReplanningRecords(broker.metadata).topic)  # noqa: B010
    liar = LyingOwner(broker, sabotage)
    for verb in ("create", "seal", "status"):
        setattr(broker.segment_owner, verb, getattr(liar, verb))
