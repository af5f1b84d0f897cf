"""Reads a topic's own entries back, to recover facts that its stored state lacks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from anabranch.errors import MalformedFrame
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.storage.port import Buffer, LogDamagedError
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.entry import parse_metadata

_log = logging.getLogger(__name__)

_REPLAY_ENTRIES = 1000
_REPLAY_BYTES = 4 * 1024 * 1024


async def entries_between(
    name: TopicName, log: TopicLog, first: Position, end: Position
) -> AsyncIterator[tuple[int, int, pb.MessageMetadata, Buffer]]:
    """Ledger, number, metadata and bytes of the entries in [first, end).

    Damaged entries are skipped, and so are entries whose metadata cannot be read: they name no producer.
    """
    at = log.normalise(first)
    while at < end:
        try:
            ledger, entries = await log.read(at, _REPLAY_ENTRIES, _REPLAY_BYTES)
        except LogDamagedError as damage:
            _log.error("%s: skipping damaged entries: %s", name, damage)
            if damage.next_good is None:
                break
            at = log.normalise((damage.ledger, damage.next_good))
            continue
        for number, _, data in entries:
            if (ledger, number) < end:
                try:
                    metadata = parse_metadata(data)
                except MalformedFrame as error:
                    _log.warning("%s: skipping unreadable entry %s:%s: %s", name, ledger, number, error)
                else:
                    yield ledger, number, metadata, data
        at = log.normalise((ledger, entries[-1][0] + 1))
