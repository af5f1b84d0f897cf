"""How refusals become HTTP answers: Pulsar's status codes and its body, `{"reason": "..."}`."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.autoscale.policy import InvalidPolicy
from anabranch.broker import errors as broker_errors
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import NamespaceNotFound, ResourceError
from anabranch.broker.catalog.schemas import SchemaNotFoundError
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.broker.security.rights import NoSuchTenantError, NotAuthorizedError
from anabranch.controller.core import errors as controller_errors
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import InvalidPath, StoreUnavailable, ValueTooLarge
from anabranch.model.names import InvalidName
from anabranch.model.segments import LayoutRefused
from anabranch.storage.port import LogFullError


class RestError(AnabranchError):
    """A refusal decided by the REST layer itself."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


class AskElsewhere(RestError):
    """Another broker answers this request: the caller is redirected there with the same request."""

    def __init__(self, broker: BrokerAddress, reason: str = "") -> None:
        super().__init__(307, reason or f"Ask {broker.web_id}")
        self.broker = broker


# The first class that matches wins.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (InvalidName, 412),
    (InvalidPolicy, 412),
    (NoSuchTenantError, 404),
    (NotAuthorizedError, 403),
    (LayoutRefused, 412),
    (controller_errors.SegmentRefused, 409),
    (controller_errors.SegmentGone, 404),
    (controller_errors.SegmentUnavailable, 503),
    (SchemaNotFoundError, 404),
    (broker_errors.TopicNotFoundError, 404),
    (broker_errors.SubscriptionNotFoundError, 404),
    (broker_errors.TopicTerminatedError, 405),
    (broker_errors.SubscriptionBusyError, 412),
    (broker_errors.ConsumerBusyError, 412),
    (broker_errors.ProducerBusyError, 412),
    (broker_errors.InvalidSchemaError, 422),
    (broker_errors.IncompatibleSchemaError, 409),
    (broker_errors.TooManyTopicsError, 412),
    (broker_errors.NotAllowedError, 409),
    (broker_errors.NotReadyError, 503),
    (InvalidPath, 412),
    (ValueTooLarge, 413),
    (StoreUnavailable, 503),
    (LogFullError, 503),
)


# Admin clients compare these texts exactly. The missing name is in the request's path.
_TEXTS: tuple[tuple[type[Exception], str], ...] = (
    (NoSuchTenantError, "Tenant does not exist"),
    (NamespaceNotFound, "Namespace does not exist"),
)


def status_of(error: Exception) -> int:
    if isinstance(error, ResourceError | RestError | controller_errors.ControllerError | InvalidValue):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def text_of(error: Exception) -> str:
    return next((text for kind, text in _TEXTS if isinstance(error, kind)), str(error))
