"""All brokers and their bundles for the page: the load of each broker, what flows through each bundle, and what moved.

Every broker reads the states of bundles from the channel, so the one that is asked knows owners and moves itself. It
asks the others for what only they have measured, and a page that has just been opened for the moves that it has missed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from anabranch.balance.core.codec import BadChange, decode_change, encode_change
from anabranch.balance.core.load import BrokerLoad, weighted
from anabranch.balance.core.moves_seen import MoveSeen, moves_seen
from anabranch.balance.core.serving import server_of
from anabranch.balance.core.settings import BalanceSettings
from anabranch.balance.core.states import BundleChange
from anabranch.broker.admin.across.all_brokers import heard_from_others
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.balance.balance_log import BalanceAct
from anabranch.broker.balance.load.bundle_figures import bundle_figures
from anabranch.broker.config.balancer import balance_settings
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.broker.ui.overview import ANSWER_MAX_S, may_administer, own_load
from anabranch.broker.ui.parts import BrokerFigures, BundleTraffic, ClusterPart
from anabranch.broker.ui.sources import PageSources
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName

# The busiest bundles, besides those that move.
BUNDLES_MAX: Final = 300
MOVES_MAX: Final = 1000
# Moves are sent again for this long: behind one port any broker answers, and one may read the channel later.
OVERLAP_MS: Final = 5000
# How long figures of bundles are fresh enough.
FIGURES_FRESH_S: Final = 2.0
# Resources by the words of the page.
_RESOURCES: Final = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out", "disk")


_UNBALANCED: Final[dict[str, Any]] = {"leader": None, "safeMode": None, "shedding": None, "channelLag": 0.0}
_NOTHING: Final = _UNBALANCED | {"brokers": [], "bundleCount": 0, "bundles": [], "moves": [], "silent": []}

_decode: Final = msgspec.msgpack.Decoder(ClusterPart).decode


@dataclass(slots=True)
class Traffic:
    """What flows through the bundles of this broker, measured at intervals however many pages ask."""

    fresh_until: float = float("-inf")
    bundles: list[BundleTraffic] = field(default_factory=list)

    async def busiest(self, sources: PageSources) -> list[BundleTraffic]:
        shared, now = sources.shared, time.monotonic()
        if shared is not None and now >= self.fresh_until:
            self.fresh_until = now + FIGURES_FRESH_S
            found = await bundle_figures(sources.loaded().values(), shared.bundle, ())
            told = (
                BundleTraffic(
                    one.bundle,
                    round(one.msg_rate_in, 2),
                    round(one.msg_rate_out, 2),
                    round(one.throughput),
                    one.topics,
                    one.sessions,
                )
                for one in found.values()
            )
            self.bundles = heapq.nlargest(BUNDLES_MAX, told, key=_weight)
        return self.bundles


def _weight(one: BundleTraffic) -> tuple[float, float, int, str]:
    return one.throughput, one.msg_rate_in + one.msg_rate_out, one.topics, one.bundle


# -- this broker's part


async def cluster_part(sources: PageSources, traffic: Traffic, *, is_first: bool) -> ClusterPart:
    """`is_first`: the page has no moves yet."""
    balancer = sources.balancer
    changes = [] if balancer is None or not is_first else balancer.history.since(0)
    return ClusterPart(
        own_load(sources),
        await traffic.busiest(sources),
        [(str(change.bundle), encode_change(change)) for change in changes],
        _shedding(sources),
    )


def _shedding(sources: PageSources) -> dict[str, Any] | None:
    if sources.balancer is None or not sources.balancer.leader.is_leader:
        return None
    latest = (made.to_json() for made in sources.balancer.decisions.recent("") if made.act is BalanceAct.SHED)
    return next(latest, None)


# -- all brokers


async def cluster_json(sources: PageSources, traffic: Traffic, role: str, since_ms: int) -> dict[str, Any]:
    """Moves that were read after `since_ms`, and some before. Bundles of namespaces that the role may not administer
    are left out; figures of whole brokers are for super users. A role that may see nothing of either is not told which
    brokers there are."""
    asked = InnerRequest("GET", "/inner/ui/cluster", f"first={str(not since_ms).lower()}")
    heard = await heard_from_others(sources.elsewhere, asked, answer_max_s=ANSWER_MAX_S)
    now_ms = sources.now_ms()
    parts: dict[str, ClusterPart | None] = {
        broker.id: _decode(answer.body) if answer is not None and answer.is_success else None
        for broker, answer in heard
    }
    parts[sources.registry.me.id] = await cluster_part(sources, traffic, is_first=not since_ms)
    known = [part for part in parts.values() if part is not None]
    told = _Told(sources, role)
    bundles = await told.readable(_all_bundles(sources))
    moves = _moves(sources, known, since_ms)
    readable = set(await told.readable({move.bundle for move in moves}))
    is_super = await told.is_super_user()
    if not (is_super or bundles):
        return {"now": now_ms, "kind": _kind(sources)} | _NOTHING
    return {
        "now": now_ms,
        "kind": _kind(sources),
        **_balance(sources, known, is_super=is_super),
        "brokers": [_broker(sources, one, parts, is_super=is_super) for one in _brokers(sources)],
        "bundleCount": len(bundles),
        "bundles": _bundles(sources, bundles, known),
        "moves": [move.to_json() for move in moves if move.bundle in readable][-MOVES_MAX:],
        "silent": sorted(broker for broker, part in parts.items() if part is None),
    }


class _Told:
    """What a role may see."""

    def __init__(self, sources: PageSources, role: str) -> None:
        self._sources = sources
        self._role = role
        self._spaces: dict[NamespaceName, bool] = {}

    async def readable(self, bundles: Iterable[BundleName]) -> list[BundleName]:
        found = []
        for bundle in bundles:
            space = bundle.namespace
            if space not in self._spaces:
                self._spaces[space] = await may_administer(self._sources, self._role, space)
            if self._spaces[space]:
                found.append(bundle)
        return found

    async def is_super_user(self) -> bool:
        try:
            await self._sources.rights.super_user(self._role)
        except NotAuthorizedError:
            return False
        return True


def _kind(sources: PageSources) -> str:
    """How the owners of bundles are chosen; `alone` if there is one broker only."""
    if sources.balancer is not None:
        return "balanced"
    return "hashed" if sources.shared is not None else "alone"


def _balance(sources: PageSources, parts: Sequence[ClusterPart], *, is_super: bool) -> dict[str, Any]:
    balancer = sources.balancer
    if balancer is None:
        return _UNBALANCED
    leader = balancer.reign.leader
    shedding = next((part.shedding for part in parts if part.shedding is not None), None)
    return {
        "leader": None if leader is None else leader.broker,
        "safeMode": balancer.safe_mode.why(),
        "shedding": shedding if is_super else None,
        # For how long this broker has heard nothing of the states: what it shows is that old.
        "channelLag": round(balancer.states.lag_s, 1),
    }


# -- brokers


def _brokers(sources: PageSources) -> list[str]:
    """The living ones, and those that are gone and still have bundles by the states."""
    found = set(sources.registry.living())
    if sources.balancer is not None:
        states = sources.balancer.states.fold.bundles.values()
        found |= {run.broker for change in states for run in change.named}
    return sorted(found)


def _broker(
    sources: PageSources, broker: str, parts: Mapping[str, ClusterPart | None], *, is_super: bool
) -> dict[str, Any]:
    living = sources.registry.living().get(broker)
    part = parts.get(broker)
    told: dict[str, Any] = {
        "id": broker,
        "webId": "" if living is None else living.address.web_id,
        "isThis": broker == sources.registry.me.id,
        "isGone": living is None,
        "isDraining": living is not None and living.is_draining,
        "isSilent": living is not None and part is None,
        "bundles": _owned(sources, broker, is_living=living is not None),
    }
    if not is_super:
        return told
    if part is not None:
        told |= _figures(part.figures)
    loads = {} if sources.balancer is None else sources.balancer.loads()
    if broker in loads:
        told["load"] = _load(loads[broker], balance_settings(sources.config))
    return told


def _owned(sources: PageSources, broker: str, *, is_living: bool) -> int:
    """How many bundles the broker has, or had until it went and no other has got them yet."""
    if sources.balancer is not None and not is_living:
        states = sources.balancer.states.fold.bundles.values()
        return sum(now.owner is not None and now.owner.broker == broker for now in states)
    return 0 if sources.shared is None else len(sources.shared.owned_by(broker))


def _figures(figures: BrokerFigures) -> dict[str, Any]:
    return {
        "in": figures.msg_rate_in,
        "out": figures.msg_rate_out,
        "topics": figures.topics,
        "connections": figures.connections,
        "memory": figures.memory,
    }


def _load(load: BrokerLoad, settings: BalanceSettings) -> dict[str, Any]:
    """The load, the share of each resource, and which of them the load comes from."""
    shares = {name: round(getattr(load, name), 4) for name in _RESOURCES}
    weights = {name: getattr(settings, f"{name}_weight") for name in _RESOURCES}
    heaviest = max(_RESOURCES, key=lambda name: shares[name] * weights[name])
    return {
        "load": round(load.load, 4),
        "now": round(weighted(load, settings), 4),
        "of": heaviest,
        "shares": shares,
        "measured": load.measured_ms,
        "limit": settings.overloaded_percent / 100,
    }


# -- bundles


def _all_bundles(sources: PageSources) -> Collection[BundleName]:
    """Those of the namespaces, and those that the states have besides, as while a split is under way."""
    found: set[BundleName] = set()
    if sources.ranges is not None:
        for namespace, ranges in sources.ranges.ranges.items():
            found.update(ranges.bundles(namespace))
    if sources.balancer is not None:
        found.update(one.bundle for one in sources.balancer.states.fold.bundles.values() if one.is_in_flight)
    return sorted(found)


def _bundles(
    sources: PageSources, bundles: Sequence[BundleName], parts: Sequence[ClusterPart]
) -> list[dict[str, Any]]:
    """The busiest bundles, and all that are in flight."""
    traffic: dict[str, BundleTraffic] = {}
    for part in parts:
        for one in part.bundles:
            # While a bundle moves, both brokers have topics of it.
            before = traffic.get(one.bundle)
            traffic[one.bundle] = one if before is None else max(one, before, key=_weight)
    limits = balance_settings(sources.config)

    def weight(bundle: BundleName) -> tuple[bool, tuple[float, float, int, str]]:
        name = str(bundle)
        found = traffic.get(name) or BundleTraffic(name, 0.0, 0.0, 0.0, 0, 0)
        return _in_flight(sources, bundle), _weight(found)

    busiest = heapq.nlargest(BUNDLES_MAX, bundles, key=weight)
    return [_bundle(sources, bundle, traffic.get(str(bundle)), limits) for bundle in sorted(busiest)]


def _in_flight(sources: PageSources, bundle: BundleName) -> bool:
    now = None if sources.balancer is None else sources.balancer.owners.state(bundle)
    return now is not None and now.is_in_flight


def _bundle(
    sources: PageSources, bundle: BundleName, traffic: BundleTraffic | None, limits: BalanceSettings
) -> dict[str, Any]:
    told: dict[str, Any] = {"name": str(bundle)}
    if sources.balancer is not None:
        told |= _state(sources.balancer.owners.state(bundle), sources.balancer.owners.living)
    elif sources.shared is not None:
        owner = sources.shared.owner_of(bundle)
        told |= {"owner": None if owner is None else owner.id, "state": "assigned" if owner else "unassigned"}
    if traffic is not None:
        told |= {
            "in": traffic.msg_rate_in,
            "out": traffic.msg_rate_out,
            "bytes": traffic.throughput,
            "topics": traffic.topics,
            "sessions": traffic.sessions,
            "heat": round(_heat(traffic, limits), 3),
        }
    return told


def _state(now: BundleChange | None, living: Mapping[str, str]) -> dict[str, Any]:
    if now is None:
        return {"owner": None, "state": "unassigned"}
    owner = server_of(now, living)
    told: dict[str, Any] = {
        "owner": None if owner is None else owner.broker,
        "state": str(now.state),
        "since": now.at_ms,
    }
    if now.is_in_flight:
        told["reason"] = now.reason
        told["source"] = None if now.source is None else now.source.broker
        told["destination"] = None if now.to is None else now.to.broker
    elif owner is None and now.owner is not None:
        told["lost"] = now.owner.broker  # Its broker is gone, and no other has it yet.
    return told


def _heat(traffic: BundleTraffic, limits: BalanceSettings) -> float:
    """How close the bundle is to the nearest of the limits at which it splits."""
    shares = (
        (traffic.topics, limits.bundle_topics_max),
        (traffic.sessions, limits.bundle_sessions_max),
        (traffic.msg_rate_in + traffic.msg_rate_out, limits.bundle_msg_rate_max),
        (traffic.throughput, limits.bundle_bandwidth_max),
    )
    return max((value / limit for value, limit in shares if limit > 0), default=0.0)


# -- moves


def _moves(sources: PageSources, parts: Iterable[ClusterPart], since_ms: int) -> list[MoveSeen]:
    if sources.balancer is None:
        return []
    changes = {
        (one.bundle, one.version, one.at_ms): one
        for one in sources.balancer.history.since(max(0, since_ms - OVERLAP_MS))
    }
    for part in parts:
        for bundle, encoded in part.changes:
            try:
                change = decode_change(bundle, encoded)
            except BadChange:
                continue  # Of another release: its own page shows it.
            changes.setdefault((change.bundle, change.version, change.at_ms), change)
    return moves_seen(changes.values())
