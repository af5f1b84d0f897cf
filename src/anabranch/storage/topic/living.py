"""Which ledgers live, as the topics' records say at this moment. The answer that a log's store asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from anabranch.errors import AnabranchError
from anabranch.metadata.port import MetadataStore
from anabranch.storage.core.topic_record import TopicRecord, namespace_of
from anabranch.storage.port import LiveLedger, Living

log = logging.getLogger(__name__)

# Records that are read at the same time.
_READS_MAX = 64


def living_in(metadata: MetadataStore) -> Living:
    """Reads the records themselves: never what a watch or a cache has told before."""

    async def living(paths: Sequence[str]) -> Mapping[str, Sequence[LiveLedger]]:
        found: dict[str, Sequence[LiveLedger]] = {}
        for start in range(0, len(paths), _READS_MAX):
            some = paths[start : start + _READS_MAX]
            told = await asyncio.gather(*map(read, some))
            found |= {path: one for path, one in zip(some, told, strict=True) if one is not None}
        return found

    async def read(path: str) -> Sequence[LiveLedger] | None:
        """None if the record cannot be read: then nothing is known of its ledgers."""
        try:
            stored = await metadata.get(path, fresh=True)
            if stored is None:
                return ()
            if not stored.value:
                log.warning("the record at %s is empty: its ledgers are kept", path)
                return None
            return TopicRecord.decode(stored.value).live(path, namespace_of(path))
        except (AnabranchError, msgspec.MsgspecError) as error:
            log.warning("the record at %s cannot be read, its ledgers are kept: %s", path, error)
            return None

    return living
