"""How refusals become HTTP answers: Pulsar's status codes and its body, `{"reason": "..."}`."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from anabranch.autoscale.policy import InvalidPolicy
from anabranch.broker import errors as broker_errors
from anabranch.broker.authorization import NoSuchTenantError, NotAuthorizedError
from anabranch.broker.broker import Broker
from anabranch.broker.policy_json import InvalidValue
from anabranch.broker.resources import NamespaceNotFound, ResourceError
from anabranch.broker.schemas import SchemaNotFoundError
from anabranch.controller import ports
from anabranch.controller.errors import ControllerError
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import StoreUnavailable, ValueTooLarge
from anabranch.model.names import InvalidName
from anabranch.model.segments import LayoutRefused
from anabranch.storage.port import LogFullError

log = logging.getLogger(__name__)


class RestError(AnabranchError):
    """A refusal decided by the REST layer itself."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


# The first class that fits wins.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (InvalidName, 412),
    (InvalidPolicy, 412),
    (NoSuchTenantError, 404),
    (NotAuthorizedError, 403),
    (LayoutRefused, 412),
    (ports.SegmentRefused, 409),
    (ports.SegmentGone, 404),
    (ports.SegmentUnavailable, 503),
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
    (ValueTooLarge, 413),
    (StoreUnavailable, 503),
    (LogFullError, 503),
)


# Admin clients compare these word for word. The name that is missing is in the path that was asked for.
_TEXTS: tuple[tuple[type[Exception], str], ...] = (
    (NoSuchTenantError, "Tenant does not exist"),
    (NamespaceNotFound, "Namespace does not exist"),
)


def status_of(error: Exception) -> int:
    if isinstance(error, ResourceError | RestError | ControllerError | InvalidValue):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def reason(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"reason": text}, status_code=status, headers=headers)


def redirect(request: Request, web_url: str) -> JSONResponse:
    """The same request, word for word, to another broker."""
    path = request.scope["raw_path"].partition(b"?")[0].decode("latin-1")
    query = request.scope["query_string"].decode("latin-1")
    target = f"{web_url.rstrip('/')}{path}{'?' if query else ''}{query}"
    return reason(307, f"Ask {web_url}", {"Location": target})


def install(app: FastAPI) -> None:
    app.add_exception_handler(ports.NotLeader, _elsewhere)
    app.add_exception_handler(AnabranchError, _refused)
    app.add_exception_handler(InvalidValue, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _broken)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    status = status_of(error)
    if status in (500, 503):
        log.warning("%s %s answered %d: %s", request.method, request.url.path, status, error)
    return reason(status, next((text for kind, text in _TEXTS if isinstance(error, kind)), str(error)))


async def _elsewhere(request: Request, error: Exception) -> JSONResponse:
    """To the leader, if it can be found. It must not be sent back here, or the request would go in circles."""
    assert isinstance(error, ports.NotLeader)
    broker: Broker = request.app.state.broker
    is_elsewhere = error.leader not in ("", broker.service_url)
    if is_elsewhere and (web_url := await broker.registry.web_url(error.leader)):
        return redirect(request, web_url)
    return reason(503, f"{error}; try again in a moment", {"Retry-After": "1"})


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    """A query or path parameter that is no number or no boolean."""
    assert isinstance(error, RequestValidationError)
    faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
    return reason(400, f"Invalid parameter: {faults}")


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    texts = {
        404: f"No such resource: {request.method} {request.url.path}",
        405: f"{request.method} is not possible on {request.url.path}",
    }
    headers = dict(error.headers) if error.headers else None
    return reason(error.status_code, texts.get(error.status_code, str(error.detail)), headers)


async def _broken(request: Request, error: Exception) -> JSONResponse:
    # Logged by the server with its traceback, since it raises the error again after this answer.
    return reason(500, f"{type(error).__name__}: {error}")
