"""Which function performs each request of another broker: a table by the request's method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from anabranch.broker.peers.errors import UNREADABLE, PeerCallFailed
from anabranch.broker.peers.methods import PeerMethod

R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)


class PeerHandlers:
    """The requests that this broker performs for others. Who calls was checked by the link."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[PeerMethod[Any, Any], Callable[[str, Any], Awaitable[Any]]]] = {}

    def add(self, method: PeerMethod[R, A], handler: Callable[[str, R], Awaitable[A]]) -> None:
        """`handler` is called with the id of the calling broker and its request. What it raises is the answer; its
        caller may be gone before it has finished, and may send the same request again."""
        assert method.name not in self._handlers, method.name
        self._handlers[method.name] = (method, handler)

    async def perform(self, peer: str, name: str, body: bytes) -> bytes:
        """The answer to a request of that broker, encoded."""
        found = self._handlers.get(name)
        if found is None:
            raise PeerCallFailed(f"this broker does not know the request {name}: is it of an older release?")
        method, handler = found
        try:
            request = method.read_request(body)
        except UNREADABLE as error:
            raise PeerCallFailed(f"a request {name} cannot be read: {error}") from None
        answer = method.encode(await handler(peer, request))
        if len(answer) > method.bytes_max:
            raise PeerCallFailed(
                f"the answer to {name} has {len(answer)} bytes, more than the {method.bytes_max} that are sent"
            )
        return answer
