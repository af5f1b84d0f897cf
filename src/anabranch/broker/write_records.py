"""The records of hidden writes in the metadata store: one for each batch, changed by compare-and-set only.

`/hidden-writes/<write>/<batches by the thousand>/<batch>`, so that no folder of a long stream grows without bounds.
Whoever changes a record gets it as it is then, which may be by somebody else's decision.

Lists of attempts that are too long for one value are continued elsewhere: `write_parts`.

Whoever may not do so is refused by a check of the record as it was read, which is the one that is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from anabranch.broker.write_parts import PartName, WriteParts
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, NotEmpty, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.hidden_writes import Claim, WriteBatch, WriteRecord
from anabranch.model.names import TopicName, decode_local, encode_local

HIDDEN_WRITES: Final = "/hidden-writes"
_PER_FOLDER: Final = 1000
# So often is a lease renewed within its time, at least: some of it may fail, or come late.
RENEWALS: Final = 4
FIND_TRIES: Final = 3
# Of records that are long: each of a batch's topics asks for the same one, and it takes a while to read.
LONG_BYTES: Final = 4096
LONG_KEPT: Final = 4


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    winners: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    about: tuple[str, ...] = ()
    rows: int | None = None
    digest: str = ""
    claim: Claim | None = None
    # 0 in those of releases that had no leases: then the last change counts.
    seen_ms: int = 0
    # It is being forgotten: the topics left are those that may not have carried it out.
    is_expiring: bool = False
    # The beginnings of lists that are too long; `winners` and `dropped` are what follows.
    winner_parts: tuple[PartName, ...] = ()
    dropped_parts: tuple[PartName, ...] = ()

    @property
    def parts(self) -> tuple[PartName, ...]:
        return (*self.winner_parts, *self.dropped_parts)

    def record(
        self, modified_ms: int, winners: tuple[str, ...] | None, dropped: tuple[str, ...]
    ) -> WriteRecord:
        """With its lists as they are with their parts."""
        return WriteRecord(
            winners,
            self.topics,
            dropped,
            self.about,
            self.rows,
            self.digest,
            self.claim,
            self.seen_ms or modified_ms,
        )

    @classmethod
    def of(cls, record: WriteRecord) -> _Stored:
        return cls(
            record.winners,
            record.topics,
            record.dropped,
            record.about,
            record.rows,
            record.digest,
            record.claim,
            record.seen_ms,
        )


class RecordDamaged(AnabranchError):
    """A part of the record is missing."""


class _Found(NamedTuple):
    stored: _Stored
    record: WriteRecord
    version: int


class Expired(NamedTuple):
    """An old record as it was found."""

    batch: WriteBatch
    stored: _Stored
    version: int | None

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that may not have carried it out."""
        return self.stored.topics


_decode = msgspec.json.Decoder(_Stored).decode
_encode = msgspec.json.Encoder().encode


# Raises if whoever asks may not read or change the record.
Check = Callable[[WriteRecord], Awaitable[None]]


def encode_record(record: WriteRecord) -> bytes:
    """As REST answers it."""
    said: dict[str, object] = {
        "winners": record.winners,
        "topics": record.topics,
        "dropped": record.dropped,
    }
    if record.rows is not None:
        said |= {"rows": record.rows, "digest": record.digest}
    if record.claim is not None:
        said["claim"] = record.claim._asdict()
    return _encode(said)


async def _anybody(record: WriteRecord) -> None: ...


