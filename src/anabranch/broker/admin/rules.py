"""Which right each REST path needs: one table, asked before any route runs, so that no route can forget it.

The first line that fits a request decides. A path that no line fits needs a super user, and a test fails for a route of
that kind. The rights are those of Pulsar's own resources: what is set on a tenant's namespaces and topics is for the
tenant's admins, what clients do is for those with the permission to do it over their own protocol. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from anabranch.broker.admin.path_tree import PathTree


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


@dataclass(frozen=True, slots=True)
class Rule:
    methods: frozenset[str]  # Empty: all.
    pattern: str
    path: re.Pattern[str]
    needs: Needs

    def fits(self, method: str, path: str) -> bool:
        return (not self.methods or method in self.methods) and self.path.fullmatch(path) is not None


_TABLE: Final = """
GET   /                                                  NOTHING
GET   /status.html                                       NOTHING
GET   /metrics                                           NOTHING
GET   /docs                                              NOTHING
GET   /openapi.json                                      NOTHING
GET   /ui/api/overview                                   ROUTE
GET   /ui/api/topics/{tenant}/{namespace}/{topic**}      ROUTE
*     /ui/api/{any**}                                    SUPER_USER
GET   /ui                                                NOTHING
GET   /ui/{file**}                                       NOTHING

GET   /admin/v2/clusters                                 NAME
*     /admin/v2/clusters/{any**}                         SUPER_USER
GET   /admin/v2/brokers/ready                            NAME
GET   /admin/v2/brokers/version                          NAME
*     /admin/v2/brokers                                  SUPER_USER
*     /admin/v2/brokers/{any**}                          SUPER_USER
*     /admin/v2/broker-stats/{any**}                     SUPER_USER
*     /admin/v2/bookies/{any**}                          SUPER_USER
*     /admin/v2/resourcegroups                           SUPER_USER
*     /admin/v2/resourcegroups/{any**}                   SUPER_USER
*     /admin/v2/resource-quotas                          SUPER_USER
*     /admin/v2/resource-quotas/{any**}                  SUPER_USER
*     /admin/v2/functions/{any**}                        SUPER_USER
*     /admin/v2/worker/{any**}                           SUPER_USER
*     /admin/v2/worker-stats/{any**}                     SUPER_USER
*     /admin/v3/functions/{any**}                        SUPER_USER
*     /admin/v3/source/{any**}                           SUPER_USER
*     /admin/v3/sources/{any**}                          SUPER_USER
*     /admin/v3/sink/{any**}                             SUPER_USER
*     /admin/v3/sinks/{any**}                            SUPER_USER
*     /admin/v3/packages/{any**}                         SUPER_USER
*     /admin/v3/transactions/{any**}                     SUPER_USER
*     /admin/v2/tenants                                  SUPER_USER
*     /admin/v2/tenants/{tenant}                         SUPER_USER

POST  /admin/v2/namespaces/grantPermissionsOnTopics      ROUTE
POST  /admin/v2/namespaces/revokePermissionsOnTopics     ROUTE
GET   /admin/v2/namespaces/{tenant}                      TENANT_ADMIN
*     /admin/v2/namespaces/{tenant}/{namespace}          TENANT_ADMIN
GET   /admin/v2/namespaces/{tenant}/{namespace}/topics   LISTING
GET   /admin/v2/namespaces/{tenant}/{namespace}/bundles  LISTING
PUT   /admin/v2/namespaces/{tenant}/{namespace}/unload                 SUPER_USER
PUT   /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload        SUPER_USER
PUT   /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split         SUPER_USER
POST  /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog           NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/clearBacklog/{sub}     NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/unsubscribe/{sub}      NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog         NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/clearBacklog/{sub}   NAMESPACE_CONSUME
POST  /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unsubscribe/{sub}    NAMESPACE_CONSUME
*     /admin/v2/namespaces/{tenant}/{namespace}/{any**}                TENANT_ADMIN

GET   /admin/v2/{kind}/{tenant}/{namespace}                            LISTING
GET   /admin/v2/{kind}/{tenant}/{namespace}/partitioned                LISTING
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitions         LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/properties         LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/stats              LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/internalStats      LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/internal-info      LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitioned-stats          LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/partitioned-internalStats  LOOKUP
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscriptions              CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscription/{sub}         CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/subscription/{sub}/{any**} CONSUME
POST  /admin/v2/{kind}/{tenant}/{namespace}/{topic}/all_subscription/{any**}   CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/ledger/{any**}             CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/examinemessage             CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/lastMessageId              CONSUME
GET   /admin/v2/{kind}/{tenant}/{namespace}/{topic}/messageid/{timestamp}      CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{topic}/backlogSize                CONSUME
*     /admin/v2/{kind}/{tenant}/{namespace}/{any**}                            TENANT_ADMIN

POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/split/{one}            SUPER_USER
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/merge/{one}/{other}    SUPER_USER
POST  /admin/v2/scalable/{tenant}/{namespace}/{topic**}/migrate                PRODUCE
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}/subscriptions/{sub**}  CONSUME
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}/autoScalePolicy        TENANT_ADMIN
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}/permissions            TENANT_ADMIN
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}/permissions/{role}     TENANT_ADMIN
GET   /admin/v2/scalable/{tenant}/{namespace}                                  LISTING
GET   /admin/v2/scalable/{tenant}/{namespace}/{topic**}                        LOOKUP
*     /admin/v2/scalable/{tenant}/{namespace}/{topic**}                        TENANT_ADMIN
*     /admin/v2/segments/{any**}                                               SUPER_USER

DELETE /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema                   TENANT_ADMIN
POST  /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema                    PRODUCE
*     /admin/v2/schemas/{tenant}/{namespace}/{topic}/{any**}                   LOOKUP
GET   /lookup/v2/{how}/{domain}/{tenant}/{namespace}/{topic}                   LOOKUP
GET   /lookup/v2/{how}/{domain}/{tenant}/{namespace}/{topic}/bundle            LISTING

GET   /admin/v2/anabranch/read-plan/{any**}                                    SUPER_USER
GET   /admin/v2/anabranch/ledgers/{domain}/{tenant}/{namespace}/{topic**}      ROUTE
*     /admin/v2/anabranch/writes/{any**}                                       ROUTE
POST  /admin/v2/anabranch/reveal/{domain}/{tenant}/{namespace}/{topic**}       ROUTE
"""
# `{kind}` of a line: these two words, and no other that a later line begins with.
_KINDS: Final = "(?:persistent|non-persistent)"
_NAMES: Final = re.compile(r"\{(\w+)(\*\*)?\}")


def _rules() -> Iterator[Rule]:
    for line in filter(None, map(str.strip, _TABLE.splitlines())):
        method, path, needs = line.split()
        pattern, at = "", 0
        for name in _NAMES.finditer(path):
            pattern += re.escape(path[at : name.start()])
            pattern += _KINDS if name[1] == "kind" else ".+" if name[2] else "[^/]+"
            at = name.end()
        methods = {"*": frozenset[str](), "GET": frozenset({"GET", "HEAD"})}.get(method, frozenset({method}))
        yield Rule(methods, path, re.compile(pattern + re.escape(path[at:])), Needs[needs])


RULES: Final = tuple(_rules())
_TREE: Final = PathTree(rule.pattern for rule in RULES)


def rule_for(method: str, path: str) -> Rule | None:
    """The first that fits the path as it was sent, still percent-encoded."""
    return next((rule for number in _TREE.find(path) if (rule := RULES[number]).fits(method, path)), None)
