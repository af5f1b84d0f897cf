"""Readers that say what they have not read yet are told when retention has taken it, instead of being led past it.

A reader has no cursor that keeps anything. One that names the first entry it is owed (`wire.extensions`) is refused
once that, or a later one, was given up; one that is attached when it happens is closed, comes back and hears it then.
One that names its topic by its id is refused by another topic of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from anabranch.broker.consumer import Consumer
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.scalable.records import topic_id_of
from anabranch.broker.subscription import Subscription
from anabranch.model.position import Position
from anabranch.storage.topic_record import TopicRecord
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


class Log(Protocol):
    @property
    def first(self) -> Position: ...

    def has_lost(self, since: Position) -> bool: ...

    def is_foreign(self, at: Position) -> bool: ...

    @property
    def topic_record(self) -> TopicRecord: ...


def topic_asked_for(request: pb.CommandSubscribe) -> str:
    """The id that the reader names; "" if it names none."""
    return next((item.value for item in request.metadata if item.key == TOPIC_ID), "")


def check(log: Log, request: pb.CommandSubscribe, part_of: str = "") -> None:
    """NotAllowedError if something that the reader is owed is gone, with the first entry that is kept, or never was.

    `part_of` is the id of the topic that this log is a partition of, where that has another one than the log."""
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
    """Whether the log with this record is not of the topic with that id. "" is not known, on either side."""
    known = topic_id_of(record)
    return bool(known) and bool(wanted) and known != wanted


def tells_its_end(consumer: Consumer) -> bool:
    """Whether the client itself reports what it has read to its end: it knows what its application is through with."""
    return OWED_FROM in consumer.metadata


def behind(subscriptions: Iterable[Subscription], upto: Position) -> list[Subscription]:
    """The readers that are owed something below `upto`."""
    return [
        one
        for one in subscriptions
        if not one.is_durable and one.next < upto and any(map(tells_its_end, one.consumers))
    ]
