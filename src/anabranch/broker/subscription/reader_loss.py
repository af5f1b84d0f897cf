"""Refuses readers whose unread entries retention has deleted, instead of silently starting them later.

A reader has no cursor that keeps entries. A reader may name the first entry it is owed (`wire.extensions`): it is
refused once that entry, or a later one, was deleted; if it is attached at that moment, it is closed and refused when it
reconnects. A reader that names its topic by its id is refused by another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from anabranch.broker.catalog.segment_records import topic_id_of
from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.subscription.subscription import Subscription
from anabranch.model.position import Position
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import (
    DATA_LOST,
    OTHER_TOPIC,
    OWED_FROM,
    TOPIC_ID,
    UNKNOWN_POSITION,
    position_text,
    read_position,
)


class OwedLog(Protocol):
    @property
    def first(self) -> Position: ...

    def has_lost(self, since: Position) -> bool: ...

    def is_foreign(self, at: Position) -> bool: ...

    @property
    def topic_record(self) -> TopicRecord: ...


def topic_asked_for(request: pb.CommandSubscribe) -> str:
    """The topic id that the reader names; "" if it names none."""
    return next((item.value for item in request.metadata if item.key == TOPIC_ID), "")


def check(log: OwedLog, request: pb.CommandSubscribe, part_of: str = "") -> None:
    """Raises NotAllowedError if entries that the reader is owed were deleted (the error names the first kept entry) or
    never existed, or if this is another topic than the one it names.

    `part_of` is the id of the topic that this log is a partition of, where that differs from the log's own.
    """
    for item in request.metadata:
        if item.key == TOPIC_ID and item.value != part_of and is_other_topic(log.topic_record, item.value):
            raise NotAllowedError(
                f"{OTHER_TOPIC} {topic_id_of(log.topic_record)}: {request.topic} was deleted and made again: the topic "
                f"with the id {item.value} is gone"
            )
        owed = read_position(item.value) if item.key == OWED_FROM else None
        if owed is None or request.durable:
            continue
        if log.is_foreign(owed):
            raise NotAllowedError(
                f"{UNKNOWN_POSITION} {position_text(*owed)}: {request.topic} never had that; it is of another topic, "
                "or of one of the same name that was deleted"
            )
        if log.has_lost(owed):
            raise NotAllowedError(
                f"{DATA_LOST} {position_text(*log.first)}: entries of {request.topic} from "
                f"{position_text(*owed)} on were deleted by retention"
            )


def is_other_topic(record: TopicRecord, wanted: str) -> bool:
    """Whether the log with this record belongs to another topic than the one with that id. "" is unknown, on either
    side."""
    known = topic_id_of(record)
    return bool(known) and bool(wanted) and known != wanted


def tells_its_end(consumer: AttachedConsumer) -> bool:
    """Whether the client itself reports which segments it has finished: only it knows what its application has
    processed."""
    return OWED_FROM in consumer.metadata


def behind(subscriptions: Iterable[Subscription], upto: Position) -> list[Subscription]:
    """The readers that are owed something below `upto`."""
    return [
        one
        for one in subscriptions
        if not one.is_durable and one.next < upto and any(map(tells_its_end, one.consumers))
    ]
