"""`/admin/v2/load-manager`: what the load balancer of this broker sees, and what it decided and why.

Every broker knows the load of all brokers, and of its own bundles. The leader knows the heaviest bundles of each, and
decides about moves: ask it for those.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from anabranch.balance.core.load import BrokerLoad, BundleLoad
from anabranch.broker.admin.http.errors import AskElsewhere, RestError
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.balance.balance_log import KEPT_MAX
from anabranch.broker.balance.load.load_work import LoadWork

routes = Routes("/admin/v2/load-manager", tag="brokers")

DECISIONS_TOLD = 100


def balance_of(services: AdminServices) -> LoadWork:
    """412, as Pulsar answers what its load manager does not have."""
    if services.load_work is None:
        raise RestError(
            412,
            "Request is not supported by this load manager: bundles are assigned by hash here "
            "(loadManagerClassName=simple)",
        )
    return services.load_work


@routes.get("")
async def status(services: AdminServices) -> dict[str, Any]:
    """Which broker leads, whether anything may move, and which parts act by themselves."""
    work, config = balance_of(services), services.config
    leader = work.leader
    return {
        "leader": None if leader is None else leader.broker,
        "isLeader": work.term > 0,
        "term": work.states.fold.term,
        "safeMode": work.why_safe_mode(),
        "isFollowing": work.states.is_following,
        "channelLagSeconds": work.states.lag_s,
        "lookupsWaiting": work.lookups_waiting,
        "isShedding": config.load_balancer_enabled and config.load_balancer_shedding_enabled,
        "isSplitting": config.load_balancer_enabled and config.load_balancer_auto_bundle_split_enabled,
        "isTransferring": config.load_balancer_transfer_enabled,
    }


@routes.get("/brokers")
async def brokers(services: AdminServices) -> dict[str, Any]:
    """The load of each broker, as this one knows it: shares are of 1, the moving average is `load`."""
    found = balance_of(services).loads.loads()
    return {broker: _told(found[broker]) for broker in sorted(found)}


@routes.get("/bundles")
async def bundles(services: AdminServices) -> dict[str, Any]:
    """The load of each bundle of this broker; no other broker knows it."""
    found = balance_of(services).reporter.bundles
    return {name: _told(found[name]) for name in sorted(found)}


@routes.get("/top-bundles")
async def top_bundles(services: AdminServices) -> dict[str, Any]:
    """The heaviest bundles of each broker, the heaviest first. Other brokers redirect to the leader."""
    work = balance_of(services)
    if not work.term:
        leader = None if work.leader is None else services.registry.living().get(work.leader.broker)
        if leader is None or leader.id == services.registry.me.id:
            raise RestError(503, "no broker leads at this moment: ask again")
        raise AskElsewhere(leader.address)
    tops = work.view.tops
    return {broker: [_told(one) for one in reversed(tops[broker].bundles)] for broker in sorted(tops)}


@routes.get("/decisions")
async def decisions(
    services: AdminServices, subject: str = "", most: int = DECISIONS_TOLD
) -> list[dict[str, Any]]:
    """The latest decisions of this broker, the newest first: all, or those about a bundle or a broker. Each names its
    reason, also one to do nothing. Moves are decided by the leader, splits by the owner."""
    if not 1 <= most <= KEPT_MAX:
        raise RestError(412, f"most is a number from 1 to {KEPT_MAX}")
    found = balance_of(services).decisions.recent(subject or None, most)
    return [one.to_json() for one in found]


def _told(load: BrokerLoad | BundleLoad) -> dict[str, Any]:
    return {_camel(name): value for name, value in asdict(load).items()}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
