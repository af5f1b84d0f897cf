"""A no becomes a refusal that names who wanted what; without an authorizer anybody may everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from anabranch.broker.security.grants import Action
from anabranch.broker.security.rights import AllowAll, NotAuthorizedError, Rights
from anabranch.model.names import PUBLIC_DEFAULT, NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb

TOPIC = TopicName.parse("topic://public/default/t")


class AllowNothing:
    async def is_super_user(self, role: str) -> bool:
        return False

    async def may_administer_tenant(self, role: str, tenant: str) -> bool:
        return False

    async def may_act(self, role: str, namespace: NamespaceName, action: Action) -> bool:
        return False

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        return False

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return False

    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        return False

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        return False

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        return False


Demand = Callable[[Rights, str], Awaitable[None]]
DEMANDS: list[tuple[Demand, str]] = [
    (lambda rights, role: rights.super_user(role), "super user"),
    (lambda rights, role: rights.administer_tenant(role, "public"), "administer tenant public"),
    (lambda rights, role: rights.administer(role, PUBLIC_DEFAULT), "administer public/default"),
    (
        lambda rights, role: rights.act(role, PUBLIC_DEFAULT, Action.CONSUME),
        "consume in all of public/default",
    ),
    (lambda rights, role: rights.administer(role, TOPIC), "administer topic://public/default/t"),
    (lambda rights, role: rights.list_topics(role, PUBLIC_DEFAULT), "list the topics of public/default"),
    (lambda rights, role: rights.lookup(role, TOPIC), "look up topic://public/default/t"),
    (lambda rights, role: rights.produce(role, TOPIC), "produce to topic://public/default/t"),
    (
        lambda rights, role: rights.consume(role, TOPIC, "s"),
        "consume topic://public/default/t as subscription 's'",
    ),
]


@pytest.mark.parametrize(("demand", "what"), DEMANDS, ids=[what for _, what in DEMANDS])
async def test_a_no_is_refused_with_who_wanted_what(demand: Demand, what: str) -> None:
    rights = Rights(AllowNothing())
    with pytest.raises(NotAuthorizedError, match=f"role 'eve' may not .*{what}") as refused:
        await demand(rights, "eve")
    assert (refused.value.code, refused.value.retryable) == (pb.AuthorizationError, False)
    with pytest.raises(NotAuthorizedError, match="without a role"):
        await demand(rights, "")


async def test_without_an_authorizer_everything_is_allowed() -> None:
    for demand, _ in DEMANDS:
        await demand(Rights(AllowAll()), "")
