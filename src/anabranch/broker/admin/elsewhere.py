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


@bookies.get("/racks-info/{bookie}", status_code=404)
@bookies.delete("/racks-info/{bookie}", status_code=404)
async def no_rack(bookie: str) -> None:
    raise RestError(404, f"There is no bookie {bookie}: the broker writes its own log")


@bookies.post("/racks-info/{bookie}", status_code=405)
async def set_rack(bookie: str) -> None:
    raise RestError(405, "There are no bookies to place in racks: the broker writes its own log")


@resource_groups.get("")
async def groups() -> list[str]:
    return []


@resource_groups.get("/{group}", status_code=404)
@resource_groups.delete("/{group}", status_code=404)
async def one_group(group: str) -> None:
    raise RestError(404, f"There is no resource group {group}")


@resource_groups.put("/{group}", status_code=405)
async def make_group(group: str) -> None:
    raise RestError(405, "There are no resource groups; limit a namespace by publishRate and dispatchRate")


@resource_quotas.get("")
@resource_quotas.get("/{tenant}/{namespace}/{bundle}")
async def quota() -> dict[str, Any]:
    """What Pulsar assumes of a bundle that nobody has measured."""
    rates = {"msgRateIn": 0.0, "msgRateOut": 0.0, "bandwidthIn": 0.0, "bandwidthOut": 0.0}
    return {**rates, "memory": 0.0, "dynamic": True}


@resource_quotas.post("", status_code=405)
@resource_quotas.post("/{tenant}/{namespace}/{bundle}", status_code=405)
@resource_quotas.delete("/{tenant}/{namespace}/{bundle}", status_code=405)
async def set_quota() -> None:
    raise RestError(405, "Bundles are placed by what flows through them; there is nothing to set")


# -- what needs a service beside the broker, at every path below: with the status that Pulsar answers without it

services = APIRouter()

_FUNCTIONS = "Pulsar Function Worker is not enabled: there are no functions, sources and sinks here"
_SERVICES = {
    "/admin/v2/functions": (409, _FUNCTIONS),
    "/admin/v2/worker": (409, _FUNCTIONS),
    "/admin/v2/worker-stats": (409, _FUNCTIONS),
    "/admin/v3/functions": (409, _FUNCTIONS),
    "/admin/v3/source": (409, _FUNCTIONS),
    "/admin/v3/sources": (409, _FUNCTIONS),
    "/admin/v3/sink": (409, _FUNCTIONS),
    "/admin/v3/sinks": (409, _FUNCTIONS),
    "/admin/v3/packages": (503, "Package Management Service is not enabled: there are no packages here"),
    "/admin/v3/transactions": (503, "transactionCoordinatorEnabled is false: there are no transactions here"),
}


def _refuse(prefix: str, status: int, reason: str) -> None:
    async def refuse(what: str) -> None:
        raise RestError(status, reason)

    services.add_api_route(
        prefix + "/{what:path}",
        refuse,
        methods=["GET", "PUT", "POST", "DELETE"],
        include_in_schema=False,
        response_model=None,
    )


for _prefix, (_status, _reason) in _SERVICES.items():
    _refuse(_prefix, _status, _reason)
