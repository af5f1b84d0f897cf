"""The errors that a peer or a user can cause, and what the other side can do about each.

    AnabranchError                 anything below; `retryable` and `code` say what the peer may do
    └── PeerError                  the peer broke the protocol: only its own connection is closed
        ├── MalformedFrame         bytes that are no frame, no command or no entry
        │   └── OversizePayload    a payload that unpacks to more than its reader allows
        ├── OversizeFrame          a frame beyond the agreed size
        ├── ChecksumMismatch       an entry whose CRC32C does not match its bytes
        ├── IllegalCommand         a command that the state of the connection does not allow
        └── UnsupportedCompression an entry packed with a codec that is not installed

Failures of the environment (an unreachable store, a leader that moved) are events, and our own mistakes are assertions:
neither belongs in this tree. `code` is a number of the protocol's `ServerError`.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)


class AnabranchError(Exception):
    """Carries what a caller can act on: whether to try again, and the code to send over the wire."""

    retryable: ClassVar[bool] = False
    code: ClassVar[int] = 0  # UnknownError


class PeerError(AnabranchError):
    """The peer sent what the protocol does not allow. Trying the same bytes again cannot help."""

    code = 22  # NotAllowedError


class MalformedFrame(PeerError):
    """Bytes that cannot be read as a frame, as a command or as an entry."""


class OversizePayload(MalformedFrame):
    """A packed payload that claims to unpack to more than its reader allows."""


class OversizeFrame(PeerError):
    """A frame larger than the limit both sides agreed on."""


class ChecksumMismatch(PeerError):
    """The bytes of an entry changed in transit. The sender still holds the right ones."""

    retryable = True
    code = 9  # ChecksumError


class IllegalCommand(PeerError):
    """A known command at a moment when it may not be sent, such as anything before CONNECT."""


class UnsupportedCompression(PeerError):
    """The codec of an entry is unknown or its package is not installed; the message names it."""


def unraised(error: E) -> E:
    """The same error as if it had never been raised, for one that is kept: raised errors hold the frames that they
    passed, and so whatever these know. Unlike `copy`, this does not ask the class to make one from its text."""
    made = error.__class__.__new__(error.__class__, *error.args)
    made.__dict__.update(error.__dict__)
    return made
