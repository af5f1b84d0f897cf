"""`/admin/v2/namespaces/{tenant}/{ns}/bundleStates` and `…/{bundle}/explain`: where bundles are, and why.

Which broker has a bundle, and what has happened to it, every broker reads from the channel. A decision is known to the
broker that made it, most often the leader: `explain` asks all of them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from anabranch.balance.core.load import BrokerLoad
from anabranch.balance.core.moves_seen import moves_seen
from anabranch.balance.core.serving import server_of
from anabranch.balance.core.states import BundleChange
from anabranch.broker.admin.across.all_brokers import heard_from_others
from anabranch.broker.admin.across.owner_calls import MEDIA
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.bundles import named_bundle
from anabranch.broker.admin.services import AdminServices
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

routes = Routes("/admin/v2/namespaces", tag="namespaces", needs=Needs.TENANT_ADMIN)
# What other brokers ask.
inner = Routes("/inner/balance", needs=Needs.NOTHING, is_described=False)

# How long a broker that does not answer is waited for: the others' decisions are told without its own.
ANSWER_MAX_S: Final = 2.0
# About one bundle, and about all.
DECISIONS_MAX: Final = 100
GENERAL_MAX: Final = 20


@routes.get("/{tenant}/{namespace}/bundleStates")
async def states(services: AdminServices, namespace: NamespaceName) -> list[dict[str, Any]]:
    """Every bundle of the namespace: its state, its owner, and why that is so. Brokers are named by their web
    addresses."""
    ranges = (await services.resources.policies(namespace)).bundles.ranges
    return [_told(services, bundle) for bundle in ranges.bundles(namespace)]


@routes.get("/{tenant}/{namespace}/{bundle}/explain")
async def explain(services: AdminServices, namespace: NamespaceName, bundle: str) -> dict[str, Any]:
    """The same for one bundle, with what has happened to it in the last hour, and what was decided about it: also why
    it was not moved. `moves` and `decisions` name brokers as brokers do, the latest last."""
    found = await named_bundle(services, namespace, bundle)
    told = {"nowMs": services.now_ms(), "namespace": str(namespace), **_told(services, found)}
    balancer = services.balancer
    if balancer is not None:
        leader = balancer.reign.leader
        told["leader"] = None if leader is None else _web_id(services, leader.broker)
        told["safeMode"] = balancer.safe_mode.why()
        told["moves"] = [move.to_json() for move in moves_seen(balancer.history.of(found))]
        told |= await _decided(services, found)
    told["brokers"] = {
        one.address.web_id: len(services.shared.owned_by(one.id)) if services.shared is not None else 0
        for one in services.registry.living().values()
        if not one.is_draining
    }
    if balancer is not None:
        loads = balancer.loads()
        told["loads"] = {
            one.address.web_id: _told_load(loads[one.id])
            for one in services.registry.living().values()
            if one.id in loads
        }
    return told


def _told_load(load: BrokerLoad) -> dict[str, float]:
    return {"load": round(load.load, 4), "measuredMs": load.measured_ms}


# -- decisions


async def _decided(services: AdminServices, bundle: BundleName) -> dict[str, Any]:
    """The decisions about the bundle of all brokers, those about no bundle in particular, and who did not answer."""
    asked = InnerRequest("GET", "/inner/balance/decisions", f"subject={bundle}")
    heard = await heard_from_others(services.elsewhere, asked, answer_max_s=ANSWER_MAX_S)
    parts = [decisions_json(services, str(bundle))]
    parts += [
        msgspec.msgpack.decode(answer.body) for _, answer in heard if answer is not None and answer.is_success
    ]
    told: dict[str, Any] = {
        name: sorted((one for part in parts for one in part[name]), key=lambda one: one["untilMs"])
        for name in ("decisions", "general")
    }
    return told | {"silent": [broker.web_id for broker, answer in heard if answer is None]}


@inner.get("/decisions")
async def decisions(services: AdminServices, subject: str) -> HttpAnswer:
    return HttpAnswer(msgspec.msgpack.encode(decisions_json(services, subject)), MEDIA)


def decisions_json(services: AdminServices, subject: str) -> dict[str, list[dict[str, Any]]]:
    """What this broker has decided about that bundle, and about all of them."""
    if services.balancer is None:
        return {"decisions": [], "general": []}
    kept, by = services.balancer.decisions, {"by": services.registry.me.id}
    return {
        "decisions": [made.to_json() | by for made in kept.recent(subject, DECISIONS_MAX)],
        "general": [made.to_json() | by for made in kept.recent("", GENERAL_MAX)],
    }


# -- states


def _told(services: AdminServices, bundle: BundleName) -> dict[str, Any]:
    if services.balancer is None:
        owner = services.registry.me.address if services.shared is None else services.shared.owner_of(bundle)
        return {
            "bundle": bundle.range,
            "state": "unassigned" if owner is None else "assigned",
            "owner": None if owner is None else owner.web_id,
            "reason": "this broker is alone"
            if services.shared is None
            else "a hash over the living brokers, or an operator's assignment",
        }
    now = services.balancer.owners.state(bundle)
    if now is None:
        return {
            "bundle": bundle.range,
            "state": "unassigned",
            "owner": None,
            "reason": "no client asked for it",
        }
    return {"bundle": bundle.range, **_told_state(services, now)}


def _told_state(services: AdminServices, now: BundleChange) -> dict[str, Any]:
    assert services.balancer is not None
    owner = server_of(now, services.balancer.owners.living)
    told: dict[str, Any] = {
        "state": str(now.state),
        "owner": None if owner is None else _web_id(services, owner.broker),
        "reason": now.reason,
        "since": now.at_ms,
        "version": now.version,
        "flow": str(now.flow),
        "action": str(now.action),
    }
    if now.is_in_flight:
        told["source"] = None if now.source is None else _web_id(services, now.source.broker)
        told["destination"] = None if now.to is None else _web_id(services, now.to.broker)
    elif now.to is not None and owner is None:
        told["lost"] = now.to.broker  # Its broker is gone, and the leader has not given it another one yet.
    if now.children:
        told["children"] = [child.range for child in now.children]
    return told


def _web_id(services: AdminServices, broker: str) -> str:
    """As admin clients name the broker; as brokers name it if it is gone."""
    found = services.registry.living().get(broker)
    return broker if found is None else found.address.web_id
