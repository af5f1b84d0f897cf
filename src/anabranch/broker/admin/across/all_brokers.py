"""Requests that every broker answers for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from anabranch.broker.admin.elsewhere import ANSWER_MAX_S, BrokerSilent, Elsewhere, InnerAnswer, InnerRequest
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.errors import NotReadyError


def same_request(request: HttpRequest) -> InnerRequest:
    """The same request without its body, for other brokers."""
    query = request.scope["query_string"].decode("latin-1")
    return InnerRequest(request.method, request.path, query, role=request.role)


async def from_others(elsewhere: Elsewhere, request: InnerRequest) -> Sequence[InnerAnswer]:
    """What every other broker answers. NotReadyError if one does not, unless it is gone: then it has nothing to say.
    RestError if one refuses."""
    answers = []
    silent = []
    for broker, answer in await heard_from_others(elsewhere, request):
        if answer is None:
            silent.append(broker.service_url)
        elif answer.status == 307:
            raise NotReadyError(f"{broker.service_url} has just lost what it was asked about: ask again")
        elif not answer.is_success:
            raise RestError(answer.status, answer.reason)
        else:
            answers.append(answer)
    if silent:
        living = {one.service_url for one in await elsewhere.others()}
        if still := [url for url in silent if url in living]:
            raise NotReadyError(f"{', '.join(still)} did not answer: ask again")
    return answers


async def heard_from_others(
    elsewhere: Elsewhere, request: InnerRequest, *, answer_max_s: float = ANSWER_MAX_S
) -> list[tuple[BrokerAddress, InnerAnswer | None]]:
    """Every other broker with its answer; None for one that does not answer in that time."""

    async def asked(broker: BrokerAddress) -> tuple[BrokerAddress, InnerAnswer | None]:
        try:
            return broker, await elsewhere.ask(broker, request, answer_max_s=answer_max_s)
        except BrokerSilent:
            return broker, None

    return await asyncio.gather(*map(asked, await elsewhere.others()))
