"""What handlers get by the types and names of their parameters, and where in a request it is found.

| annotation | value |
|---|---|
| `HttpRequest`, `AdminServices` | the request, the broker's parts |
| `NamespaceName`, `TopicName` | the one that the path names, decoded |
| `Annotated[…, From(read)]` | what `read` returns for the request |
| anything else | the word of that name in the path, as it was sent, or the parameter of that name in the query |

msgspec converts a query's values to the annotated types, with their bounds (`msgspec.Meta`); the description of the
REST is generated from the same annotations.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal

import msgspec

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Handler, Route
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.model.names import NamespaceName, TopicName, check_given

_FLAGS: Final = dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True) | dict.fromkeys(
    ("false", "0", "no", "n", "off", "f"), False
)


@dataclass(frozen=True, slots=True)
class From:
    """In an annotation: the function that returns the value for the request. A coroutine function is awaited."""

    read: Callable[[HttpRequest], Any]


_BY_TYPE: Final[dict[Any, From]] = {
    HttpRequest: From(lambda request: request),
    AdminServices: From(lambda request: request.services),
    NamespaceName: From(lambda request: request.names.namespace),
    TopicName: From(lambda request: request.names.topic),
}


def _subscription(request: HttpRequest) -> str:
    name = request.names.subscription
    if not name:
        raise RestError(412, "Subscription name is empty")
    check_given("subscription", name)
    return name


def _users_subscription(request: HttpRequest) -> str:
    name = _subscription(request)
    if name == COMPACTION:
        raise RestError(
            405, f"{COMPACTION} is the broker's own: it keeps messages that are not compacted yet"
        )
    return name


# A number that the protocol has room for: what else is sent could not be passed on to another broker, nor be stored.
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# The role that sends the request.
Role = Annotated[str, From(lambda request: request.role)]
SubscriptionName = Annotated[str, From(_subscription)]
# A subscription that users may change: not compaction's, which keeps the log for readers of the compacted topic.
UsersSubscriptionName = Annotated[str, From(_users_subscription)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A word of the path, or a parameter of the query, that a handler gets as it is."""

    name: str
    kind: Any
    default: Any
    in_path: bool

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def read(self, request: HttpRequest) -> Any:
        values = [request.names.words[self.name]] if self.in_path else request.query.get(self.name)
        if values is None:
            if self.is_required:
                raise RestError(400, f"Invalid parameter: {self.name} is missing")
            return self.default
        if self.kind is str or self.kind == str | None:
            return values[-1]
        return converted(self.name, values if self.kind == Sequence[str] else values[-1], self.kind)


def converted(name: str, value: str | list[str], kind: Any) -> Any:
    if kind is bool and isinstance(value, str) and (flag := _FLAGS.get(value.lower())) is not None:
        return flag
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RestError(400, f"Invalid parameter: {name}: {error}{_choices(kind)}") from None


def _choices(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return f"; expected one of {', '.join(typing.get_args(kind))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"; expected one of {', '.join(one.value for one in kind)}"
    return ""


def asked_by(route: Route) -> dict[str, From | Parameter]:
    """The sources of the handler's arguments, by the names of its parameters."""
    kinds = typing.get_type_hints(route.handler, include_extras=True)
    found: dict[str, From | Parameter] = {}
    for name, one in inspect.signature(route.handler).parameters.items():
        kind = kinds[name]
        given = next((extra for extra in getattr(kind, "__metadata__", ()) if isinstance(extra, From)), None)
        in_path = "{" + name + "}" in route.path or "{" + name + ":path}" in route.path
        known = given or (_BY_TYPE.get(kind) if isinstance(kind, type) else None)
        found[name] = known or Parameter(name, kind, one.default, in_path)
    return found


def bound(route: Route) -> Callable[[HttpRequest], Awaitable[Any]]:
    """The route's handler as a function of the request."""
    handler: Handler = route.handler
    asked = [(name, one.read, inspect.iscoroutinefunction(one.read)) for name, one in asked_by(route).items()]

    async def call(request: HttpRequest) -> Any:
        values = {}
        for name, read, waits in asked:
            values[name] = await read(request) if waits else read(request)
        return await handler(**values)

    return call
