"""The records of hidden writes in the metadata store: one per batch, changed only by compare-and-set.

`/hidden-writes/<write>/<batches by the thousand>/<batch>`, so that no folder of a long stream grows without bounds. A
caller that changes a record gets the resulting record, which may hold another broker's decision.

Lists of attempts that are too long for one value are continued in parts: `parts.py`.

A caller without the right is refused by a check of the record as read, which is the one that is changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from anabranch.broker.hidden_writes.parts import PartName, WriteParts
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, NotEmpty, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.hidden_writes import Claim, WriteBatch, WriteRecord
from anabranch.model.names import TopicName, decode_local, encode_local

HIDDEN_WRITES: Final = "/hidden-writes"
_PER_FOLDER: Final = 1000
# How many times, at least, a lease is renewed within its duration: a renewal may fail, or be late.
RENEWALS: Final = 4
FIND_TRIES: Final = 3
# Long records are cached: each of a batch's topics asks for the same one, and reading it takes a while.
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
    # 0 in records of releases without leases: then the time of the last change counts.
    seen_ms: int = 0
    # The record is being forgotten: the remaining topics may not have carried it out.
    is_expiring: bool = False
    # The beginnings of lists that are too long; `winners` and `dropped` have the rest.
    winner_parts: tuple[PartName, ...] = ()
    dropped_parts: tuple[PartName, ...] = ()

    @property
    def parts(self) -> tuple[PartName, ...]:
        return (*self.winner_parts, *self.dropped_parts)

    def record(
        self, modified_ms: int, winners: tuple[str, ...] | None, dropped: tuple[str, ...]
    ) -> WriteRecord:
        """The record with its lists in full, joined from their parts."""
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
    """An old record as it was read."""

    batch: WriteBatch
    stored: _Stored
    version: int | None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that may not have carried it out."""
        return self.stored.topics


_decode = msgspec.json.Decoder(_Stored).decode
_encode = msgspec.json.Encoder().encode


# Raises if the caller may not read or change the record.
Check = Callable[[WriteRecord], Awaitable[None]]


def encode_record(record: WriteRecord) -> bytes:
    """The record as JSON for REST."""
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
        """A batch has lapsed if no broker has seen a producer of it for `lease_ms`; 0: never."""
        self._metadata = metadata
        self._parts = WriteParts(metadata)
        self.lease_ms = lease_ms
        self._attaching: WeakValueDictionary[WriteBatch, asyncio.Lock] = WeakValueDictionary()
        # By stored bytes and time of change: the stored form and the record. Parts never change.
        self._long: dict[tuple[bytes, int], tuple[_Stored, WriteRecord]] = {}

    def path(self, batch: WriteBatch) -> str:
        return f"{_folder(batch.write)}/{batch.batch // _PER_FOLDER}/{batch.batch}"

    async def get(self, batch: WriteBatch) -> WriteRecord | None:
        found = await self._find(batch)
        return None if found is None else found.record

    async def _find(self, batch: WriteBatch) -> _Found | None:
        for _ in range(FIND_TRIES):
            found = await self._metadata.get(self.path(batch), fresh=True)
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
                    continue  # Another broker is forgetting the record: it removes the record first, which is gone now.
                winners, dropped = None if winners is None else whole, lost
            record = stored.record(found.modified_ms, winners, dropped)
            if len(found.value) >= LONG_BYTES:
                self._long[(found.value, found.modified_ms)] = stored, record
                if len(self._long) > LONG_KEPT:
                    del self._long[next(iter(self._long))]
            return _Found(stored, record, found.version)
        raise RecordDamaged(f"a part of the record of {batch} is missing")

    async def attach(self, batch: WriteBatch, topic: TopicName, check: Check = _anybody) -> WriteRecord:
        """The record after the topic is added to it, unless it was decided before. Called before each attempt writes.

        `check` is called only if the record did not name the topic before.
        """
        record = await self.get(batch)
        now_ms = await self._metadata.now_ms()
        if record is not None and record.about and record.is_about(topic) and not self.is_due(record, now_ms):
            return record
        # One at a time: a batch that writes to hundreds of topics attaches them all at once.
        async with self._attaching.setdefault(batch, asyncio.Lock()):
            return await self._change(
                batch, lambda record: record.bind([topic]).seen(now_ms), _unless_about(topic, check)
            )

    # -- leases: brokers that see a producer of a batch record that from time to time, for brokers that see none

    def is_due(self, record: WriteRecord, now_ms: int) -> bool:
        """Whether the lease is to be renewed now."""
        is_leased = self.lease_ms > 0 and not record.is_decided
        return is_leased and record.seen_ms + self.lease_ms // RENEWALS <= now_ms

    def has_lapsed(self, record: WriteRecord, now_ms: int) -> bool:
        """Whether no broker has seen a producer of the batch for too long."""
        is_leased = self.lease_ms > 0 and not record.is_decided
        return is_leased and record.seen_ms + self.lease_ms <= now_ms

    async def renew(self, batch: WriteBatch) -> WriteRecord | None:
        """Renews the lease, since a producer of the batch is connected. Returns the record, if there is one."""
        now_ms = await self._metadata.now_ms()
        record = await self.get(batch)
        if record is None or not self.is_due(record, now_ms):
            return record
        return await self._change(batch, lambda record: record.seen(now_ms), _anybody)

    async def lapse(self, batch: WriteBatch, attempts: Iterable[str]) -> WriteRecord:
        """The record without those attempts if the batch has lapsed; else unchanged, since a producer has come back."""
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
        """The record with these winners, or with those it had before. Raises DroppedWinner if a winner was dropped.

        A record that no attempt has attached to is made `about` these topics.
        """
        chosen, places = tuple(winners), tuple(topics)

        def decided(record: WriteRecord) -> WriteRecord:
            return _about(record, about).decide(chosen, places, rows=rows, digest=digest, claim=claim)

        return await self._change(batch, decided, check)

    async def claim(
        self, batch: WriteBatch, claim: Claim | None, *, check: Check = _anybody
    ) -> WriteRecord | None:
        """The record after the claim, if it is decided. None if there is no record."""
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
        """The stored form of the record. Lists only grow, so earlier parts stay."""
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
        """The batches of a write that have a record, oldest first. Empty folders are removed on the way."""
        folder = _folder(write)
        for thousand in sorted(map(int, await self._metadata.children(folder))):
            for number in sorted(map(int, await self._metadata.children(f"{folder}/{thousand}"))):
                yield WriteBatch(write, number)
            await self._remove_folder(f"{folder}/{thousand}")
        await self._remove_folder(folder)

    async def expired(self, batch: WriteBatch, before_ms: int) -> Expired | None:
        """The record if it was last changed before that time, or is being forgotten already; None if it is to be
        kept."""
        found = await self._metadata.get(self.path(batch))
        if found is None:
            return Expired(batch, _Stored(), None)
        stored = _decode(found.value)
        is_over = stored.is_expiring or found.modified_ms < before_ms
        return Expired(batch, stored, found.version) if is_over else None

    async def strike_off(self, expired: Expired, topics: Collection[str]) -> None:
        """Removes topics that have carried the record out; the record is deleted with the last of them."""
        if expired.version is None:
            return
        path = self.path(expired.batch)
        left = tuple(topic for topic in expired.topics if topic not in topics)
        # If another broker has changed the record meanwhile, the next sweep checks it again.
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
        # A folder that is not empty is in use by another broker.
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
