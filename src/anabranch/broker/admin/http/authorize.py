"""Checks the right that a REST route needs, before the route runs.

Names are those that the route's handler gets, never parsed from the path again: the right is checked for exactly what
the handler will act on.
"""

from __future__ import annotations

from anabranch.broker.admin.http.names import PathNames
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.security.grants import Action
from anabranch.broker.security.rights import Rights


async def authorize(rights: Rights, role: str, needs: Needs, named: PathNames) -> None:
    """NotAuthorizedError if the role may not use the route."""
    if rights.are_open:
        return
    try:
        await _ask(rights, role, needs, named)
    except (KeyError, ValueError):
        # A route without the name that its need refers to, for which a test fails; or an invalid name, which the route
        # refuses. Only a super user gets that answer.
        await rights.super_user(role)


async def _ask(rights: Rights, role: str, needs: Needs, named: PathNames) -> None:
    match needs:
        case Needs.NOTHING | Needs.NAME | Needs.ROUTE:
            pass
        case Needs.SUPER_USER:
            await rights.super_user(role)
        case Needs.TENANT_ADMIN if "topic" in named:
            await rights.administer(role, named.topic)
        case Needs.TENANT_ADMIN if "namespace" in named:
            await rights.administer(role, named.namespace)
        case Needs.TENANT_ADMIN:
            await rights.administer_tenant(role, named.tenant)
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
