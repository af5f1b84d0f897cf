"""Which right each REST route needs, said where the route is declared. Pure.

    @router.get("/stats")
    @needs(Needs.LOOKUP)
    async def stats(…): …

The need belongs to the route itself, so a request is judged by the route that answers it, whatever its path looks
like. Routers that are one kind of thing say it for all their routes where they are included (`dispatch.include`). A
route without a need is for super users; a test has the whole list. The rights are those of Pulsar's own resources: what
is set on a tenant's namespaces and topics is for the tenant's admins, what clients do is for those with the permission
to do it over their own protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, TypeVar

E = TypeVar("E", bound=Callable[..., Any])

_MARK: Final = "__anabranch_needs__"


class Needs(Enum):
    NOTHING = "nothing, not even a name"
    NAME = "to be somebody"
    # The route finds out from the request's body what it is about, and asks by itself.
    ROUTE = "what the route asks for"
    SUPER_USER = "a super user"
    TENANT_ADMIN = "an admin of the tenant"
    LISTING = "produce or consume on the namespace"
    NAMESPACE_CONSUME = "consume on the namespace"
    LOOKUP = "produce or consume on the topic"
    PRODUCE = "produce on the topic"
    CONSUME = "consume on the topic"


def needs(need: Needs) -> Callable[[E], E]:
    """Declares what every route of an endpoint needs."""

    def mark(endpoint: E) -> E:
        setattr(endpoint, _MARK, need)
        return endpoint

    return mark


def declared(endpoint: Callable[..., Any] | None, default: Needs = Needs.SUPER_USER) -> Needs:
    found: Needs = getattr(endpoint, _MARK, default)
    return found