class WriteRecords:
    def __init__(self, metadata: MetadataStore, lease_ms: int = 120_000) -> None:
        """A batch has lapsed if nobody has seen a producer of it for `lease_ms`; 0: never."""
        self._metadata = metadata
        self._parts = WriteParts(metadata)
        self.lease_ms = lease_ms
        self._attaching: WeakValueDictionary[WriteBatch, asyncio.Lock] = WeakValueDictionary()
        # As they were stored, when, and what that says. Parts never change.
        self._long: dict[tuple[bytes, int], tuple[_Stored, WriteRecord]] = {}

    def path(self, batch: WriteBatch) -> str:
        return f"{_folder(batch.write)}/{batch.batch // _PER_FOLDER}/{batch.batch}"

    async def get(self, batch: WriteBatch) -> WriteRecord | None:
        found = await self._find(batch)
        return None if found is None else found.record

    async def _find(self, batch: WriteBatch) -> _Found | None:
        for _ in range(FIND_TRIES):
            found = await self._metadata.get(self.path(batch))
            if found is None:
                return None
            read = self._long.get((found.value, found.modified_ms))
            if read is not None:
                return _Found(*read, found.version)
            stored = _decode(found.value)
            winners, dropped = stored.winners, stored.dropped
            if stored.parts:
                whole = await self._parts.joined(stored.winner_parts, winners or ())
                lost = await self._parts.joined(stored.dropped_parts, dropped)
                if whole is None or lost is None:
                    continue  # Somebody forgets the record just now: it goes first, and is gone.
                winners, dropped = None if winners is None else whole, lost
            record = stored.record(found.modified_ms, winners, dropped)
            if len(found.value) >= LONG_BYTES:
                self._long[(found.value, found.modified_ms)] = stored, record
                if len(self._long) > LONG_KEPT:
                    del self._long[next(iter(self._long))]
            return _Found(stored, record, found.version)
        raise RecordDamaged(f"a part of the record of {batch} is missing")

    async def attach(self, batch: WriteBatch, topic: TopicName, check: Check = _anybody) -> WriteRecord:
        """The record once it is about the topic, unless it was decided before. Asked for before each attempt writes.

        `check` is asked only where the record was about other topics alone."""
        record = await self.get(batch)
        now_ms = await self._metadata.now_ms()
        if record is not None and record.about and record.is_about(topic) and not self.is_due(record, now_ms):
            return record
        # One after the other: hundreds of topics are attached at once to a batch that writes to so many.
        async with self._attaching.setdefault(batch, asyncio.Lock()):
            return await self._change(
                batch, lambda record: record.bind([topic]).seen(now_ms), _unless_about(topic, check)
            )

    # -- leases: brokers that see a producer of a batch say so from time to time, for those that see none

    def is_due(self, record: WriteRecord, now_ms: int) -> bool:
        """Whether it is time to say again that a producer is there."""
        is_leased = self.lease_ms > 0 and not record.is_decided
        return is_leased and record.seen_ms + self.lease_ms // RENEWALS <= now_ms

    def has_lapsed(self, record: WriteRecord, now_ms: int) -> bool:
        """Whether nobody has seen a producer of the batch for too long."""
        is_leased = self.lease_ms > 0 and not record.is_decided
        return is_leased and record.seen_ms + self.lease_ms <= now_ms

    async def renew(self, batch: WriteBatch) -> WriteRecord | None:
        """A producer of the batch is connected. The record, if there is one."""
        now_ms = await self._metadata.now_ms()
        record = await self.get(batch)
        if record is None or not self.is_due(record, now_ms):
            return record
        return await self._change(batch, lambda record: record.seen(now_ms), _anybody)

    async def lapse(self, batch: WriteBatch, attempts: Iterable[str]) -> WriteRecord:
        """The record without those attempts if the batch has lapsed; else as it is, since somebody has come back."""
        given_up, now_ms = tuple(attempts), await self._metadata.now_ms()
        return await self._change(
            batch,
            lambda record: record.drop(given_up) if self.has_lapsed(record, now_ms) else record,
            _anybody,
        )

    async def decide(
        self,
        batch: WriteBatch,
        winners: Iterable[str],
        topics: Iterable[str],
        *,
        rows: int | None = None,
        digest: str = "",
        claim: Claim | None = None,
        about: Sequence[TopicName] = (),
        check: Check = _anybody,
    ) -> WriteRecord:
        """The record with these winners, or those it had before. DroppedWinner if one was dropped.

        One that nobody has attached to is `about` these topics."""
        chosen, places = tuple(winners), tuple(topics)

        def decided(record: WriteRecord) -> WriteRecord:
            return _about(record, about).decide(chosen, places, rows=rows, digest=digest, claim=claim)

        return await self._change(batch, decided, check)

    async def claim(
        self, batch: WriteBatch, claim: Claim | None, *, check: Check = _anybody
    ) -> WriteRecord | None:
        """The record once it is claimed, if it is decided. None if there is none."""
        if await self.get(batch) is None:
            return None
        return await self._change(batch, lambda record: record.claimed(claim), check)

    async def drop(
        self,
        batch: WriteBatch,
        attempts: Iterable[str],
        *,
        about: Sequence[TopicName] = (),
        check: Check = _anybody,
    ) -> WriteRecord:
        """The record without those attempts, unless it was decided before."""
        given_up = tuple(attempts)
        return await self._change(batch, lambda record: _about(record, about).drop(given_up), check)

    async def _change(
        self, batch: WriteBatch, change: Callable[[WriteRecord], WriteRecord], check: Check
    ) -> WriteRecord:
        path = self.path(batch)
        while True:
            found = await self._find(batch)
            before = WriteRecord() if found is None else found.record
            await check(before)
            after = change(before)
            if after == before:
                return before
            made: list[str] = []
            value = _encode(
                await self._packed(batch, after, _Stored() if found is None else found.stored, made)
            )
            try:
                if found is None:
                    await self._metadata.create(path, value)
                else:
                    await self._metadata.put(path, value, if_version=found.version)
            except (AlreadyExists, VersionConflict):
                await self._parts.remove(made)
                continue
            return after

    async def _packed(
        self, batch: WriteBatch, record: WriteRecord, before: _Stored, made: list[str]
    ) -> _Stored:
        """As it is stored. Lists only grow, so the parts of before stay."""
        stored = _Stored.of(record)
        winner_parts, winners = await self._parts.cut(batch, record.winners or (), before.winner_parts, made)
        dropped_parts, dropped = await self._parts.cut(batch, record.dropped, before.dropped_parts, made)
        return msgspec.structs.replace(
            stored,
            winners=None if record.winners is None else winners,
            dropped=dropped,
            winner_parts=winner_parts,
            dropped_parts=dropped_parts,
        )

    # -- forgetting

    async def writes(self) -> list[str]:
        return [decode_local(name) for name in await self._metadata.children(HIDDEN_WRITES)]

    async def batches(self, write: str) -> AsyncIterator[WriteBatch]:
        """Those of a write that have a record, oldest first. Folders found empty on the way are removed."""
        folder = _folder(write)
        for thousand in sorted(map(int, await self._metadata.children(folder))):
            for number in sorted(map(int, await self._metadata.children(f"{folder}/{thousand}"))):
                yield WriteBatch(write, number)
            await self._remove_folder(f"{folder}/{thousand}")
        await self._remove_folder(folder)

    async def expired(self, batch: WriteBatch, before_ms: int) -> Expired | None:
        """The record if it was last changed before that, or is being forgotten already; None if it is to stay."""
        found = await self._metadata.get(self.path(batch))
        if found is None:
            return Expired(batch, _Stored(), None)
        stored = _decode(found.value)
        is_over = stored.is_expiring or found.modified_ms < before_ms
        return Expired(batch, stored, found.version) if is_over else None

    async def strike_off(self, expired: Expired, topics: Collection[str]) -> None:
        """Those topics have carried it out. The record goes with the last of them."""
        if expired.version is None:
            return
        path = self.path(expired.batch)
        left = tuple(topic for topic in expired.topics if topic not in topics)
        # Whoever has changed it meanwhile knows it as it was: it is looked at again with the next sweep.
        with contextlib.suppress(VersionConflict):
            if left:
                value = _encode(msgspec.structs.replace(expired.stored, topics=left, is_expiring=True))
                await self._metadata.put(path, value, if_version=expired.version)
            else:
                await self._metadata.delete(path, if_version=expired.version)
                await self._parts.remove(part.name for part in expired.stored.parts)

    async def sweep_parts(self, before_ms: int) -> None:
        """Removes parts that are older than that and that no record names."""
        for name, batch in await self._parts.old(before_ms):
            found = await self._metadata.get(self.path(batch))
            named = () if found is None else _decode(found.value).parts
            if name not in {part.name for part in named}:
                await self._parts.remove([name])

    async def _remove_folder(self, path: str) -> None:
        # One that is not empty belongs to somebody quicker than us.
        with contextlib.suppress(NotEmpty):
            await self._metadata.delete(path)


def _about(record: WriteRecord, topics: Sequence[TopicName]) -> WriteRecord:
    return record if record.about else record.bind(topics)


def _unless_about(topic: TopicName, check: Check) -> Check:
    async def checked(record: WriteRecord) -> None:
        if not record.is_about(topic):
            await check(record)

    return checked


def _folder(write: str) -> str:
    return f"{HIDDEN_WRITES}/{encode_local(write)}"
