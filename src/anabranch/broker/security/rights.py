"""Rights: the checks that a broker makes before it acts for a role, and an authorizer that allows everything.

An `Authorizer` decides about a role, the name that a client or a REST caller has proved; the empty role belongs to
callers that have proved none. `Rights` turns a denial into a refusal that names what was requested. A request is
checked before anything is looked up, so that a refusal does not reveal what exists.
"""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.errors import BrokerError
from anabranch.broker.security.grants import Action
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb

ANONYMOUS = ""


class NotAuthorizedError(BrokerError):
    """The role may not do that; retrying does not help until an administrator grants it."""

    code = pb.AuthorizationError


class NoSuchTenantError(NotAuthorizedError):
    """No role may do anything in a tenant that does not exist. The error says so, as in Pulsar: after a typo in a
    tenant's name, users should not ask for permissions. Namespaces and topics of a tenant are not revealed without
    rights."""

    code = pb.TopicNotFound


class Authorizer(Protocol):
    """Topics are given by any of their names: a segment counts as its `topic://`."""

    async def is_super_user(self, role: str) -> bool:
        """Super users are brokers, and operators."""
        ...

    async def may_administer_tenant(self, role: str, tenant: str) -> bool:
        """Whether the role may administer the tenant's namespaces and all in them. Super users create and change the
        tenant itself.

        NoSuchTenantError instead of False, if there is no such tenant."""
        ...

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        """Whether the role may create, change, inspect and delete the topic, or any topic of the namespace."""
        ...

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        """Whether the role may list the topics of the namespace, and watch the list."""
        ...

    async def may_act(self, role: str, namespace: NamespaceName, action: Action) -> bool:
        """Whether the role may perform the action on every topic of the namespace."""
        ...

    async def may_lookup(self, role: str, topic: TopicName) -> bool: ...

    async def may_produce(self, role: str, topic: TopicName) -> bool: ...

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        """Without a name, with any subscription. NotAuthorizedError if there is a reason to state."""
        ...


class AllowAll:
    """Without authentication roles cannot be distinguished."""

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
    """The same checks as demands: each returns, or raises NotAuthorizedError."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer

    @property
    def are_open(self) -> bool:
        """Whether every role may do everything, so that checks can be omitted."""
        return type(self._authorizer) is AllowAll  # Not a subclass, which may refuse something.

    @property
    def go_by_tenant(self) -> bool:
        """Whether a role that may not administer a namespace may administer none of its topics."""
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
        """As `produce`, but returns the answer, for callers that show more to roles with the right."""
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
    """The role of a proxy that acts for another role. Both must have the requested right."""

    __slots__ = ("original",)
    original: str

    def __new__(cls, proxy: str, original: str) -> Proxied:
        made = super().__new__(cls, proxy)
        made.original = original
        return made


def principals(role: str) -> tuple[str, ...]:
    """All roles on whose behalf a request is made."""
    return (str(role), role.original) if isinstance(role, Proxied) else (role,)


def _refusal(role: str, what: str) -> NotAuthorizedError:
    who = f"role {role!r}" if role != ANONYMOUS else "a client without a role"
    return NotAuthorizedError(f"{who} may not {what}; ask an administrator for the permission")
