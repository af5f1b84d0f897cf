"""`/admin/v2/tenants`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.parameters import Role
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.namespaces import remove_namespace
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.policy.namespace import Tenant

routes = Routes("/admin/v2/tenants", tag="tenants")


@routes.get("")
async def list_tenants(services: AdminServices) -> list[str]:
    return await services.resources.tenants()


@routes.get("/{tenant}")
async def get_tenant(services: AdminServices, tenant: str) -> dict[str, Any]:
    return (await services.resources.tenant(unquote(tenant))).builtins()


@routes.put("/{tenant}", status=204, body=Tenant)
async def create_tenant(services: AdminServices, tenant: str, request: HttpRequest) -> None:
    """Creates the tenant; without a body, for this cluster."""
    default = Tenant(allowed_clusters=(services.resources.cluster,))
    await services.resources.create_tenant(unquote(tenant), _checked(await body(request, Tenant, default)))


@routes.post("/{tenant}", status=204, body=Tenant)
async def update_tenant(services: AdminServices, tenant: str, request: HttpRequest) -> None:
    await services.resources.update_tenant(unquote(tenant), _checked(await body(request, Tenant)))


def _checked(tenant: Tenant) -> Tenant:
    if not tenant.allowed_clusters:
        raise RestError(412, "Clusters cannot be empty: name this one in allowedClusters")
    return tenant


@routes.delete("/{tenant}", status=204)
async def delete_tenant(services: AdminServices, role: Role, tenant: str, force: bool = False) -> None:
    name = unquote(tenant)
    if force:
        if not services.config.force_delete_tenant_allowed:
            raise RestError(405, "Broker doesn't allow forced deletion of tenants")
        for namespace in await services.resources.namespaces(name):
            await remove_namespace(services, role, namespace, force=True)
    await services.resources.delete_tenant(name)
