"""What a broker's error answer means to the part of the client that was refused: one table for all parts. Pure.

The number of an error decides, and which part was refused: `NotAllowedError` fails one message of a producer, but ends
a watch. Our brokers refuse for some reasons that the protocol has no number for; the texts of those answers begin with
a word of `anabranch.wire.extensions`, which decides unless the number is final.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Protocol

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import (
    ATTEMPT_DROPPED,
    DATA_LOST,
    OTHER_TOPIC,
    OTHER_TYPE,
    UNKNOWN_POSITION,
    WRITE_DECIDED,
    read_position,
)


class Meaning(Enum):
    """What follows from a refusal."""

    RETRY = auto()  # The same request may be accepted later.
    FINAL = auto()  # The same request will be refused again.
    GONE = auto()  # The topic or segment does not exist.
    SEALED = auto()  # The segment accepts no more messages.
    MESSAGE = auto()  # The broker refuses this message; it may accept later ones.
    OTHER_TYPE = auto()  # The subscription has consumers of another type.
    OTHER_TOPIC = auto()  # The topic was deleted, and its name belongs to another topic now.
    DATA_LOST = auto()  # Messages that the reader has not read were deleted.
    UNKNOWN_POSITION = auto()  # The segment never had the position that the reader starts at.


class RefusedPart(Enum):
    """Which part of the client was refused."""

    CONNECTION = auto()  # All of them: there is no connection.
    LAYOUT_WATCH = auto()
    NAMESPACE_WATCH = auto()
    CONTROLLER_SESSION = auto()
    PRODUCER = auto()
    SEND = auto()  # A message of a producer.
    NEW_SUBSCRIPTION = auto()  # A durable subscription, before its consumer is first attached.
    CONSUMER = auto()  # Readers, probes, and returning consumers.


class Refusal(Protocol):
    """An error answer: its number, whether it refuses a whole connection, and its text as `str`."""

    @property
    def is_of_connection(self) -> bool: ...

    @property
    def error(self) -> int: ...


# The first of these words in the text decides.
WORDS: Final[Mapping[str, Meaning]] = {
    WRITE_DECIDED: Meaning.FINAL,
    ATTEMPT_DROPPED: Meaning.FINAL,
    OTHER_TYPE: Meaning.OTHER_TYPE,
    OTHER_TOPIC: Meaning.OTHER_TOPIC,
    UNKNOWN_POSITION: Meaning.UNKNOWN_POSITION,
    DATA_LOST: Meaning.DATA_LOST,
}

_NOT_ALLOWED: Final[Mapping[int, Meaning]] = {
    pb.AuthenticationError: Meaning.FINAL,
    pb.AuthorizationError: Meaning.FINAL,
}
_CONSUMER: Final[Mapping[int, Meaning]] = {
    **_NOT_ALLOWED,
    pb.InvalidTopicName: Meaning.FINAL,
    pb.IncompatibleSchema: Meaning.FINAL,
    pb.TopicNotFound: Meaning.GONE,
}

# Numbers that are not listed are tried again.
TABLE: Final[Mapping[RefusedPart, Mapping[int, Meaning]]] = {
    # A broker with all the connections that it may have answers NotAllowedError, and has room for others later.
    RefusedPart.CONNECTION: {**_NOT_ALLOWED, pb.UnsupportedVersionError: Meaning.FINAL},
    RefusedPart.LAYOUT_WATCH: {
        **_NOT_ALLOWED,
        pb.InvalidTopicName: Meaning.FINAL,
        pb.NotAllowedError: Meaning.FINAL,
        pb.UnsupportedVersionError: Meaning.FINAL,
        pb.TopicNotFound: Meaning.GONE,
    },
    RefusedPart.NAMESPACE_WATCH: dict.fromkeys(pb.ServerError.values(), Meaning.FINAL),
    # The layout watch, not the controller, says whether the topic is gone.
    RefusedPart.CONTROLLER_SESSION: {
        **_NOT_ALLOWED,
        pb.InvalidTopicName: Meaning.FINAL,
        pb.NotAllowedError: Meaning.FINAL,
    },
    RefusedPart.PRODUCER: {
        **_NOT_ALLOWED,
        pb.ProducerFenced: Meaning.FINAL,
        pb.IncompatibleSchema: Meaning.FINAL,
        pb.NotAllowedError: Meaning.FINAL,
        pb.TopicTerminatedError: Meaning.SEALED,
        pb.TopicNotFound: Meaning.GONE,
    },
    # Any other number loses the attachment: the answer to the next one says more.
    RefusedPart.SEND: {
        pb.NotAllowedError: Meaning.MESSAGE,
        pb.ChecksumError: Meaning.MESSAGE,
        pb.IncompatibleSchema: Meaning.MESSAGE,
        pb.TopicTerminatedError: Meaning.SEALED,
    },
    # The subscription may not be created: there are too many, or subscriptions are not auto-created.
    RefusedPart.NEW_SUBSCRIPTION: {
        **_CONSUMER,
        pb.NotAllowedError: Meaning.FINAL,
        pb.SubscriptionNotFound: Meaning.FINAL,
    },
    RefusedPart.CONSUMER: _CONSUMER,
}

# Errors after which an application may call again: `retryable` of an error.
PASSING: Final = frozenset(
    {
        pb.ServiceNotReady,
        pb.MetadataError,
        pb.PersistenceError,
        pb.TooManyRequests,
        pb.ProducerBusy,
        pb.ConsumerBusy,
        pb.ProducerBlockedQuotaExceededError,
        pb.ProducerBlockedQuotaExceededException,
    }
)


def meaning(refused: Refusal, part: RefusedPart) -> Meaning:
    if refused.is_of_connection:
        part = RefusedPart.CONNECTION
    by_number = TABLE[part].get(refused.error, Meaning.RETRY)
    if by_number is Meaning.FINAL:
        return by_number
    text = str(refused)
    return next((meant for word, meant in WORDS.items() if word in text), by_number)


def first_kept(refused: Refusal) -> tuple[int, int] | None:
    """The first entry that a segment still has, if the broker refused because earlier entries were deleted."""
    _, is_lost, rest = str(refused).partition(f"{DATA_LOST} ")
    return read_position(rest.partition(": ")[0]) if is_lost else None
