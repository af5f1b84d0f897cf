"""The rights that are stored: super users in the configuration, tenants' admins and grants in the metadata store.

Every other role is denied. A namespace or topic that does not exist is refused like one that is not allowed, so that a
refusal does not reveal what a tenant has.
"""

from __future__ import annotations

from collections.abc import Collection

from anabranch.broker.catalog.resources import NotFound, Resources
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.security.grants import Action, is_granted, subscription_fault
from anabranch.broker.security.rights import NoSuchTenantError, NotAuthorizedError
from anabranch.model.names import NamespaceName, TopicName


class StoredRights:
    """Implements `Authorizer`."""

    # Tenants' admins administer all of it, and no role administers single topics.
    goes_by_tenant = True

    def __init__(
        self, resources: Resources, super_users: Collection[str], *, allows_wildcards: bool = False
    ) -> None:
        self._resources = resources
        self._super_users = frozenset(super_users)
        self._allows_wildcards = allows_wildcards

    async def is_super_user(self, role: str) -> bool:
        return bool(role) and role in self._super_users

    async def may_administer_tenant(self, role: str, tenant: str) -> bool:
        if await self.is_super_user(role):
            return True
        try:
            return bool(role) and role in (await self._resources.tenant(tenant)).admin_roles
        except NotFound as missing:
            raise NoSuchTenantError(str(missing)) from None

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        return await self.may_administer_tenant(role, where.tenant)

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return await self.may_act(role, namespace, Action.CONSUME) or await self.may_act(
            role, namespace, Action.PRODUCE
        )

    async def may_act(self, role: str, namespace: NamespaceName, action: Action) -> bool:
        policies = await self._policies(namespace)
        if policies is not None and self._granted(policies, role, action):
            return True
        return await self.may_administer_tenant(role, namespace.tenant)

    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        policies = await self._policies(topic.namespace)
        if policies is not None and any(
            self._granted(policies, role, action, topic) for action in (Action.PRODUCE, Action.CONSUME)
        ):
            return True
        return await self.may_administer(role, topic)

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        policies = await self._policies(topic.namespace)
        if policies is not None and self._granted(policies, role, Action.PRODUCE, topic):
            return True
        return await self.may_administer(role, topic)

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        policies = await self._policies(topic.namespace)
        granted = policies is not None and self._granted(policies, role, Action.CONSUME, topic)
        fault = subscription_fault(policies, role, subscription) if policies is not None else ""
        if granted and not fault:
            return True
        if await self.may_administer(role, topic):
            return True
        if granted:
            raise NotAuthorizedError(f"role {role!r} may not consume {topic} as {subscription!r}: {fault}")
        return False

    async def _policies(self, namespace: NamespaceName) -> NamespacePolicies | None:
        try:
            return await self._resources.policies(namespace)
        except NotFound:
            return None

    def _granted(
        self, policies: NamespacePolicies, role: str, action: Action, topic: TopicName | None = None
    ) -> bool:
        return is_granted(policies.auth_policies, role, action, topic, wildcards=self._allows_wildcards)
