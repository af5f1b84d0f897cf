"""`/admin/v2/tenants`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request

from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.namespaces import remove_namespace
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, body
from anabranch.broker.policies import Tenant

router = APIRouter()


@router.get("")
async def list_tenants(broker: BrokerDep) -> list[str]:
    return await broker.resources.tenants()


@router.get("/{tenant}")
async def get_tenant(broker: BrokerDep, tenant: str) -> dict[str, Any]:
    return (await broker.resources.tenant(unquote(tenant))).builtins()


@router.put("/{tenant}", status_code=204, openapi_extra=takes(Tenant))
async def create_tenant(broker: BrokerDep, tenant: str, request: Request) -> None:
    """Without a body: for this cluster."""
    default = Tenant(allowed_clusters=(broker.resources.cluster,))
    await broker.resources.create_tenant(unquote(tenant), _checked(await body(request, Tenant, default)))


@router.post("/{tenant}", status_code=204, openapi_extra=takes(Tenant))
async def update_tenant(broker: BrokerDep, tenant: str, request: Request) -> None:
    await broker.resources.update_tenant(unquote(tenant), _checked(await body(request, Tenant)))


def _checked(tenant: Tenant) -> Tenant:
    if not tenant.allowed_clusters:
        raise RestError(412, "Clusters cannot be empty: name this one in allowedClusters")
    return tenant


@router.delete("/{tenant}", status_code=204)
async def delete_tenant(broker: BrokerDep, tenant: str, force: bool = False) -> None:
    name = unquote(tenant)
    if force:
        if not broker.config.force_delete_tenant_allowed:
            raise RestError(405, "Broker doesn't allow forced deletion of tenants")
        for namespace in await broker.resources.namespaces(name):
            await remove_namespace(broker, namespace, force=True)
    await broker.resources.delete_tenant(name)
