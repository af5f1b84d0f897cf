"""Asks for the right that a REST route needs, before the route runs.

Names are taken from the route's own parameters, never from the path, and read as that route reads them: the right is
asked for exactly what the route will act on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from anabranch.broker.admin.needs import Needs
from anabranch.broker.admin.params import decoded, decoded_once
from anabranch.broker.authorization import Rights
from anabranch.broker.permissions import Action
from anabranch.model.names import Domain, NamespaceName, TopicName


async def authorize(rights: Rights, role: str, needs: Needs, path: str, names: Mapping[str, str]) -> None:
    """NotAuthorizedError if the role may not have the route served. `path` is the route's, with names in braces."""
    if rights.are_open:
        return
    try:
        await _ask(rights, role, needs, _Named(path, names))
    except (KeyError, ValueError):
        # A route without the name that its need is about; a test fails for such. And a name that is none, which the
        # route will refuse to whoever may ask it.
        await rights.super_user(role)


async def _ask(rights: Rights, role: str, needs: Needs, named: _Named) -> None:
    match needs:
        case Needs.NOTHING | Needs.NAME | Needs.ROUTE:
            pass
        case Needs.SUPER_USER:
            await rights.super_user(role)
        case Needs.TENANT_ADMIN if "topic" in named.names:
            await rights.administer(role, named.topic)
        case Needs.TENANT_ADMIN if "namespace" in named.names:
            await rights.administer(role, named.namespace)
        case Needs.TENANT_ADMIN:
            await rights.administer_tenant(role, unquote(named.names["tenant"]))
        case Needs.LISTING:
            await rights.list_topics(role, named.namespace)
        case Needs.NAMESPACE_CONSUME:
            await rights.act(role, named.namespace, Action.CONSUME)
        case Needs.LOOKUP:
            await rights.lookup(role, named.topic)
        case Needs.PRODUCE:
            await rights.produce(role, named.topic)
        case Needs.CONSUME:
            await rights.consume(role, named.topic, named.subscription)


@dataclass(frozen=True, slots=True)
class _Named:
    """What a request names, decoded as its routes do it: a name read in two ways would be two names."""

    path: str
    names: Mapping[str, str]

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName(unquote(self.names["tenant"]), unquote(self.names["namespace"]))

    @property
    def topic(self) -> TopicName:
        text = self.names["topic"]
        if self._is_scalable:
            return TopicName(Domain.TOPIC, self.namespace, decoded_once(text))
        return TopicName(self._domain, self.namespace, decoded(text))

    @property
    def subscription(self) -> str:
        """Empty if the request is about none."""
        text = self.names.get("subscription", "")
        return decoded_once(text) if self._is_scalable else decoded(unquote(text))

    @property
    def _is_scalable(self) -> bool:
        return self.path.startswith("/admin/v2/scalable/")

    @property
    def _domain(self) -> Domain:
        if "domain" in self.names:
            return Domain(self.names["domain"])
        is_persistent = not self.path.startswith("/admin/v2/non-persistent/")
        return Domain.PERSISTENT if is_persistent else Domain.NON_PERSISTENT
