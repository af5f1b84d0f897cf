"""What a request names and carries: the broker, topics and namespaces from the path, JSON from the body.

Paths reach the routes still percent-encoded (see `app.py`), so that `a%2Fb` is one path segment; names are decoded
here. Topic and subscription names come from Java's URLEncoder, which writes a space as `+`.

Bodies are read liberally, whatever the content type: admin clients send a bare `4`, `true`, an object or nothing.

Whatever a route depends on is a coroutine, though none of it waits: FastAPI calls plain functions in threads, one after
the other, and a split's request waited for four of them.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, unquote_plus

import msgspec
from fastapi import Depends, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.request_scope import ROLE
from anabranch.broker.broker import Broker
from anabranch.broker.compaction.topic_compaction import COMPACTION
from anabranch.model.names import Domain, NamespaceName, TopicName, check_given

T = TypeVar("T")

BODY_BYTES_MAX = 1 << 20


async def _broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


async def _role(request: Request) -> str:
    role: str = request.scope[ROLE]
    return role


async def _namespace(tenant: str, namespace: str) -> NamespaceName:
    return NamespaceName(unquote(tenant), unquote(namespace))


async def _topic(domain: Domain, tenant: str, namespace: str, topic: str) -> TopicName:
    return TopicName(domain, await _namespace(tenant, namespace), decoded(topic))


async def _persistent(tenant: str, namespace: str, topic: str) -> TopicName:
    return await _topic(Domain.PERSISTENT, tenant, namespace, topic)


async def _subscription(subscription: str) -> str:
    # Twice, as Pulsar does: its admin client encodes subscription names twice, and topics once.
    name = decoded(unquote(subscription))
    if not name:
        raise RestError(412, "Subscription name is empty")
    check_given("subscription", name)
    return name


async def _users_subscription(subscription: str) -> str:
    name = await _subscription(subscription)
    if name == COMPACTION:
        raise RestError(405, f"{COMPACTION} is the broker's own: what is not compacted yet hangs on it")
    return name


def decoded(text: str) -> str:
    try:
        return unquote_plus(text, errors="strict")
    except UnicodeDecodeError:
        raise RestError(400, f"{text} is not percent-encoded UTF-8") from None


def decoded_once(text: str) -> str:
    """A name that came from Pulsar's clients of scalable topics, which leave a `+` as it is."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RestError(400, f"{text} is not percent-encoded UTF-8") from None


BrokerDep = Annotated[Broker, Depends(_broker)]
RoleDep = Annotated[str, Depends(_role)]
NamespaceDep = Annotated[NamespaceName, Depends(_namespace)]
TopicDep = Annotated[TopicName, Depends(_persistent)]
AnyTopicDep = Annotated[TopicName, Depends(_topic)]
SubscriptionDep = Annotated[str, Depends(_subscription)]
# One that users may change: not compaction's, which keeps the log for readers of what is compacted.
UsersSubscriptionDep = Annotated[str, Depends(_users_subscription)]


async def body(
    request: Request, kind: type[T], default: T | None = None, *, bytes_max: int = BODY_BYTES_MAX
) -> T:
    """The request's JSON as `kind`; `default` for an empty body or null. Unset fields may be sent as null."""
    value: T = await body_of(request, kind, default, bytes_max=bytes_max)
    return value


async def body_of(
    request: Request,
    kind: Any,
    default: Any = None,
    *,
    is_nothing_ok: bool = False,
    bytes_max: int = BODY_BYTES_MAX,
) -> Any:
    """The same for a union, which is no type to the type checker. None for nothing, where that is all right."""
    data = await _read(request, bytes_max)
    if not data.strip() or data.strip() == b"null":
        if default is None and not is_nothing_ok:
            raise RestError(400, "The request has no body")
        return default
    try:
        value = _without_nulls(msgspec.json.decode(data))
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RestError(400, f"Invalid request body: {error}") from None


async def _read(request: Request, bytes_max: int) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > bytes_max:
            raise RestError(413, f"The request body is over {bytes_max} bytes")
    return bytes(data)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
