"""The records of hidden writes in the metadata store: one for each batch, changed by compare-and-set only.

`/hidden-writes/<write>/<batch>`. Whoever changes one gets the record as it is then, which may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.hidden_writes import WriteBatch, WriteRecord
from anabranch.model.names import encode_local

HIDDEN_WRITES: Final = "/hidden-writes"

_decode = msgspec.json.Decoder(WriteRecord).decode


def encode_record(record: WriteRecord) -> bytes:
    """Also what REST answers."""
    return msgspec.json.encode(record)


class WriteRecords:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    async def get(self, batch: WriteBatch) -> WriteRecord | None:
        found = await self._metadata.get(_path(batch))
        return _decode(found.value) if found is not None and found.value else None

    async def decide(self, batch: WriteBatch, winners: Iterable[str], topics: Iterable[str]) -> WriteRecord:
        """The record with these winners, or those it had before. DroppedWinner if one was dropped."""
        chosen, places = tuple(winners), tuple(topics)
        return await self._change(batch, lambda record: record.decide(chosen, places))

    async def drop(self, batch: WriteBatch, attempts: Iterable[str]) -> WriteRecord:
        """The record without those attempts, unless it was decided before."""
        given_up = tuple(attempts)
        return await self._change(batch, lambda record: record.drop(given_up))

    async def _change(self, batch: WriteBatch, change: Callable[[WriteRecord], WriteRecord]) -> WriteRecord:
        path = _path(batch)
        while True:
            found = await self._metadata.get(path)
            if found is None:
                after = change(WriteRecord())
                try:
                    await self._metadata.create(path, encode_record(after))
                except AlreadyExists:
                    continue
                return after
            before = _decode(found.value)
            after = change(before)
            if after == before:
                return before
            try:
                await self._metadata.put(path, encode_record(after), if_version=found.version)
            except VersionConflict:
                continue
            return after


def _path(batch: WriteBatch) -> str:
    return f"{HIDDEN_WRITES}/{encode_local(batch.write)}/{batch.batch}"
