"""The errors that an application may get, and what it can do about them.

    AnabranchError             anything below; `retryable` says whether the same call may succeed later
    ├── ConnectionLost         the broker went away, or could not be reached           retryable
    │   └── AccessFailed       the broker's certificate is not trusted, or our own token or certificate cannot be read
    ├── TimedOut               something took longer than its time-out allows          retryable
    ├── MemoryFull             the client's memory budget is used up (`when_full="refuse"`)  retryable
    ├── RequestRefused         the broker's answer is an error; `error` is its number
    │   ├── WriteDecided       a hidden write is decided: its data is already written
    │   └── AttemptDropped     this attempt of a hidden write was given up: start another      retryable
    ├── AttemptInDoubt         it is unknown what this attempt of a hidden write has stored      retryable
    ├── TopicDeleted           the topic is gone
    ├── Closed                 the client, producer or consumer was closed
    ├── Unsupported            the broker, or this installation, cannot do that
    ├── BadArgument            a call with invalid arguments
    ├── BadCheckpoint          these bytes are no checkpoint, or one of a later release or another topic
    │   └── TopicMadeAgain     the topic of this checkpoint was deleted, and another topic has its name now
    ├── DataLost               messages that were to be read next are gone; names the gap
    ├── SchemaMismatch         a value or a message does not fit the schema
    ├── MessageIncomplete      a large message of which not all chunks came
    └── CryptoFailed           a message cannot be encrypted or decrypted

Each error's text says what to do. Connections are restored automatically: the first two reach an application only when
a time-out passes.
"""

from __future__ import annotations

from anabranch.client.transport.core.refusals import PASSING
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
    """The time allowed for a call has passed. The request may still be carried out."""

    retryable = True


class MemoryFull(AnabranchError):
    """The client's memory limit is reached. Receipts free memory: wait for some, or allow more."""

    retryable = True


class RequestRefused(AnabranchError):
    """The broker's error answer; `error` is the protocol's number for it."""

    is_of_connection = False

    def __init__(self, error: int, message: str) -> None:
        # Some refusals already begin with the name, for clients that drop the number.
        name = f"{pb.ServerError.Name(error)}: "
        super().__init__(name + message.removeprefix(name))
        self.error = error
        self.retryable = error in PASSING  # type: ignore[misc]  # It depends on the answer.


class ConnectRefused(RequestRefused):
    """The broker refused the connection itself, whatever was to be asked on it."""

    is_of_connection = True


class WriteDecided(RequestRefused):
    """The hidden write is decided, by an earlier run of it: there is nothing left to write."""


class AttemptDropped(RequestRefused):
    """This attempt of a hidden write was given up, by its writer or because it was silent: start another one."""

    def __init__(self, error: int, message: str) -> None:
        super().__init__(error, message)
        self.retryable = True  # type: ignore[misc]  # Another attempt may succeed, whatever the number.


class AttemptInDoubt(AnabranchError):
    """The connection of a hidden producer was lost with sends unanswered: send all messages again in another
    attempt."""

    retryable = True


def refusal(error: int, message: str) -> RequestRefused:
    """The broker's error answer, as the matching kind of error."""
    if message.startswith(WRITE_DECIDED):
        return WriteDecided(error, message)
    if message.startswith(ATTEMPT_DROPPED):
        return AttemptDropped(error, message)
    kind = SchemaRefused if error == pb.IncompatibleSchema else RequestRefused
    return kind(error, message)


class TopicDeleted(AnabranchError):
    """The topic is gone. A later topic of the same name is another topic."""

    code = 11  # TopicNotFound


class Closed(AnabranchError):
    """The client, producer or consumer was closed: make another."""


class Unsupported(AnabranchError):
    """The broker, or this installation, cannot do that; the message says what is missing."""


class BadArgument(AnabranchError, ValueError):
    """A call with invalid arguments, refused before anything is sent."""


class SchemaMismatch(AnabranchError):
    """A value, or a message, does not fit the schema."""


class SchemaRefused(RequestRefused, SchemaMismatch):
    """The broker says that the topic's schema and this one are incompatible."""


class CryptoFailed(AnabranchError):
    """A message cannot be encrypted or decrypted; the text says which key is missing."""


class MessageIncomplete(AnabranchError):
    """A message that was sent in chunks cannot be joined."""
