"""Which right each REST route needs, stated where the route is declared. Pure.

    @routes.get("/stats", needs=Needs.LOOKUP)
    async def stats(…): …

The need belongs to the route itself, so a request is judged by the route that answers it, whatever its path looks like.
A table of similar routes states it for all of them. A route without a need is for super users; a test has the whole
list. The rights are those of Pulsar's own resources: settings of a tenant's namespaces and topics are for the tenant's
admins, and what clients do is for roles with the permission to do it over the binary protocol.
"""

from __future__ import annotations

from enum import Enum


class Needs(Enum):
    NOTHING = "nothing, not even a name"
    NAME = "to be somebody"
    # The subject is in the request's body: the route checks the right itself.
    ROUTE = "what the route asks for"
    SUPER_USER = "a super user"
    TENANT_ADMIN = "an admin of the tenant"
    LISTING = "produce or consume on the namespace"
    NAMESPACE_CONSUME = "consume on the namespace"
    LOOKUP = "produce or consume on the topic"
    PRODUCE = "produce on the topic"
    CONSUME = "consume on the topic"
