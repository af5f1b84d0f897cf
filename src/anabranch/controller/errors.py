"""What a scalable topic refuses, by what a caller can do about it.

ControllerError
├── TopicExists          choose another name
├── TopicMissing         create it first
├── SubscriptionMissing  create it first
├── OperationRefused     never right as asked; the message says what would be
└── TooBusy              try again later
"""

from __future__ import annotations

from anabranch.errors import AnabranchError


class ControllerError(AnabranchError):
    """A refusal; nothing was changed. `status` is the HTTP status that admin clients expect for it."""

    status = 400


class TopicExists(ControllerError):
    status = 409
    code = 22  # NotAllowedError


class TopicMissing(ControllerError):
    status = 404
    code = 11  # TopicNotFound


class SubscriptionMissing(ControllerError):
    status = 404
    code = 12  # SubscriptionNotFound


class OperationRefused(ControllerError):
    status = 412
    code = 22  # NotAllowedError


class TooBusy(ControllerError):
    status = 503
    code = 6  # ServiceNotReady
    retryable = True
