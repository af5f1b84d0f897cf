"""One topic's hidden writes: producers that are let in, decisions that are carried out, attempts that nobody finishes.

What is hidden is in `hidden.py`; the record of each batch is in the metadata store and is the only word on it. The
topic's own journal knows which attempt belongs to which batch before the attempt's producer may write, and each
decision before readers see its entries. So an owner that takes the topic over knows what is open: the attempts in the
state, and of the entries behind it those whose metadata names such an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from anabranch.broker import state as topic_state
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.hidden import HiddenEntries
from anabranch.broker.write_records import RENEWALS, Check
from anabranch.errors import AnabranchError
from anabranch.model.hidden_writes import (
    Fate,
    WriteBatch,
    WriteRecord,
    attempt_of_bits,
    checked_attempt,
    whole_topic,
)
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ATTEMPT_DROPPED, WRITE, WRITE_ATTEMPT, WRITE_BATCH, WRITE_DECIDED

if TYPE_CHECKING:
    from anabranch.broker.topic import Topic

log = logging.getLogger(__name__)

# Open at once in a topic: as many as a batch may have. All of them are in each of the topic's stored states.
ATTEMPTS_MAX = 200_000

# How attempts are given up: the record as it is then.
Drop = Callable[[WriteBatch, Iterable[str]], Awaitable[WriteRecord]]


class UndecidedError(NotAllowedError):
    """Nothing can be shown before the batch is decided."""


def hidden_as(metadata: Mapping[str, str]) -> tuple[WriteBatch, str] | None:
    """The batch and the attempt that a producer's metadata names; None for one whose entries everybody sees."""
    given = [metadata.get(key) for key in (WRITE, WRITE_BATCH, WRITE_ATTEMPT)]
    if given == [None, None, None]:
        return None
    write, batch, attempt = given
    if write is None or batch is None or attempt is None:
        raise NotAllowedError(f"a hidden producer names all of {WRITE}, {WRITE_BATCH} and {WRITE_ATTEMPT}")
    return WriteBatch.checked(write, batch), checked_attempt(attempt)


class OpenWrite(NamedTuple):
    """A batch that is not decided, as one topic knows it."""

    batch: WriteBatch
    attempts: tuple[str, ...]
    entries: int
    # Attempts that have one connected here.
    producers: int
    # For how long the topic's readers have been held by this batch; 0 if others hold them, or nobody does.
    held_s: float


