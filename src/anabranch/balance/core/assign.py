"""Which broker gets a bundle that no broker owns: one bundle on demand, or many at once. Pure.

On demand, any broker decides from the loads that it has read: of two brokers drawn by lot, the less loaded one. Lots
keep brokers that decide at the same moment from choosing the same broker. Many bundles at once are the leader's: it
spreads them by load, the heaviest first.

A broker that has reported no load yet counts as loaded as the average: it may be new, or the reader's view may be. One
whose report is outdated is in doubt, and is used only where there is no other.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from anabranch.autoscale.verdict import counted, percent
from anabranch.balance.core.load import BrokerLoad, is_outdated, namespace_of
from anabranch.balance.core.owner_rules import NOTHING, OwnerRules, group_counts
from anabranch.balance.core.settings import BalanceSettings

# What a bundle adds at least, so that idle bundles are spread, too.
BUNDLE_LOAD_MIN: Final = 0.001

_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A living broker, by its registration and its last report."""

    id: str
    load: BrokerLoad | None = None
    version: str = ""
    is_draining: bool = False
    # False for a broker that still assigns by hash, as while a cluster is switched over.
    has_balancer: bool = True
    has_persistent_topics: bool = True
    has_non_persistent_topics: bool = True


@dataclass(frozen=True, slots=True)
class Chosen:
    broker: str
    because: str


@dataclass(frozen=True, slots=True)
class NoBroker:
    because: str
    # By broker.
    refused: Mapping[str, str]


# -- who may


def refused_candidates(
    candidates: Iterable[Candidate], settings: BalanceSettings, *, is_non_persistent: bool = False
) -> dict[str, str]:
    """The brokers that may own no further bundle, whatever its namespace, each with the reason. With
    `is_non_persistent` the bundle is wanted for a topic without a log."""
    refused: dict[str, str] = {}
    for one in candidates:
        topics = 0 if one.load is None else one.load.topics
        if one.is_draining:
            refused[one.id] = f"{one.id} is about to end"
        elif not one.has_balancer:
            refused[one.id] = f"{one.id} has another load manager"
        elif is_non_persistent and not one.has_non_persistent_topics:
            refused[one.id] = f"{one.id} serves no non-persistent topics"
        elif not is_non_persistent and not one.has_persistent_topics:
            refused[one.id] = f"{one.id} serves no persistent topics"
        elif topics >= settings.broker_topics_max:
            refused[one.id] = (
                f"{one.id} has {counted(topics, 'topic')} of at most {settings.broker_topics_max:,}"
            )
    return refused


def older_versions(candidates: Collection[Candidate]) -> dict[str, str]:
    """The brokers of earlier releases than the latest of them; none if any version cannot be read."""
    versions = {one.id: _version(one.version) for one in candidates}
    latest = max((found for found in versions.values() if found is not None), default=None)
    if latest is None or None in versions.values():
        return {}
    return {
        one.id: f"{one.id} runs {one.version}, another broker a later release"
        for one in candidates
        if versions[one.id] != latest
    }


def _version(text: str) -> tuple[int, int, int, bool, str] | None:
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        return None
    # A release comes after the candidates for it.
    return int(found[1]), int(found[2]), int(found[3]), not found[4], found[4]


def _usable(
    candidates: Iterable[Candidate],
    refused: Mapping[str, str],
    settings: BalanceSettings,
    is_non_persistent: bool,
) -> tuple[list[Candidate], dict[str, str]]:
    """Those that remain, by id, and why each of the others does not."""
    living = sorted(candidates, key=lambda one: one.id)
    reasons = refused_candidates(living, settings, is_non_persistent=is_non_persistent)
    reasons |= {one.id: refused[one.id] for one in living if one.id in refused and one.id not in reasons}
    left = [one for one in living if one.id not in reasons]
    if settings.prefers_later_versions:
        reasons |= older_versions(left)
        left = [one for one in left if one.id not in reasons]
    return left, reasons


# -- one bundle


def choose(
    candidates: Iterable[Candidate],
    now_ms: int,
    settings: BalanceSettings,
    below: Callable[[int], int],
    *,
    refused: Mapping[str, str] = NOTHING,
    is_non_persistent: bool = False,
) -> Chosen | NoBroker:
    """The broker for one bundle. `below(n)` draws a number from 0 up to, without, n; `refused` has the brokers that
    the bundle's policies exclude, as `OwnerRules.refused` gives them."""
    usable, reasons = _usable(candidates, refused, settings, is_non_persistent)
    if not usable:
        return NoBroker(_no_broker(reasons), reasons)
    trusted, loads = _trusted(usable, now_ms, settings)
    overloaded = settings.overloaded_percent / 100
    pool = [one for one in trusted if loads[one.id] <= overloaded] or trusted
    first = pool.pop(below(len(pool)))
    if not pool:
        return Chosen(first.id, f"{first.id} is the only broker to choose from")
    second = pool[below(len(pool))]
    difference = loads[first.id] - loads[second.id]
    if abs(difference) >= settings.load_difference_percent / 100:
        best, other = (first, second) if difference < 0 else (second, first)
        return Chosen(
            best.id,
            f"{best.id} has a load of {percent(loads[best.id])}, {other.id} {percent(loads[other.id])}",
        )
    # Of equals the one drawn first: by id, the last broker of a cluster that starts would never be chosen.
    best, other = sorted((first, second), key=lambda one: (_bundles(one), loads[one.id]))
    return Chosen(
        best.id,
        f"{best.id} has {counted(_bundles(best), 'bundle')}, {other.id} {_bundles(other):,}, at about the same load",
    )


