"""`/admin/v2/brokers`: which brokers there are, and the health and the configuration of this one.

Admin clients know a broker by the host and port of its REST, as in Pulsar; the id that brokers have for each other is
understood too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from anabranch.balance.core.owner_rules import OwnerRules, no_rules
from anabranch.broker.admin.across.all_brokers import from_others, same_request
from anabranch.broker.admin.http.answer import HttpAnswer, json_answer
from anabranch.broker.admin.http.errors import AskElsewhere, RestError
from anabranch.broker.admin.http.names import decoded
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.bundles import open_bundles
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.dynamic_config import DYNAMIC
from anabranch.broker.errors import NotReadyError
from anabranch.broker.observe.log_probe import ProbeFailed
from anabranch.broker.observe.troubles import Troubles

routes = Routes("/admin/v2/brokers", tag="brokers")


@routes.get("/health", is_text=True)
async def health(services: AdminServices, brokerId: str = "", details: bool = False) -> str:
    """`ok` if an entry was stored and read back just now. 503 while publishing is impossible.
    `brokerId` asks for another broker's health. `details` adds lines: the disk, and who is held back."""
    if brokerId:
        _check_this(services, brokerId)
    if services.shared is not None and not services.registry.is_registered:
        raise RestError(503, "this broker is not registered with the others at present: its session was lost")
    if services.log.ended is not None:
        raise RestError(503, _ended(services))
    if not services.log.is_accepting:
        raise RestError(503, _stopped(services))
    try:
        await services.probe()
    except ProbeFailed as error:
        raise RestError(503, f"publishing does not work: {error}") from None
    return "\n".join(["ok", *_details(await services.troubles())]) if details else "ok"


def _details(found: Troubles) -> Iterator[str]:
    yield f"disk: {found.disk.told}"
    for one in found.troubles:
        of = " ".join(filter(None, (one.topic, one.subscription)))
        yield f"{one.kind}: {of}: {one.because}" if of else f"{one.kind}: {one.because}"
    if found.more:
        yield f"and {found.more} more"


@routes.get("/troubles", answers=Troubles)
async def troubles(services: AdminServices) -> HttpAnswer:
    """The disk of the broker that answers, and who is held back by what there."""
    return json_answer(msgspec.to_builtins(await services.troubles()))


@routes.get("/ready", is_text=True, needs=Needs.NAME)
async def ready(services: AdminServices) -> str:
    """Whether clients may be sent here. With a full disk they may: consumers make room."""
    if services.log.ended is not None:
        raise RestError(503, _ended(services))
    return "ok" if services.log.is_accepting else f"ok, but {_stopped(services)}"


def _ended(services: AdminServices) -> str:
    return f"the log has ended, and this broker is about to: {services.log.ended}"


def _stopped(services: AdminServices) -> str:
    return f"publishing has stopped, as the disk is full: {services.log.told_space()}"


@routes.get("/version", is_text=True, needs=Needs.NAME)
async def version(services: AdminServices) -> str:
    return services.server_version


@routes.get("/leaderBroker")
async def leader(services: AdminServices) -> dict[str, str]:
    """The broker that does what one broker is enough for: the elected leader of the load balancer, without one the
    broker that has run for longest."""
    found = services.registry.leader().address
    if services.balancer is not None:
        elected = services.balancer.owners.leader
        if elected is None:
            raise NotReadyError("there is no leader at the moment")
        found = elected
    return {"brokerId": found.web_id, "serviceUrl": found.http_url}


@routes.get("/configuration")
async def dynamic_settings() -> list[str]:
    """The settings that can change while the broker runs."""
    return list(DYNAMIC)


@routes.get("/configuration/values")
async def dynamic_values(services: AdminServices) -> dict[str, str]:
    """The settings that were changed, as they were sent."""
    return dict(services.dynamic_config.values)


@routes.get("/configuration/runtime")
async def runtime_settings(services: AdminServices) -> dict[str, str]:
    """Every setting as text, as Pulsar shows them."""
    return {name: _as_text(value) for name, value in services.config.spelled().items()}


@routes.post("/configuration/{name}/{value}")
async def change_setting(services: AdminServices, name: str, value: str) -> HttpAnswer:
    """Takes effect at once, here and on every other broker, and survives restarts."""
    # Decoded twice, as in Pulsar: its admin client encodes values twice.
    await services.dynamic_config.set(decoded(name), decoded(unquote(value)))
    return HttpAnswer()  # Clients expect 200, not 204.


@routes.delete("/configuration/{name}")
async def reset_setting(services: AdminServices, name: str) -> HttpAnswer:
    """Restores the value that each broker was started with."""
    await services.dynamic_config.remove(decoded(name))
    return HttpAnswer()


@routes.get("/backlog-quota-check", status=204)
async def check_backlog_quotas(services: AdminServices, request: HttpRequest) -> None:
    """Checks backlog quotas now, at every broker, instead of at the next regular check."""
    await services.check_quotas()
    await from_others(services.elsewhere, same_request(request))


@routes.post("/shutdown")
async def shutdown() -> None:
    raise RestError(
        405, "A broker cannot be stopped over HTTP: send SIGTERM to its process, which then drains and ends"
    )


@routes.get("/internal-configuration")
async def internal_configuration() -> dict[str, Any]:
    return {"stateStorageServiceUrl": None, "bookkeeperMetadataServiceUri": None}


@routes.get("")
async def list_brokers(services: AdminServices) -> list[str]:
    """The brokers that are registered now."""
    return sorted(one.address.web_id for one in services.registry.living().values())


@routes.get("/{cluster}")
async def brokers_of_cluster(services: AdminServices, cluster: str) -> list[str]:
    await services.resources.cluster_data(cluster)
    return await list_brokers(services) if cluster == services.resources.cluster else []


@routes.get("/{cluster}/{broker_id}/ownedNamespaces")
async def owned_namespaces(services: AdminServices, cluster: str, broker_id: str) -> dict[str, Any]:
    """The bundles that the broker owns; without the load balancer those of which it has topics open."""
    _check_this(services, decoded(broker_id))
    if services.balancer is not None and services.placement is not None:
        rules, me = services.placement(), services.registry.me.id
        return {
            str(bundle): _ownership(rules, str(bundle.namespace), me)
            for bundle in services.balancer.owners.owned_by(me)
        }
    shared = _ownership(no_rules(()), "", "")
    return {f"{name.namespace}/{bundle}": shared for name, bundle in (await open_bundles(services)).items()}


def _ownership(rules: OwnerRules, namespace: str, broker: str) -> dict[str, Any]:
    return {
        "broker_assignment": rules.assignment(namespace, broker).value,
        "is_controlled": rules.policy(namespace) is not None,
        "is_active": True,
    }


def _check_this(services: AdminServices, broker: str) -> None:
    """AskElsewhere if that is another living broker; 404 if it is none."""
    me = services.registry.me
    if broker in (me.id, me.address.web_id):
        return
    found = services.registry.named(broker)
    if found is None:
        raise RestError(404, f"There is no broker {broker}; see the list of brokers")
    if found.run_id != me.run_id:
        raise AskElsewhere(found.address)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
