"""Resources that Pulsar has and this system does not: asked for, they are empty; made, they are refused."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from anabranch.broker.admin.errors import RestError

bookies = APIRouter()
resource_groups = APIRouter()
resource_quotas = APIRouter()


@bookies.get("/all")
async def all_bookies() -> dict[str, Any]:
    return {"bookies": []}


@bookies.get("/racks-info")
async def racks() -> dict[str, Any]:
    return {}


@resource_groups.get("")
async def groups() -> list[str]:
    return []


@resource_groups.get("/{group}")
@resource_groups.delete("/{group}")
async def one_group(group: str) -> None:
    raise RestError(404, f"There is no resource group {group}")


@resource_groups.put("/{group}")
async def make_group(group: str) -> None:
    raise RestError(405, "There are no resource groups; limit a namespace by publishRate and dispatchRate")


@resource_quotas.get("")
@resource_quotas.get("/{tenant}/{namespace}/{bundle}")
async def quota() -> dict[str, Any]:
    """What Pulsar assumes of a bundle that nobody has measured."""
    rates = {"msgRateIn": 0.0, "msgRateOut": 0.0, "bandwidthIn": 0.0, "bandwidthOut": 0.0}
    return {**rates, "memory": 0.0, "dynamic": True}


@resource_quotas.post("")
@resource_quotas.post("/{tenant}/{namespace}/{bundle}")
@resource_quotas.delete("/{tenant}/{namespace}/{bundle}")
async def set_quota() -> None:
    raise RestError(405, "Bundles are placed by what flows through them; there is nothing to set")
