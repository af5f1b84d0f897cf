"""`/admin/v2/clusters`: the clusters this one knows of, itself among them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, body
from anabranch.broker.policies import Cluster

router = APIRouter()


@router.get("")
@needs(Needs.NAME)
async def list_clusters(broker: BrokerDep) -> list[str]:
    return await broker.resources.clusters()


@router.get("/{cluster}")
async def get_cluster(broker: BrokerDep, cluster: str) -> dict[str, Any]:
    return (await broker.resources.cluster_data(unquote(cluster))).builtins()


@router.put("/{cluster}", status_code=204, openapi_extra=takes(Cluster))
async def create_cluster(broker: BrokerDep, cluster: str, request: Request) -> None:
    await broker.resources.put_cluster(unquote(cluster), await _sent(request), create=True)


@router.post("/{cluster}", status_code=204, openapi_extra=takes(Cluster))
async def update_cluster(broker: BrokerDep, cluster: str, request: Request) -> None:
    await broker.resources.put_cluster(unquote(cluster), await _sent(request), create=False)


async def _sent(request: Request) -> Cluster:
    data = await body(request, Cluster)
    data.check()
    return data


@router.delete("/{cluster}", status_code=204)
async def delete_cluster(broker: BrokerDep, cluster: str) -> None:
    await broker.resources.delete_cluster(unquote(cluster))


# -- what belongs to several clusters, or to several machines of one


@router.get("/{cluster}/peers")
async def peer_clusters(broker: BrokerDep, cluster: str) -> list[str]:
    """Always none: peers belong to geo-replication."""
    await broker.resources.cluster_data(unquote(cluster))
    return []


@router.get("/{cluster}/failureDomains")
async def failure_domains(broker: BrokerDep, cluster: str) -> dict[str, Any]:
    await broker.resources.cluster_data(unquote(cluster))
    return {}


@router.get("/{cluster}/namespaceIsolationPolicies", status_code=404)
@router.get("/{cluster}/namespaceIsolationPolicies/brokers", status_code=404)
async def isolation_policies(broker: BrokerDep, cluster: str) -> None:
    await broker.resources.cluster_data(unquote(cluster))
    raise RestError(404, f"NamespaceIsolationPolicies for cluster {unquote(cluster)} does not exist")


@router.get("/{cluster}/failureDomains/{name}", status_code=404)
@router.get("/{cluster}/namespaceIsolationPolicies/{name}", status_code=404)
@router.delete("/{cluster}/failureDomains/{name}", status_code=404)
@router.delete("/{cluster}/namespaceIsolationPolicies/{name}", status_code=404)
async def no_such(broker: BrokerDep, cluster: str, name: str) -> None:
    await broker.resources.cluster_data(unquote(cluster))
    raise RestError(404, f"Cluster {unquote(cluster)} has no {unquote(name)}")


@router.post("/{cluster}/peers", status_code=405)
async def set_peers() -> None:
    raise RestError(405, "There is no geo-replication here: clusters have no peers")


@router.post("/{cluster}/failureDomains/{name}", status_code=405)
async def set_failure_domain(name: str) -> None:
    raise RestError(405, "Topics are placed by what flows through them; there are no failure domains to name")


@router.post("/{cluster}/namespaceIsolationPolicies/{name}", status_code=405)
async def set_isolation_policy(name: str) -> None:
    raise RestError(405, "Every broker serves every namespace: there is no isolation of namespaces")
