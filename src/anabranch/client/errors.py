"""What can go wrong for an application, and what it can do about it.

    AnabranchError             anything below; `retryable` says whether the same call may succeed later
    ├── ConnectionLost         the broker went away, or could not be reached           retryable
    │   └── AccessFailed       the broker's certificate is not trusted, or our own token or certificate cannot be read
    ├── TimedOut               something took longer than its time-out allows          retryable
    ├── MemoryFull             the client's memory budget is used up (`when_full="refuse"`)  retryable
    ├── RequestRefused         the broker's answer is an error; `error` is its number
    │   ├── WriteDecided       a hidden write is decided: what it is to have is written
    │   └── AttemptDropped     this attempt of a hidden write was given up: start another      retryable
    ├── AttemptInDoubt         what was stored of this attempt of a hidden write is not known  retryable
    ├── TopicDeleted           the topic is gone
    ├── Closed                 the client, producer or consumer was closed
    ├── Unsupported            the broker, or this installation, cannot do that
    ├── BadArgument            a call that cannot be meant
    ├── BadCheckpoint          these bytes are no checkpoint, or one of a later release or another topic
    │   └── TopicMadeAgain     the topic of this checkpoint was deleted, and its name is that of another now
    ├── DataLost               messages that were to be read next are gone; names the gap
    ├── SchemaMismatch         a value or a message that does not fit the schema
    ├── MessageIncomplete      a large message whose parts did not all come
    └── CryptoFailed           a message that cannot be encrypted or decrypted

Each message says what to do. Connections come back by themselves: the first two reach an application only when a
time-out passes.
"""

from __future__ import annotations

from typing import Final

from anabranch.errors import AnabranchError
from anabranch.model.cut import BadCheckpoint as BadCheckpoint
from anabranch.model.cut import TopicMadeAgain as TopicMadeAgain
from anabranch.model.resuming import DataLost as DataLost
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import ATTEMPT_DROPPED, WRITE_DECIDED


class ConnectionLost(AnabranchError):
    """The broker went away, or could not be reached."""

    retryable = True


class AccessFailed(ConnectionLost):
    """The broker is not trusted, or this client's own token or certificate cannot be read."""

    retryable = False


class TimedOut(AnabranchError, TimeoutError):
    """The time allowed for a call has passed. What was asked may still happen."""

    retryable = True


class MemoryFull(AnabranchError):
    """The client holds as many bytes as it may. Receipts make room: wait for some, or allow more."""

    retryable = True


# Answers that a later try may change.
_PASSING: Final = frozenset(
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


class RequestRefused(AnabranchError):
    """The broker's error answer; `error` is the protocol's number for it."""

    def __init__(self, error: int, message: str) -> None:
        # Some refusals begin with it already, for clients that drop the number.
        name = f"{pb.ServerError.Name(error)}: "
        super().__init__(name + message.removeprefix(name))
        self.error = error
        self.retryable = error in _PASSING  # type: ignore[misc]  # Of the answer, not of the class.


class WriteDecided(RequestRefused):
    """The hidden write is decided, by an earlier run of it: there is nothing left to write."""


class AttemptDropped(RequestRefused):
    """The attempt of a hidden write was given up, since nothing was heard of it: start another one."""

    def __init__(self, error: int, message: str) -> None:
        super().__init__(error, message)
        self.retryable = True  # type: ignore[misc]  # By another attempt, whatever the number says.


class AttemptInDoubt(AnabranchError):
    """The connection of a hidden producer was lost with sends unanswered: send all of it again in another attempt."""

    retryable = True


def refusal(error: int, message: str) -> RequestRefused:
    """The broker's error answer, as the kind of error that it is."""
    if message.startswith(WRITE_DECIDED):
        return WriteDecided(error, message)
    if message.startswith(ATTEMPT_DROPPED):
        return AttemptDropped(error, message)
    kind = SchemaRefused if error == pb.IncompatibleSchema else RequestRefused
    return kind(error, message)


class TopicDeleted(AnabranchError):
    """The topic is gone. One of the same name, made later, is another topic."""

    code = 11  # TopicNotFound


class Closed(AnabranchError):
    """The client, producer or consumer was closed: make another."""


class Unsupported(AnabranchError):
    """The broker, or this installation, cannot do that; the message says what is missing."""


class BadArgument(AnabranchError, ValueError):
    """A call that cannot be meant, refused before anything is sent."""


class SchemaMismatch(AnabranchError):
    """A value, or a message, that does not fit the schema."""


class SchemaRefused(RequestRefused, SchemaMismatch):
    """The topic's schema and this one do not go together, the broker says."""


class CryptoFailed(AnabranchError):
    """A message that cannot be encrypted or decrypted; the message says which key is missing."""


class MessageIncomplete(AnabranchError):
    """A message that was sent in parts, and cannot be put together."""
