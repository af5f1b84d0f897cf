"""Errors of calls between brokers, and how an error of one broker reaches the other.

AnabranchError
├── PeerUnavailable  no answer: the broker cannot be reached, or is too slow. The call may have taken effect
└── PeerCallFailed   the broker's answer is an error that has no class of its own here

An answer names the kind of its error. The kinds below become the same class again at the caller; others become one of
the two above, by whether the call may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from anabranch.broker.errors import (
    NotAllowedError,
    NotReadyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from anabranch.controller.core.errors import (
    OperationRefused,
    SegmentGone,
    SegmentRefused,
    SegmentUnavailable,
    SubscriptionMissing,
    TooBusy,
    TopicMissing,
)
from anabranch.errors import AnabranchError


class PeerUnavailable(AnabranchError):
    """Another broker cannot be reached, or did not answer in time. The call may have taken effect."""

    code = 6  # ServiceNotReady
    retryable = True


class PeerCallFailed(AnabranchError):
    """Another broker has refused a call, or failed to carry it out."""


# What reading MessagePack of another process raises: it may be cut off, of the wrong kind, not UTF-8, or nested deeply.
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

UNAVAILABLE: Final = "unavailable"
FAILED: Final = "failed"

_CLASSES: Final[Mapping[str, type[AnabranchError]]] = {
    "segment-refused": SegmentRefused,
    "segment-gone": SegmentGone,
    "segment-unavailable": SegmentUnavailable,
    "operation-refused": OperationRefused,
    "topic-missing": TopicMissing,
    "subscription-missing": SubscriptionMissing,
    "too-busy": TooBusy,
    "not-ready": NotReadyError,
    "not-allowed": NotAllowedError,
    "topic-not-found": TopicNotFoundError,
    "topic-terminated": TopicTerminatedError,
    "subscription-not-found": SubscriptionNotFoundError,
    UNAVAILABLE: PeerUnavailable,
    FAILED: PeerCallFailed,
}
_KINDS: Final = {error: kind for kind, error in _CLASSES.items()}


def kind_of(error: BaseException) -> str:
    """The kind of an error, for an answer."""
    for one in type(error).__mro__:
        if one in _KINDS:
            return _KINDS[one]
    return UNAVAILABLE if isinstance(error, AnabranchError) and error.retryable else FAILED


def raised(kind: str, message: str) -> AnabranchError:
    """The error that an answer of that kind stands for."""
    return _CLASSES.get(kind, PeerCallFailed)(message)
