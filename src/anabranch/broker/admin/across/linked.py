"""The REST of the other brokers over the links to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from anabranch.broker.admin.elsewhere import ANSWER_MAX_S, BrokerSilent, InnerAnswer, InnerRequest
from anabranch.broker.admin.http.answer import JSON
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.registry import BrokerRegistry
from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.remote_rest import RemoteRest, RestCall, RestReply, original_of
from anabranch.errors import AnabranchError


class LinkedBrokers:
    """Implements `Elsewhere`."""

    has_others = True

    def __init__(self, registry: BrokerRegistry, remote: RemoteRest) -> None:
        self._registry = registry
        self._remote = remote

    async def others(self) -> Sequence[BrokerAddress]:
        me = self._registry.me.id
        return [one.address for name, one in self._registry.living().items() if name != me]

    async def ask(
        self, broker: BrokerAddress, request: InnerRequest, *, answer_max_s: float = ANSWER_MAX_S
    ) -> InnerAnswer:
        call = RestCall(
            request.method,
            request.path,
            request.query,
            request.body,
            role=str(request.role),
            original=original_of(request.role),
        )
        try:
            reply = await self._remote.ask(broker.service_url, call, answer_max_s=answer_max_s)
        except PeerUnavailable as error:
            raise BrokerSilent(str(error)) from error
        except AnabranchError as error:
            # The broker did not understand the request, or its answer is too large.
            return InnerAnswer(500, msgspec.json.encode({"reason": str(error)}), JSON)
        return InnerAnswer(reply.status, reply.body, reply.media_type, reply.headers)

    def serve(self, answer: Callable[[InnerRequest], Awaitable[InnerAnswer]]) -> None:
        async def answered(call: RestCall) -> RestReply:
            asked = InnerRequest(call.method, call.path, call.query, call.body, call.caller())
            given = await answer(asked)
            return RestReply(given.status, given.body, given.media_type, given.headers)

        self._remote.serve(answered)
