"""REST requests that one broker makes at another, for a caller that the first has identified.

The broker that answers judges the caller's rights again, for the role that it is told. It answers for itself or
refuses, and never passes a request on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.methods import PeerMethod
from anabranch.broker.peers.peers import Peers
from anabranch.broker.security.rights import Proxied

ANSWER_MAX_S: Final = 30.0


class RestCall(msgspec.Struct, frozen=True, omit_defaults=True):
    method: str
    # Percent-encoded, as in a URL.
    path: str
    query: str = ""
    body: bytes = b""
    headers: dict[str, str] = {}
    # The role that the first broker has identified; for a proxy, also the role that it acts for.
    role: str = ""
    original: str | None = None

    def caller(self) -> str:
        """The role, as rights are asked for it."""
        return self.role if self.original is None else Proxied(self.role, self.original)


class RestReply(msgspec.Struct, frozen=True, omit_defaults=True):
    status: int
    body: bytes = b""
    media_type: str = ""
    headers: dict[str, str] = {}


REST: Final = PeerMethod("rest", RestCall, RestReply, answer_max_s=ANSWER_MAX_S, is_for_users=True)


def original_of(role: str) -> str | None:
    """The role that a proxy acts for; None for a role that acts for itself."""
    return role.original if isinstance(role, Proxied) else None


class RemoteRest:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._answer: Callable[[RestCall], Awaitable[RestReply]] | None = None
        peers.handlers.add(REST, self._called)

    async def ask(self, broker: str, call: RestCall, *, answer_max_s: float = ANSWER_MAX_S) -> RestReply:
        """The answer of the broker with that id or service URL. PeerUnavailable if there is none: the request may have
        taken effect."""
        return await self._peers.call(broker, REST, call, answer_max_s=answer_max_s)

    def serve(self, answer: Callable[[RestCall], Awaitable[RestReply]]) -> None:
        """From now on other brokers' requests are answered by `answer`."""
        self._answer = answer

    async def _called(self, peer: str, call: RestCall) -> RestReply:
        if self._answer is None:
            # The binary port opens first, the REST a moment later.
            raise PeerUnavailable("this broker does not serve its REST yet")
        return await self._answer(call)