class HiddenWrites:
    def __init__(self, topic: Topic, hidden: HiddenEntries) -> None:
        self._topic = topic
        self._hidden = hidden
        self._records = topic.broker.write_records
        # The decision made last: they are stored in order.
        self._storing: asyncio.Future[None] | None = None
        # A client that was connected to the owner before needs a while to come here.
        self._opened_ms = topic.broker.now_ms()
        # Where readers are held, and since when.
        self._held: tuple[Position, int] | None = None
        # When a producer of each open attempt was last seen here, for those that nobody finishes.
        self._seen_ms: dict[str, int] = {}
        # Since when each of those that have entries is known here to keep readers waiting.
        self._open_ms: dict[str, int] = {}

    @property
    def entries(self) -> HiddenEntries:
        """For the topic's stored state."""
        return self._hidden

    @property
    def has_attempts(self) -> bool:
        return bool(self._hidden.attempts)

    @property
    def has_open(self) -> bool:
        """Whether there are entries that readers may yet see."""
        return self._hidden.has_open

    @property
    def held_ms(self) -> int:
        """For how long readers have been held before the same entry, as far as this broker knows; 0 if they are not."""
        return 0 if self._held is None else max(0, self._topic.broker.now_ms() - self._held[1])

    def stats(self, *, with_names: bool) -> list[dict[str, Any]]:
        """What is open, for operators who wonder what readers wait for.

        Names are for those who may produce: with them a batch can be decided, and an attempt dropped."""
        if not with_names:
            attempts = self._hidden.attempts
            return [
                {"entries": sum(attempts[name].entries for name in names)}
                for names in self._hidden.batches().values()
            ]
        return [
            {
                "write": batch.write,
                "batch": batch.batch,
                "attempts": [
                    {
                        "attempt": name,
                        "entries": self._hidden.attempts[name].entries,
                    }
                    for name in names
                ],
            }
            for batch, names in self._hidden.batches().items()
        ]

    def open_writes(self) -> list[OpenWrite]:
        """The batches that have attempts here, decided nowhere as far as this topic knows."""
        connected, held_s = self._connected, self.held_ms / 1000
        stop = self._hidden.stop
        found: list[OpenWrite] = []
        for batch, names in sorted(self._hidden.batches().items()):
            attempts = [self._hidden.attempts[name] for name in names]
            is_holding = stop is not None and any(attempt.first == stop for attempt in attempts)
            found.append(
                OpenWrite(
                    batch,
                    tuple(sorted(names)),
                    entries=sum(attempt.entries for attempt in attempts),
                    producers=len(connected.intersection(names)),
                    held_s=held_s if is_holding else 0.0,
                )
            )
        return found

    # -- opening

    def replay(self, ledger: int, entry: int, metadata: pb.MessageMetadata) -> bool:
        """An entry that was stored after the topic's state; False if everybody may see it."""
        if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
            return False
        attempt = attempt_of_bits(metadata.txnid_most_bits, metadata.txnid_least_bits)
        if attempt not in self._hidden.attempts:
            return False
        self._hidden.note(attempt, ledger, entry, entry + 1)
        return True

    def show(self) -> None:
        """Lets readers see what they may, and nothing else."""
        stop = self._hidden.stop
        if stop is None:
            self._held = None
        elif self._held is None or self._held[0] != stop:
            self._held = (stop, self._topic.broker.now_ms())
        self._topic.log.hide(self._hidden.dropped, stop)

    # -- producers

    async def admit(self, batch: WriteBatch, attempt: str, role: str) -> None:
        """Returns once it is stored that what this attempt writes is hidden; NotAllowedError if it is too late.

        NotAuthorizedError if the batch is one of others: the role may not produce to the topics that it writes to."""
        place = await self._place(role)
        record = await self._records.attach(batch, place, self._may_join(batch, role))
        await self._check(batch, attempt, record)
        known = self._hidden.attempts.get(attempt)
        if known is not None and known.batch != batch:
            raise NotAllowedError(f"attempt {attempt} is one of {known.batch}: an attempt has one batch")
        if known is None and len(self._hidden.attempts) >= ATTEMPTS_MAX:
            raise NotAllowedError(
                f"{self._topic.name} has {ATTEMPTS_MAX} attempts at hidden writes that are not decided: decide or drop "
                "some of them first"
            )
        self._hidden.attach(attempt, batch)
        self._seen_ms[attempt] = self._topic.broker.now_ms()
        await self._topic.stored(topic_state.attempt_attached(attempt, batch))
        # The batch may have been decided, and this topic told, before it knew of the attempt.
        await self._check(batch, attempt, await self._records.get(batch))

    def check_open(self, batch: WriteBatch, attempt: str) -> str:
        """The attempt, if it may still write."""
        if attempt not in self._hidden.attempts:
            raise NotReadyError(f"attempt {attempt} at {batch} was decided just now: ask again to hear how")
        return attempt

    async def _place(self, role: str) -> TopicName:
        """What the role binds a record to: the whole topic, or a partition where it may write to nothing else of it."""
        whole = whole_topic(self._topic.name)
        if whole.is_classic and whole != self._topic.name:
            try:
                await self._topic.broker.rights.produce(role, whole)
            except NotAuthorizedError:
                return self._topic.name
        return whole

    def _may_join(self, batch: WriteBatch, role: str) -> Check:
        rights = self._topic.broker.rights

        async def check(record: WriteRecord) -> None:
            try:
                for topic in record.concerns:
                    await rights.produce(role, topic)
            except NotAuthorizedError:
                # Which topics they are, is none of the caller's business.
                raise NotAuthorizedError(
                    f"{batch} writes to topics that this role may not produce to: give the write another name"
                ) from None

        return check

    async def _check(self, batch: WriteBatch, attempt: str, record: WriteRecord | None) -> None:
        if record is None or record.fate(attempt) is Fate.OPEN:
            return
        await self._carry_out(batch, record)
        if record.is_decided:
            raise NotAllowedError(f"{WRITE_DECIDED}: {batch} is decided: nothing more is to be written")
        raise NotAllowedError(
            f"{ATTEMPT_DROPPED}: attempt {attempt} at {batch} was dropped: begin another one"
        )

    def appended(self, attempt: str, ledger: int, entry: int) -> None:
        """A producer of that attempt has appended an entry."""
        self._hidden.note(attempt, ledger, entry, entry + 1)
        if not self._topic.log.is_hiding:
            # Else readers stop before an earlier one.
            self.show()

    # -- decisions

    async def reveal(self, batch: WriteBatch) -> None:
        """Returns once what won is visible, durably, and the rest is dropped. UndecidedError if nothing won yet."""
        record = await self._records.get(batch)
        if record is None or not record.is_decided:
            raise UndecidedError(f"{batch} is not decided: PUT its winners first")
        await self._carry_out(batch, record)

    async def _carry_out(self, batch: WriteBatch, record: WriteRecord) -> None:
        fates = record.fates(self._hidden.of_batch(batch))
        visible = [name for name, fate in fates.items() if fate is Fate.VISIBLE]
        dropped = [name for name, fate in fates.items() if fate is Fate.DROPPED]
        if visible or dropped:
            self._decide(visible, dropped)
        # Also if it was decided before, and is being stored still.
        await self._all_stored()

    async def _all_stored(self) -> None:
        if self._storing is not None:
            await asyncio.shield(self._storing)

    def _decide(self, visible: Sequence[str], dropped: Sequence[str]) -> None:
        """Readers see it once it is stored, whether or not anybody still waits for that."""
        self._disconnect({*visible, *dropped})
        decision = self._hidden.decide(visible, dropped)
        for name in decision.attempts:
            self._seen_ms.pop(name, None)
            self._open_ms.pop(name, None)
        storing: asyncio.Future[None] = self._topic.broker.loop.create_future()

        def stored(error: Exception | None) -> None:
            if error is not None:
                storing.set_exception(error)
                storing.exception()  # The topic is closing; whoever waits hears it.
                return
            # With it, every entry of these attempts is confirmed: they came before.
            self._hidden.settle(decision)
            self.show()
            self._topic.shown()
            storing.set_result(None)

        self._storing = storing
        self._topic.log.record(topic_state.attempts_decided(decision), stored)

    def _disconnect(self, attempts: set[str]) -> None:
        """Nothing more is written under an attempt that is decided. Its clients come back and are told."""
        for producer in list(self._topic.producers.values()):
            if producer.attempt in attempts:
                producer.link.producer_closed(producer)
                self._topic.attached.remove(producer)

    def trimmed(self, upto: Position) -> None:
        before = self._hidden.dropped
        self._hidden.trim(upto)
        if self._hidden.dropped is not before:
            self.show()

    # -- upkeep

    async def look(self) -> None:
        """Carries out what has been decided, and gives up attempts that nobody has finished for long."""
        now_ms = self._topic.broker.now_ms()
        self._seen_ms.update(dict.fromkeys(self._connected, now_ms))
        for batch, attempts in self._hidden.batches().items():
            try:
                await self._look_at(batch, attempts, now_ms)
            except AnabranchError as error:
                log.warning("%s: %s is looked at again later: %s", self._topic.name, batch, error)

    async def _look_at(self, batch: WriteBatch, attempts: Sequence[str], now_ms: int) -> None:
        # Attempts that were attached by releases which did not bind their records are bound now.
        record = await self._records.get(batch)
        if record is None or not record.is_about(self._topic.name):
            record = await self._records.attach(batch, whole_topic(self._topic.name))
        if all(fate is Fate.OPEN for fate in record.fates(attempts).values()):
            given_up = await self._finish(batch, record, attempts, now_ms)
            if given_up is None:
                return
            record = given_up
        await self._carry_out(batch, record)

    async def _finish(
        self, batch: WriteBatch, record: WriteRecord, attempts: Sequence[str], now_ms: int
    ) -> WriteRecord | None:
        """Gives up what nobody finishes of a batch that is open. The record if it has changed by that."""
        store_ms = await self._topic.broker.metadata.now_ms()
        if not self._connected.isdisjoint(attempts):
            if self._records.is_due(record, store_ms):
                await self._records.renew(batch)
        elif self._has_settled_in(now_ms) and self._records.has_lapsed(record, store_ms):
            return await self._give_up(batch, attempts, self._records.lapse, "has had a producer for long")
        late = self._late(attempts, now_ms)
        if not late:
            return None
        return await self._give_up(batch, late, self._records.drop, "has finished it in time")

    def _has_settled_in(self, now_ms: int) -> bool:
        """Whether clients that were connected to the owner before have had the time to come here."""
        return now_ms >= self._opened_ms + self._records.lease_ms // RENEWALS

    @property
    def _connected(self) -> set[str]:
        """The attempts that have a producer here."""
        return {one.attempt for one in self._topic.producers.values() if one.attempt is not None}

    def _late(self, attempts: Sequence[str], now_ms: int) -> list[str]:
        """Those without a producer for too long, and those that have kept readers waiting for too long all the same."""
        config = self._topic.broker.config
        # Some may have been decided while the store was asked.
        known = self._hidden.attempts
        attempts = [name for name in attempts if name in known]
        late = stale(attempts, self._seen_ms, now_ms, config.hidden_writes_timeout_seconds * 1000)
        if config.hidden_writes_open_max_seconds > 0:
            holding = [name for name in attempts if known[name].first is not None]
            late += stale(holding, self._open_ms, now_ms, config.hidden_writes_open_max_seconds * 1000)
        return list(dict.fromkeys(late))

    async def _give_up(
        self, batch: WriteBatch, late: Sequence[str], drop: Drop, nobody: str
    ) -> WriteRecord | None:
        # Who has written nothing here is not missed, and may come again.
        known = self._hidden.attempts
        idle = {name: None for name in late if name in known and known[name].first is None}
        if idle:
            self._decide([*idle], [])
            await self._all_stored()
        # Somebody else may have looked, and settled some of them, meanwhile.
        late = [name for name in late if name in known]
        if not late:
            return None
        record = await drop(batch, late)
        dropped = [name for name, fate in record.fates(late).items() if fate is Fate.DROPPED]
        if dropped and not record.is_decided:
            shown = ", ".join(dropped[:10]) + (" and others" if len(dropped) > 10 else "")
            log.warning("%s: nobody %s: %s: dropped attempts %s", self._topic.name, nobody, batch, shown)
        return record


def stale(attempts: Iterable[str], seen_ms: dict[str, int], now_ms: int, timeout_ms: int) -> list[str]:
    """The attempts that were last seen so long ago. One never seen is seen now."""
    return [name for name in attempts if seen_ms.setdefault(name, now_ms) + timeout_ms <= now_ms]
