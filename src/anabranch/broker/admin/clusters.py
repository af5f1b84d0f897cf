"""`/admin/v2/clusters`: the clusters this one knows of, itself among them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request

from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, body
from anabranch.broker.policies import Cluster

router = APIRouter()


@router.get("")
async def list_clusters(broker: BrokerDep) -> list[str]:
    return await broker.resources.clusters()


@router.get("/{cluster}")
async def get_cluster(broker: BrokerDep, cluster: str) -> dict[str, Any]:
    return (await broker.resources.cluster_data(unquote(cluster))).builtins()


@router.put("/{cluster}", status_code=204, openapi_extra=takes(Cluster))
async def create_cluster(broker: BrokerDep, cluster: str, request: Request) -> None:
    await broker.resources.put_cluster(unquote(cluster), await body(request, Cluster), create=True)


@router.post("/{cluster}", status_code=204, openapi_extra=takes(Cluster))
async def update_cluster(broker: BrokerDep, cluster: str, request: Request) -> None:
    await broker.resources.put_cluster(unquote(cluster), await body(request, Cluster), create=False)


@router.delete("/{cluster}", status_code=204)
async def delete_cluster(broker: BrokerDep, cluster: str) -> None:
    await broker.resources.delete_cluster(unquote(cluster))


@router.get("/{cluster}/peers")
async def peer_clusters(broker: BrokerDep, cluster: str) -> list[str]:
    """Always none: peers belong to geo-replication."""
    await broker.resources.cluster_data(unquote(cluster))
    return []


@router.get("/{cluster}/failureDomains")
async def failure_domains(broker: BrokerDep, cluster: str) -> dict[str, Any]:
    await broker.resources.cluster_data(unquote(cluster))
    return {}


@router.get("/{cluster}/namespaceIsolationPolicies")
async def isolation_policies(broker: BrokerDep, cluster: str) -> dict[str, Any]:
    await broker.resources.cluster_data(unquote(cluster))
    return {}
