"""Who may do what: the questions a broker asks before it acts for somebody, and the answer "anybody may everything".

An `Authorizer` answers questions about a role, the name that a client or a REST caller has proved to be its own; the
empty role is somebody who has proved nothing. `Rights` turns a no into a refusal that says what was wanted. Whoever
serves a request asks before it looks anything up, so that a refusal gives nothing away about what exists.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.errors import BrokerError
from anabranch.broker.permissions import Action
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb

ANONYMOUS = ""


class NotAuthorizedError(BrokerError):
    """The role may not do that; asking again does not help until somebody grants it."""

    code = pb.AuthorizationError


class NoSuchTenantError(NotAuthorizedError):
    """Nobody may do anything in a tenant that is not there. It is told, as Pulsar does: whoever mistypes a tenant
    should not go and ask for permissions. Which namespaces and topics a tenant has is told to nobody without rights."""

    code = pb.TopicNotFound


class Authorizer(Protocol):
    """Topics are asked for by any of their names: a segment counts as its `topic://`."""

    async def is_super_user(self, role: str) -> bool:
        """Brokers among themselves, and operators."""
        ...

    async def may_administer_tenant(self, role: str, tenant: str) -> bool:
        """Its namespaces and all that is in them. The tenant itself is made and changed by super users.

        NoSuchTenantError instead of no, where there is none."""
        ...

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        """Make, change, look into and delete the topic, or any topic of the namespace."""
        ...

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        """See the names of the topics in it, and follow them as they come and go."""
        ...

    async def may_act(self, role: str, namespace: NamespaceName, action: Action) -> bool:
        """Do it on every topic of the namespace."""
        ...

    async def may_lookup(self, role: str, topic: TopicName) -> bool: ...

    async def may_produce(self, role: str, topic: TopicName) -> bool: ...

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        """With any subscription, if none is named. NotAuthorizedError where there is more to say than no."""
        ...


class AllowAll:
    """Without authentication nobody can be told from anybody else."""

    async def is_super_user(self, role: str) -> bool:
        return True

    async def may_administer_tenant(self, role: str, tenant: str) -> bool:
        return True

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        return True

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return True

    async def may_act(self, role: str, namespace: NamespaceName, action: Action) -> bool:
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

    @property
    def are_open(self) -> bool:
        """Whether everybody may everything, so that nothing need be asked twice."""
        return type(self._authorizer) is AllowAll  # And no kind of it that refuses something.

    @property
    def go_by_tenant(self) -> bool:
        """Whether who may not administer a namespace may administer none of its topics."""
        return getattr(self._authorizer, "goes_by_tenant", False)

    async def super_user(self, role: str) -> None:
        for one in principals(role):
            if not await self._authorizer.is_super_user(one):
                raise _refusal(one, "act as a super user")

    async def administer_tenant(self, role: str, tenant: str) -> None:
        for one in principals(role):
            if not await self._authorizer.may_administer_tenant(one, tenant):
                raise _refusal(one, f"administer tenant {tenant}")

    async def administer(self, role: str, where: NamespaceName | TopicName) -> None:
        for one in principals(role):
            if not await self._authorizer.may_administer(one, where):
                raise _refusal(one, f"administer {where}")

    async def list_topics(self, role: str, namespace: NamespaceName) -> None:
        for one in principals(role):
            if not await self._authorizer.may_list_topics(one, namespace):
                raise _refusal(one, f"list the topics of {namespace}")

    async def act(self, role: str, namespace: NamespaceName, action: Action) -> None:
        for one in principals(role):
            if not await self._authorizer.may_act(one, namespace, action):
                raise _refusal(one, f"{action} in all of {namespace}")

    async def lookup(self, role: str, topic: TopicName) -> None:
        for one in principals(role):
            if not await self._authorizer.may_lookup(one, topic):
                raise _refusal(one, f"look up {topic}")

    async def produce(self, role: str, topic: TopicName) -> None:
        for one in principals(role):
            if not await self._authorizer.may_produce(one, topic):
                raise _refusal(one, f"produce to {topic}")

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        """The same as an answer, for who shows more to those who may."""
        try:
            await self.produce(role, topic)
        except NotAuthorizedError:
            return False
        return True

    async def consume(self, role: str, topic: TopicName, subscription: str = "") -> None:
        for one in principals(role):
            if not await self._authorizer.may_consume(one, topic, subscription):
                named = f" as subscription {subscription!r}" if subscription else ""
                raise _refusal(one, f"consume {topic}{named}")


class Proxied(str):
    """The role of a proxy that acts for somebody else. Both of them must be allowed what is asked for."""

    __slots__ = ("original",)
    original: str

    def __new__(cls, proxy: str, original: str) -> Proxied:
        made = super().__new__(cls, proxy)
        made.original = original
        return made


def principals(role: str) -> tuple[str, ...]:
    """Everybody on whose behalf something is done."""
    return (str(role), role.original) if isinstance(role, Proxied) else (role,)


def _refusal(role: str, what: str) -> NotAuthorizedError:
    who = f"role {role!r}" if role != ANONYMOUS else "somebody without a role"
    return NotAuthorizedError(f"{who} may not {what}; ask an administrator for the permission")
