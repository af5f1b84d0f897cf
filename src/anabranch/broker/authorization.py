"""Who may do what: the questions a broker asks before it acts for somebody, and the answer "anybody may everything".

An `Authorizer` answers questions about a role, the name that a client or a REST caller has proved to be its own; the
empty role is somebody who has proved nothing. `Rights` turns a no into a refusal that says what was wanted. Whoever
serves a request asks before it looks anything up, so that a refusal gives nothing away about what exists.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.errors import BrokerError
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb

ANONYMOUS = ""


class NotAuthorizedError(BrokerError):
    """The role may not do that; asking again does not help until somebody grants it."""

    code = pb.AuthorizationError


class Authorizer(Protocol):
    """Topics are asked for by the names that users know: a segment counts as its `topic://`."""

    async def is_super_user(self, role: str) -> bool:
        """Brokers among themselves, and operators."""
        ...

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        """Make, change, look into and delete the topic, or any topic of the namespace."""
        ...

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        """See the names of the topics in it, and follow them as they come and go."""
        ...

    async def may_lookup(self, role: str, topic: TopicName) -> bool: ...

    async def may_produce(self, role: str, topic: TopicName) -> bool: ...

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool: ...


class AllowAll:
    """Without authentication nobody can be told from anybody else."""

    async def is_super_user(self, role: str) -> bool:
        return True

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        return True

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return True

    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        return True

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        return True

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        return True


class Rights:
    """The same questions as demands: each returns, or raises NotAuthorizedError."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    async def super_user(self, role: str) -> None:
        if not await self._authorizer.is_super_user(role):
            raise _refusal(role, "act as a super user")

    async def administer(self, role: str, where: NamespaceName | TopicName) -> None:
        if not await self._authorizer.may_administer(role, where):
            raise _refusal(role, f"administer {where}")

    async def list_topics(self, role: str, namespace: NamespaceName) -> None:
        if not await self._authorizer.may_list_topics(role, namespace):
            raise _refusal(role, f"list the topics of {namespace}")

    async def lookup(self, role: str, topic: TopicName) -> None:
        if not await self._authorizer.may_lookup(role, topic):
            raise _refusal(role, f"look up {topic}")

    async def produce(self, role: str, topic: TopicName) -> None:
        if not await self._authorizer.may_produce(role, topic):
            raise _refusal(role, f"produce to {topic}")

    async def consume(self, role: str, topic: TopicName, subscription: str) -> None:
        if not await self._authorizer.may_consume(role, topic, subscription):
            raise _refusal(role, f"consume {topic} as subscription {subscription!r}")


def _refusal(role: str, what: str) -> NotAuthorizedError:
    who = f"role {role!r}" if role != ANONYMOUS else "somebody without a role"
    return NotAuthorizedError(f"{who} may not {what}; ask an administrator for the permission")
