"""`/admin/v2/brokers`: health, and what this broker is."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from anabranch.broker.admin.bundles import open_bundles
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import BrokerDep, decoded
from anabranch.broker.broker import Broker
from anabranch.broker.dynamic_config import DYNAMIC

router = APIRouter()


@router.get("/health", response_class=PlainTextResponse)
async def health(broker: BrokerDep) -> str:
    """`ok` once clients can connect: this port opens after the binary one. 503 while nothing can be published."""
    if broker.log.ended is not None:
        raise RestError(503, _ended(broker))
    if not broker.log.is_accepting:
        raise RestError(503, _stopped(broker))
    return "ok"


@router.get("/ready", response_class=PlainTextResponse)
@needs(Needs.NAME)
async def ready(broker: BrokerDep) -> str:
    """Whether clients may be sent here. With a full disk they may: it is consumers who make room."""
    if broker.log.ended is not None:
        raise RestError(503, _ended(broker))
    return "ok" if broker.log.is_accepting else f"ok, but {_stopped(broker)}"


def _ended(broker: Broker) -> str:
    return f"the log has ended, and this broker is about to: {broker.log.ended}"


def _stopped(broker: Broker) -> str:
    return f"publishing has stopped, as the disk is full: {broker.log.told_space()}"


@router.get("/version", response_class=PlainTextResponse)
@needs(Needs.NAME)
async def version(broker: BrokerDep) -> str:
    return broker.server_version


@router.get("/leaderBroker")
async def leader(broker: BrokerDep) -> dict[str, str]:
    return {"brokerId": _broker_id(broker.http_url), "serviceUrl": broker.http_url}


@router.get("/configuration")
async def dynamic_settings() -> list[str]:
    """The settings that can change while the broker runs."""
    return list(DYNAMIC)


@router.get("/configuration/values")
async def dynamic_values(broker: BrokerDep) -> dict[str, str]:
    """Those that were changed, as they were written."""
    return dict(broker.dynamic_config.values)


@router.get("/configuration/runtime")
async def runtime_settings(broker: BrokerDep) -> dict[str, str]:
    """Every setting as text, as Pulsar gives them."""
    return {name: _as_text(value) for name, value in broker.config.spelled().items()}


@router.post("/configuration/{name}/{value}")
async def change_setting(broker: BrokerDep, name: str, value: str) -> Response:
    """Acts at once, here and on every other broker, and outlives restarts."""
    # Twice, as Pulsar does: its admin client encodes values twice.
    await broker.dynamic_config.set(decoded(name), decoded(unquote(value)))
    return Response()  # Clients look for 200, and not for 204.


@router.delete("/configuration/{name}")
async def reset_setting(broker: BrokerDep, name: str) -> Response:
    """What each broker was started with is in force again."""
    await broker.dynamic_config.remove(decoded(name))
    return Response()


@router.get("/backlog-quota-check", status_code=204)
async def check_backlog_quotas(broker: BrokerDep) -> None:
    """Now, instead of at the next turn."""
    await broker.check_quotas()


@router.post("/shutdown")
async def shutdown() -> None:
    raise RestError(405, "A broker is not ended over HTTP: send its process SIGTERM, and it drains and ends")


@router.get("/internal-configuration")
async def internal_configuration() -> dict[str, Any]:
    return {"stateStorageServiceUrl": None, "bookkeeperMetadataServiceUri": None}


@router.get("")
async def list_brokers(broker: BrokerDep) -> list[str]:
    return [_broker_id(broker.http_url)]


@router.get("/{cluster}")
async def brokers_of_cluster(broker: BrokerDep, cluster: str) -> list[str]:
    await broker.resources.cluster_data(cluster)
    return [_broker_id(broker.http_url)] if cluster == broker.resources.cluster else []


@router.get("/{cluster}/{broker_id}/ownedNamespaces")
async def owned_namespaces(broker: BrokerDep, cluster: str, broker_id: str) -> dict[str, Any]:
    """The bundles that it has topics of open."""
    if decoded(broker_id) != _broker_id(broker.http_url):
        raise RestError(404, f"Ask {decoded(broker_id)} itself: this is {_broker_id(broker.http_url)}")
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return {f"{name.namespace}/{bundle}": status for name, bundle in (await open_bundles(broker)).items()}


def _broker_id(url: str) -> str:
    return url.partition("://")[2]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
