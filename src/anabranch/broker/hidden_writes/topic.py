"""One topic's hidden writes: admits producers, carries out decisions, drops attempts that no job finishes.

Which entries are hidden is in `state/hidden_entries.py`; the record of each batch in the metadata store alone decides
about it. The topic's own journal knows which attempt belongs to which batch before the attempt's producer may write,
and each decision before readers see its entries. So an owner that takes the topic over knows what is open: the attempts
in the state, and among later entries those whose metadata names such an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.hidden_writes.records import RENEWALS, Check, WriteRecords
from anabranch.broker.runtime.outcomes import outcome
from anabranch.broker.security.rights import NotAuthorizedError, Rights
from anabranch.broker.state import topic_state
from anabranch.broker.state.hidden_entries import HiddenEntries
from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
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
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ATTEMPT_DROPPED, WRITE, WRITE_ATTEMPT, WRITE_BATCH, WRITE_DECIDED

log = logging.getLogger(__name__)

# The most attempts open at once in a topic: as many as a batch may have. All are in each stored state of the topic.
ATTEMPTS_MAX = 200_000
# The most attempts that one answer names: those of a topic are told in one turn of the event loop.
ATTEMPTS_SHOWN_MAX: Final = 1_000

# Drops attempts; returns the record after that.
Drop = Callable[[WriteBatch, Iterable[str]], Awaitable[WriteRecord]]


class UndecidedError(NotAllowedError):
    """Nothing can be revealed before the batch is decided."""


def hidden_as(metadata: Mapping[str, str]) -> tuple[WriteBatch, str] | None:
    """The batch and the attempt that a producer's metadata names; None for a producer whose entries are visible at
    once."""
    given = [metadata.get(key) for key in (WRITE, WRITE_BATCH, WRITE_ATTEMPT)]
    if given == [None, None, None]:
        return None
    write, batch, attempt = given
    if write is None or batch is None or attempt is None:
        raise NotAllowedError(f"a hidden producer names all of {WRITE}, {WRITE_BATCH} and {WRITE_ATTEMPT}")
    return WriteBatch.checked(write, batch), checked_attempt(attempt)


class OpenWrite(NamedTuple):
    """An undecided batch, as one topic knows it."""

    batch: WriteBatch
    attempts: tuple[str, ...]
    entries: int
    # The number of attempts that have a producer connected here.
    producers: int
    # How long this batch has held the topic's readers; 0 if another batch holds them, or none does.
    held_s: float


class AttemptProducers(Protocol):
    """The producers of a topic that belong to attempts."""

    @property
    def attempts(self) -> set[str]:
        """The attempts that have a producer here."""

    def close_attempts(self, attempts: Collection[str]) -> None:
        """Closes the producers of those attempts: nothing more is written under them."""


class HiddenWrites:
    """`stored` waits until a change of the topic's state is confirmed. `shown` is called when readers see more than
    before."""

    __slots__ = (
        "_config",
        "_held",
        "_hidden",
        "_log",
        "_loop",
        "_metadata",
        "_name",
        "_now_ms",
        "_open_ms",
        "_opened_ms",
        "_producers",
        "_records",
        "_rights",
        "_seen_ms",
        "_shown",
        "_stored",
        "_storing",
    )

    def __init__(
        self,
        name: TopicName,
        topic_log: TopicLog,
        hidden: HiddenEntries,
        producers: AttemptProducers,
        *,
        stored: Callable[[bytes], Awaitable[None]],
        shown: Callable[[], None],
        records: WriteRecords,
        rights: Rights,
        metadata: MetadataStore,
        config: Callable[[], BrokerConfig],
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
    ) -> None:
        self._name = name
        self._log = topic_log
        self._hidden = hidden
        self._producers = producers
        self._stored = stored
        self._shown = shown
        self._records = records
        self._rights = rights
        self._metadata = metadata
        self._config = config
        self._loop = loop
        self._now_ms = now_ms
        # The latest decision: decisions are stored in order.
        self._storing: asyncio.Future[None] | None = None
        # A client that was connected to the previous owner needs a while to reconnect here.
        self._opened_ms = now_ms()
        # The position at which readers are held, and since when.
        self._held: tuple[Position, int] | None = None
        # When a producer of each open attempt was last seen here, to find attempts that no job finishes.
        self._seen_ms: dict[str, int] = {}
        # Since when each attempt with entries is known here to hold readers.
        self._open_ms: dict[str, int] = {}

    @property
    def entries(self) -> HiddenEntries:
        """The hidden entries, for the topic's stored state."""
        return self._hidden

    @property
    def has_attempts(self) -> bool:
        return bool(self._hidden.attempts)

    @property
    def has_open(self) -> bool:
        """Whether there are entries that may still be revealed."""
        return self._hidden.has_open

    @property
    def held_ms(self) -> int:
        """How long readers have been held at the same entry, as far as this broker knows; 0 if they are not."""
        return 0 if self._held is None else max(0, self._now_ms() - self._held[1])

    def stats(self, *, with_names: bool) -> list[dict[str, Any]]:
        """The first open batches, for operators who want to know what readers wait for.

        Names are only for callers that may produce: with names a batch can be decided, and an attempt dropped.
        """
        attempts = self._hidden.attempts
        found: list[dict[str, Any]] = []
        left = ATTEMPTS_SHOWN_MAX
        for batch in self._hidden.open_batches:
            names = self._hidden.of_batch(batch)
            if left <= 0:
                break
            if with_names:
                told = [{"attempt": name, "entries": attempts[name].entries} for name in names[:left]]
                found.append({"write": batch.write, "batch": batch.batch, "attempts": told})
            else:
                found.append({"entries": sum(attempts[name].entries for name in names)})
            left -= len(names)
        return found

    @property
    def attempts_open(self) -> int:
        return len(self._hidden.attempts)

    def open_writes(
        self, wanted: WriteBatch | None = None, attempts_max: int = ATTEMPTS_SHOWN_MAX
    ) -> list[OpenWrite]:
        """The batches that have attempts here and are undecided as far as this topic knows, or only the wanted one.

        The one that readers wait for comes first, then those that came first, until they have so many attempts."""
        connected, held_s = self._producers.attempts, self.held_ms / 1000
        holding = self._holding()
        batches = self._first_batches(holding) if wanted is None else [wanted]
        found: list[OpenWrite] = []
        left = attempts_max
        for batch in batches:
            names = self._hidden.of_batch(batch)
            if not names:
                continue
            if left <= 0:
                break
            found.append(
                OpenWrite(
                    batch,
                    tuple(sorted(names[:left])),
                    entries=sum(self._hidden.attempts[name].entries for name in names),
                    producers=len(connected.intersection(names)),
                    held_s=held_s if batch == holding else 0.0,
                )
            )
            left -= len(names)
        return found

    def _holding(self) -> WriteBatch | None:
        """The batch that has the entry before which readers stop."""
        first = self._hidden.first_open
        return self._hidden.attempts[first].batch if first is not None else None

    def _first_batches(self, holding: WriteBatch | None) -> list[WriteBatch]:
        found = dict.fromkeys([holding] if holding is not None else [])
        return list(found | dict.fromkeys(islice(self._hidden.open_batches, ATTEMPTS_SHOWN_MAX)))

    # -- opening

    def replay(self, ledger: int, entry: int, metadata: pb.MessageMetadata) -> bool:
        """Notes an entry that was stored after the topic's state; False if it is visible to readers."""
        if not (metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits")):
            return False
        attempt = attempt_of_bits(metadata.txnid_most_bits, metadata.txnid_least_bits)
        if attempt not in self._hidden.attempts:
            return False
        self._hidden.note(attempt, ledger, entry, entry + 1)
        return True

    def show(self) -> None:
        """Lets readers see every entry that they may see, and no other."""
        stop = self._hidden.stop
        if stop is None:
            self._held = None
        elif self._held is None or self._held[0] != stop:
            self._held = (stop, self._now_ms())
        self._log.hide(self._hidden.dropped, stop)

    # -- producers

    async def admit(self, batch: WriteBatch, attempt: str, role: str) -> None:
        """Returns once it is stored that this attempt's entries are hidden; raises NotAllowedError if it is too late.

        Raises NotAuthorizedError if the batch belongs to others: the role may not produce to the topics that it writes
        to.
        """
        place = await self._place(role)
        record = await self._records.attach(batch, place, self._may_join(batch, role))
        await self._check(batch, attempt, record)
        known = self._hidden.attempts.get(attempt)
        if known is not None and known.batch != batch:
            raise NotAllowedError(f"attempt {attempt} is one of {known.batch}: an attempt has one batch")
        if known is None and len(self._hidden.attempts) >= ATTEMPTS_MAX:
            raise NotAllowedError(
                f"{self._name} has {ATTEMPTS_MAX} attempts at hidden writes that are not decided: decide or drop "
                "some of them first"
            )
        self._hidden.attach(attempt, batch)
        self._seen_ms[attempt] = self._now_ms()
        await self._stored(topic_state.attempt_attached(attempt, batch))
        # The batch may have been decided, and this topic notified, before it knew of the attempt.
        await self._check(batch, attempt, await self._records.get(batch))

    def check_open(self, batch: WriteBatch, attempt: str) -> str:
        """The attempt, if it may still write; raises NotReadyError otherwise."""
        if attempt not in self._hidden.attempts:
            raise NotReadyError(
                f"attempt {attempt} at {batch} was decided just now: ask again for the decision"
            )
        return attempt

    async def _place(self, role: str) -> TopicName:
        """The topic that the role binds a record to: the whole topic, or a partition if the role may write to that
        alone."""
        whole = whole_topic(self._name)
        if whole.is_classic and whole != self._name:
            try:
                await self._rights.produce(role, whole)
            except NotAuthorizedError:
                return self._name
        return whole

    def _may_join(self, batch: WriteBatch, role: str) -> Check:
        rights = self._rights

        async def check(record: WriteRecord) -> None:
            try:
                for topic in record.concerns:
                    await rights.produce(role, topic)
            except NotAuthorizedError:
                # The caller must not learn which topics these are.
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
        """Notes an entry that a producer of that attempt has appended."""
        self._hidden.note(attempt, ledger, entry, entry + 1)
        if not self._log.is_hiding:
            # Otherwise readers stop before an earlier one.
            self.show()

    # -- decisions

    async def reveal(self, batch: WriteBatch) -> None:
        """Returns once the winners' entries are durably visible, and the rest is dropped. Raises UndecidedError if
        there are no winners yet."""
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
        # This also waits for an earlier decision that is still being stored.
        await self._all_stored()

    async def _all_stored(self) -> None:
        if self._storing is not None:
            await outcome(self._storing)

    def _decide(self, visible: Sequence[str], dropped: Sequence[str]) -> None:
        """Decides about attempts. Readers see the result once it is stored, whether or not a caller still waits for
        that."""
        # Their clients reconnect and get the reason.
        self._producers.close_attempts({*visible, *dropped})
        decision = self._hidden.decide(visible, dropped)
        for name in decision.attempts:
            self._seen_ms.pop(name, None)
            self._open_ms.pop(name, None)
        storing: asyncio.Future[None] = self._loop.create_future()

        def stored(error: Exception | None) -> None:
            if error is not None:
                storing.set_exception(error)
                storing.exception()  # The topic is closing; callers that wait get the error.
                return
            # The decision comes after all entries of these attempts, so they are confirmed as well.
            self._hidden.settle(decision)
            self.show()
            self._shown()
            storing.set_result(None)

        self._storing = storing
        self._log.record(topic_state.attempts_decided(decision), stored)

    def trimmed(self, upto: Position) -> None:
        before = self._hidden.dropped
        self._hidden.trim(upto)
        if self._hidden.dropped is not before:
            self.show()

    # -- upkeep

    async def look(self) -> None:
        """Carries out decisions, and drops attempts that no job has finished for long."""
        now_ms = self._now_ms()
        self._seen_ms.update(dict.fromkeys(self._producers.attempts, now_ms))
        for batch, attempts in self._hidden.batches().items():
            try:
                await self._look_at(batch, attempts, now_ms)
            except AnabranchError as error:
                log.warning(
                    "%s: checking hidden write %s failed, trying again later: %s",
                    self._name,
                    batch,
                    error,
                )

    async def _look_at(self, batch: WriteBatch, attempts: Sequence[str], now_ms: int) -> None:
        # Attempts attached by releases that did not bind their records are bound now.
        record = await self._records.get(batch)
        if record is None or not record.is_about(self._name):
            record = await self._records.attach(batch, whole_topic(self._name))
        if all(fate is Fate.OPEN for fate in record.fates(attempts).values()):
            given_up = await self._finish(batch, record, attempts, now_ms)
            if given_up is None:
                return
            record = given_up
        await self._carry_out(batch, record)

    async def _finish(
        self, batch: WriteBatch, record: WriteRecord, attempts: Sequence[str], now_ms: int
    ) -> WriteRecord | None:
        """Drops the unfinished attempts of an open batch. Returns the record if that changed it."""
        store_ms = await self._metadata.now_ms()
        if not self._producers.attempts.isdisjoint(attempts):
            if self._records.is_due(record, store_ms):
                await self._records.renew(batch)
        elif self._has_settled_in(now_ms) and self._records.has_lapsed(record, store_ms):
            return await self._give_up(
                batch, attempts, self._records.lapse, "no producer was connected for too long"
            )
        late = self._late(attempts, now_ms)
        if not late:
            return None
        return await self._give_up(batch, late, self._records.drop, "attempts were not finished in time")

    def _has_settled_in(self, now_ms: int) -> bool:
        """Whether clients of the previous owner have had the time to reconnect here."""
        return now_ms >= self._opened_ms + self._records.lease_ms // RENEWALS

    def _late(self, attempts: Sequence[str], now_ms: int) -> list[str]:
        """Attempts without a producer for too long, and those that have held readers for too long all the same."""
        config = self._config()
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
        # Attempts that have written nothing here are simply removed, and may come again.
        known = self._hidden.attempts
        idle = {name: None for name in late if name in known and known[name].first is None}
        if idle:
            self._decide([*idle], [])
            await self._all_stored()
        # Another check may have settled some of them meanwhile.
        late = [name for name in late if name in known]
        if not late:
            return None
        record = await drop(batch, late)
        dropped = [name for name, fate in record.fates(late).items() if fate is Fate.DROPPED]
        if dropped and not record.is_decided:
            shown = ", ".join(dropped[:10]) + (" and others" if len(dropped) > 10 else "")
            log.warning(
                "%s: hidden write timed out (%s): %s: dropped attempts %s",
                self._name,
                nobody,
                batch,
                shown,
            )
        return record


def stale(attempts: Iterable[str], seen_ms: dict[str, int], now_ms: int, timeout_ms: int) -> list[str]:
    """The attempts that were last seen that long ago. One never seen counts as seen now."""
    return [name for name in attempts if seen_ms.setdefault(name, now_ms) + timeout_ms <= now_ms]
