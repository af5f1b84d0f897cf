"""`/admin/v2/clusters`: the known clusters, including this one."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.policy.namespace import ClusterRecord

routes = Routes("/admin/v2/clusters", tag="clusters")


@routes.get("", needs=Needs.NAME)
async def list_clusters(services: AdminServices) -> list[str]:
    return await services.resources.clusters()


@routes.get("/{cluster}")
async def get_cluster(services: AdminServices, cluster: str) -> dict[str, Any]:
    return (await services.resources.cluster_data(unquote(cluster))).builtins()


@routes.put("/{cluster}", status=204, body=ClusterRecord)
async def create_cluster(services: AdminServices, cluster: str, request: HttpRequest) -> None:
    await services.resources.put_cluster(unquote(cluster), await _sent(request), create=True)


@routes.post("/{cluster}", status=204, body=ClusterRecord)
async def update_cluster(services: AdminServices, cluster: str, request: HttpRequest) -> None:
    await services.resources.put_cluster(unquote(cluster), await _sent(request), create=False)


async def _sent(request: HttpRequest) -> ClusterRecord:
    data = await body(request, ClusterRecord)
    data.check()
    return data


@routes.delete("/{cluster}", status=204)
async def delete_cluster(services: AdminServices, cluster: str) -> None:
    name = unquote(cluster)
    if name != services.resources.cluster:
        await services.resources.cluster_data(name)
        if await services.isolation.policies_of(name):
            raise RestError(412, f"Cluster not empty: {name} has isolation policies")
        await services.isolation.forget(name)
    await services.resources.delete_cluster(name)


# -- features of several clusters


@routes.get("/{cluster}/peers")
async def peer_clusters(services: AdminServices, cluster: str) -> list[str]:
    """Always empty: peers belong to geo-replication."""
    await services.resources.cluster_data(unquote(cluster))
    return []


@routes.post("/{cluster}/peers", status=405)
async def set_peers() -> None:
    raise RestError(405, "There is no geo-replication here: clusters have no peers")