def _trusted(
    usable: list[Candidate], now_ms: int, settings: BalanceSettings
) -> tuple[list[Candidate], dict[str, float]]:
    """The brokers without those whose reports are outdated, unless there are only such; and the load that each counts
    as having."""
    known = {
        one.id: one.load.load
        for one in usable
        if one.load is not None and not is_outdated(one.load.measured_ms, now_ms, settings)
    }
    mean = math.fsum(known.values()) / len(known) if known else 0.0
    trusted = [one for one in usable if one.id in known or one.load is None] or usable
    return list(trusted), {one.id: known.get(one.id, mean) for one in usable}


def _bundles(one: Candidate) -> int:
    return 0 if one.load is None else one.load.bundles


def _no_broker(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return "there is no living broker"
    return "no broker may own it: " + "; ".join(reasons[one] for one in sorted(reasons)[:3])


# -- many bundles


@dataclass(frozen=True, slots=True)
class Spread:
    chosen: Mapping[str, Chosen]
    # Bundles that no broker may own.
    unowned: Mapping[str, NoBroker]


def spread(
    bundles: Mapping[str, float | None],
    candidates: Iterable[Candidate],
    owners: Mapping[str, str],
    now_ms: int,
    settings: BalanceSettings,
    rules: OwnerRules,
) -> Spread:
    """The owners of many bundles without one, as after a start or the death of a broker.

    `bundles` has the load of each as far as it is known, `owners` the bundles that have an owner, for the spread of
    anti-affinity groups. The heaviest bundle goes first, each to the broker that is then the least loaded. Takes
    O(n log n) for n bundles, and the number of brokers more for each bundle of a group.
    """
    usable, reasons = _usable(candidates, NOTHING, settings, is_non_persistent=False)
    trusted, loads = _trusted(usable, now_ms, settings)
    filling = _Filling(trusted, loads, bundles)
    order = sorted(bundles, key=lambda one: (-filling.weight(one), one))
    grouped = [one for one in order if namespace_of(one) in rules.groups]
    counts = group_counts(owners, rules) if grouped else {}
    chosen: dict[str, Chosen] = {}
    unowned: dict[str, NoBroker] = {}
    # Bundles of groups first: they are bound to places, and what follows makes up for their load.
    for bundle in grouped:
        refused = rules.refused(bundle, loads, counts)
        broker = filling.least_but(refused)
        if broker is None:
            unowned[bundle] = NoBroker(_no_broker(reasons | dict(refused)), reasons | dict(refused))
            continue
        chosen[bundle] = filling.give(bundle, broker)
        held = counts.setdefault(rules.groups[namespace_of(bundle)], {})
        held[broker] = held.get(broker, 0) + 1
    pools: dict[str | None, tuple[list[tuple[float, str]], NoBroker]] = {}
    for bundle in order:
        namespace = namespace_of(bundle)
        if namespace in rules.groups:
            continue
        policy = rules.policy(namespace)
        if policy not in pools:
            every = reasons | dict(rules.refused(bundle, loads, counts))
            pools[policy] = filling.pool(every), NoBroker(_no_broker(every), every)
        pool, nothing = pools[policy]
        if (broker := filling.least(pool)) is None:
            unowned[bundle] = nothing
        else:
            chosen[bundle] = filling.give(bundle, broker)
    return Spread(chosen, unowned)


class _Filling:
    """The brokers as they fill up. A broker's load only grows, so each heap corrects an entry when it meets it."""

    def __init__(
        self, brokers: list[Candidate], loads: Mapping[str, float], bundles: Mapping[str, float | None]
    ) -> None:
        self._loads = dict(loads)
        self._trusted = {one.id for one in brokers}
        owned = sum(one.load.bundles for one in brokers if one.load is not None)
        total = math.fsum(one.load.load for one in brokers if one.load is not None)
        # A bundle of unknown load counts like the average bundle.
        self._usual = max(total / owned if owned else 0.0, BUNDLE_LOAD_MIN)
        self._bundles = bundles

    def weight(self, bundle: str) -> float:
        load = self._bundles[bundle]
        return self._usual if load is None else max(load, BUNDLE_LOAD_MIN)

    def pool(self, refused: Collection[str]) -> list[tuple[float, str]]:
        heap = [(self._loads[broker], broker) for broker in self._left(refused)]
        heapq.heapify(heap)
        return heap

    def least(self, pool: list[tuple[float, str]]) -> str | None:
        """The least loaded broker of the pool; None if the pool is empty."""
        while pool:
            load, broker = pool[0]
            if load == self._loads[broker]:
                return broker
            heapq.heapreplace(pool, (self._loads[broker], broker))
        return None

    def least_but(self, refused: Collection[str]) -> str | None:
        return min(self._left(refused), key=lambda one: (self._loads[one], one), default=None)

    def _left(self, refused: Collection[str]) -> list[str]:
        left = [broker for broker in self._loads if broker not in refused]
        return [broker for broker in left if broker in self._trusted] or left

    def give(self, bundle: str, broker: str) -> Chosen:
        before = self._loads[broker]
        self._loads[broker] = before + self.weight(bundle)
        return Chosen(
            broker, f"{broker} is the least loaded of those that may own it, with {percent(before)}"
        )
