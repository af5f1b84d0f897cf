"""What keeps namespaces apart: anti-affinity groups, `/admin/v2/namespaces/{tenant}/{ns}/antiAffinity`, and the failure
domains of a cluster, `/admin/v2/clusters/{cluster}/failureDomains`.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote

import msgspec

from anabranch.balance.core.isolation import BadIsolation, FailureDomain
from anabranch.broker.admin.cluster.isolation import check_obeyed, known_cluster
from anabranch.broker.admin.http.answer import NO_CONTENT, HttpAnswer, text_answer
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.names import decoded
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.resources import NotFound
from anabranch.model.names import NamespaceName

log = logging.getLogger(__name__)

groups = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)
domains = Routes("/admin/v2/clusters/{cluster}/failureDomains", tag="clusters")

_GROUP = "/{tenant}/{namespace}/antiAffinity"
_GROUP_BYTES_MAX = 1000
_JSON_TEXT = msgspec.json.Decoder(str)


# -- anti-affinity groups


@groups.get(_GROUP, answers=str)
async def get_group(services: AdminServices, namespace: NamespaceName) -> HttpAnswer:
    """The namespace's group as plain text; 204 if it is in none."""
    group = (await services.resources.policies(namespace)).anti_affinity_group
    return NO_CONTENT if group is None else text_answer(group)


@groups.post(_GROUP, status=204, body=str)
async def set_group(services: AdminServices, namespace: NamespaceName, request: HttpRequest) -> None:
    """Puts the namespace into the group of that name. No bundle moves for that."""
    group = _text(await request.read(_GROUP_BYTES_MAX))
    if not group.strip():
        raise RestError(412, "Anti-affinity group can't be empty")
    check_obeyed(services, "anti-affinity groups")
    await _put(services, namespace, group)
    log.info("%s is in the anti-affinity group %s", namespace, group)


@groups.delete(_GROUP, status=204)
async def remove_group(services: AdminServices, namespace: NamespaceName) -> None:
    await _put(services, namespace, None)
    log.info("%s is in no anti-affinity group any more", namespace)


@groups.get("/{cluster}/antiAffinity/{group}", needs=Needs.ROUTE)
async def namespaces_of_group(
    services: AdminServices, caller: Role, cluster: str, group: str, tenant: str = ""
) -> list[str]:
    """The namespaces of one tenant that are in the group; the case of its letters is the same."""
    if not tenant:
        raise RestError(400, "Tenant should not be null")
    await services.rights.administer_tenant(caller, tenant)
    await known_cluster(services, cluster)
    wanted, found = decoded(group).casefold(), []
    try:
        namespaces = await services.resources.namespaces(tenant)
    except NotFound:
        return []
    for namespace in namespaces:
        try:
            has = (await services.resources.policies(namespace)).anti_affinity_group
        except NotFound:
            continue  # It is being deleted.
        if has is not None and has.casefold() == wanted:
            found.append(str(namespace))
    return found


async def _put(services: AdminServices, namespace: NamespaceName, group: str | None) -> None:
    await services.resources.update_policies(
        namespace, lambda p: msgspec.structs.replace(p, anti_affinity_group=group)
    )
    if services.balancer is not None:
        # This broker obeys at once, and not when the watch has told.
        await services.balancer.owners.bundles.learn(namespace)


def _text(data: bytes) -> str:
    """Java's client sends the bare name, others send it as JSON."""
    try:
        text = data.decode()
        return _JSON_TEXT.decode(data) if text.lstrip().startswith('"') else text
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RestError(400, f"Invalid request body: {error}") from None


# -- failure domains


@domains.get("")
async def list_domains(services: AdminServices, cluster: str) -> dict[str, Any]:
    """All failure domains of the cluster by name; none of a cluster that does not exist, as in Pulsar."""
    found = await services.isolation.domains_of(unquote(cluster))
    return {name: found[name].to_json() for name in sorted(found)}


@domains.get("/{domain}")
async def get_domain(services: AdminServices, cluster: str, domain: str) -> dict[str, Any]:
    where, name = await known_cluster(services, cluster), decoded(domain)
    found = (await services.isolation.domains_of(where)).get(name)
    if found is None:
        raise RestError(404, f"Domain {name} for cluster {where} does not exist")
    return found.to_json()


@domains.post("/{domain}", status=204, body=dict[str, Any])
async def set_domain(services: AdminServices, cluster: str, domain: str, request: HttpRequest) -> None:
    """Sets which brokers are in the domain. 409 if one of them is in another."""
    where, name = await known_cluster(services, cluster), decoded(domain)
    check_obeyed(services, "failure domains")
    try:
        sent = FailureDomain.from_json(await body(request, dict[str, Any]))
    except BadIsolation as error:
        raise RestError(400, f"Invalid failure domain {name}: {error}") from None
    await services.isolation.set_domain(where, name, sent)
    log.info("the failure domain %s of %s was set: %s", name, where, ", ".join(sorted(sent.brokers)))


@domains.delete("/{domain}")
async def delete_domain(services: AdminServices, cluster: str, domain: str) -> None:
    where, name = await known_cluster(services, cluster), decoded(domain)
    await services.isolation.delete_domain(where, name)
    log.info("the failure domain %s of %s was deleted", name, where)
