"""Which of its own bundles a broker splits (PIP-192): thresholds, hits in a row, limits. Pure.

The owner decides alone, from its own figures. Where a bundle is cut is `split_points.py`'s. A namespace never gets more
bundles than its maximum. As its other bundles may be split elsewhere at the same moment, the bundles are to be counted
again when the boundaries are changed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from anabranch.autoscale.verdict import counted, percent
from anabranch.balance.core.load import BundleLoad, namespace_of
from anabranch.balance.core.settings import MEGABYTE, BalanceSettings
from anabranch.model.bundles import BundleName


class SplitReason(StrEnum):
    """Which threshold a bundle is over, by Pulsar's labels."""

    TOPICS = "Topics"
    SESSIONS = "Sessions"
    MSG_RATE = "MsgRate"
    BANDWIDTH = "Bandwidth"


class KeptWhole(StrEnum):
    """Why a bundle that is over a threshold is not split, as a label for counters."""

    HIT_COUNT = "HitCount"
    FEW_TOPICS = "FewTopics"
    NARROW = "Narrow"
    MAX_BUNDLES = "MaxBundles"
    IN_FLIGHT = "InFlight"
    LIMIT = "Limit"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class BundleSplit:
    bundle: str
    reason: SplitReason
    because: str
    # How many bundles this split may add: at least one. Those of all splits of a cycle fit into their namespace.
    room: int = 1


@dataclass(frozen=True, slots=True)
class NotDivided:
    bundle: str
    label: KeptWhole
    because: str


@dataclass(frozen=True, slots=True)
class SplitState:
    """What the owner remembers from one cycle to the next: in how many in a row each bundle was over a threshold."""

    hits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    splits: tuple[BundleSplit, ...]
    # Bundles over a threshold that are not split now. The others need no reason.
    not_divided: tuple[NotDivided, ...]
    state: SplitState


def decide_splits(
    bundles: Iterable[BundleLoad],
    counts: Mapping[str, int],
    splitting: Iterable[str],
    state: SplitState,
    settings: BalanceSettings,
) -> SplitVerdict:
    """The bundles to split now, those furthest over a threshold first.

    `bundles` are those that the broker owns, `counts` the number of bundles of each of their namespaces at all brokers,
    `splitting` the bundles that are being split, anywhere. The state in the verdict counts the splits as made.
    """
    if not (settings.is_enabled and settings.is_splitting):
        return SplitVerdict((), (), SplitState())
    over = sorted(
        ((*found, one) for one in bundles if (found := _furthest(one, settings)) is not None),
        key=lambda found: (-found[0], found[3].bundle),
    )
    hits: dict[str, int] = {}
    splits: list[BundleSplit] = []
    not_divided: list[NotDivided] = []
    added: Counter[str] = Counter()
    parents = _by_namespace(splitting)
    for _, reason, because, one in over:
        name, namespace = one.bundle, namespace_of(one.bundle)
        # No split can divide a single topic, however often it is too much.
        if one.topics < 2:
            kept = NotDivided(
                name, KeptWhole.FEW_TOPICS, f"{because}, but has {counted(one.topics, 'topic')}"
            )
            not_divided.append(kept)
            continue
        hits[name] = state.hits.get(name, 0) + 1
        room = settings.namespace_bundles_max - counts.get(namespace, 0) - added[namespace]
        refusal = _refusal(name, hits[name], room, counts, parents, settings)
        if refusal is None and len(splits) >= settings.splits_max:
            refusal = KeptWhole.LIMIT, f"{counted(len(splits), 'bundle')} a cycle are split at most"
        if refusal is not None:
            not_divided.append(NotDivided(name, refusal[0], f"{because}, but {refusal[1]}"))
            continue
        splits.append(BundleSplit(name, reason, because))
        added[namespace] += 1
        del hits[name]
    with_room = _with_room(splits, counts, added, settings.namespace_bundles_max)
    return SplitVerdict(tuple(with_room), tuple(not_divided), SplitState(hits))


def _with_room(
    splits: list[BundleSplit], counts: Mapping[str, int], added: Mapping[str, int], most: int
) -> Iterable[BundleSplit]:
    """The first split of each namespace may make more than two parts, as far as the others leave room for that."""
    seen: set[str] = set()
    for one in splits:
        namespace = namespace_of(one.bundle)
        is_first = namespace not in seen
        seen.add(namespace)
        yield replace(one, room=1 + most - counts[namespace] - added[namespace]) if is_first else one


def _furthest(one: BundleLoad, settings: BalanceSettings) -> tuple[float, SplitReason, str] | None:
    """How far the bundle is over the threshold that it exceeds the most; None if it is over none. Of equal ones the
    first in Pulsar's order."""
    rate, data = one.msg_rate, one.throughput
    figures = (
        (SplitReason.TOPICS, one.topics, settings.bundle_topics_max, counted(one.topics, "topic")),
        (SplitReason.SESSIONS, one.sessions, settings.bundle_sessions_max, counted(one.sessions, "session")),
        (SplitReason.MSG_RATE, rate, settings.bundle_msg_rate_max, f"{rate:,.0f} messages a second"),
        (SplitReason.BANDWIDTH, data, settings.bundle_bandwidth_max, f"{data / MEGABYTE:,.1f} MB a second"),
    )
    best: tuple[float, SplitReason, str] | None = None
    for reason, value, limit, text in figures:
        if value <= limit or (reason is SplitReason.SESSIONS and limit == 0):
            continue
        heat = value / limit if limit else math.inf
        if best is None or heat > best[0]:
            against = f"{percent(heat)} of its limit" if limit else "and may have none"
            best = heat, reason, f"{one.bundle} has {text}, {against}"
    return best


def _refusal(
    name: str,
    hits: int,
    room: int,
    counts: Mapping[str, int],
    parents: Mapping[str, list[tuple[int, int]]],
    settings: BalanceSettings,
) -> tuple[KeptWhole, str] | None:
    bundle = BundleName.parse(name)
    namespace, (first, last) = str(bundle.namespace), bundle.edges
    if last - first < 2:
        return KeptWhole.NARROW, "its range cannot be divided further"
    if hits <= settings.split_hits:
        return (
            KeptWhole.HIT_COUNT,
            f"only {counted(hits, 'time')} in a row, and splits need {settings.split_hits + 1}",
        )
    if namespace not in counts:
        return KeptWhole.UNKNOWN, f"the number of bundles of {namespace} is not known"
    if room < 1:
        return KeptWhole.MAX_BUNDLES, f"{namespace} may have {settings.namespace_bundles_max} bundles at most"
    if any(start <= first and last <= end for start, end in parents.get(namespace, ())):
        return KeptWhole.IN_FLIGHT, "the bundle that it is a part of is still being split"
    return None


def _by_namespace(bundles: Iterable[str]) -> Mapping[str, list[tuple[int, int]]]:
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for name in bundles:
        bundle = BundleName.parse(name)
        found[str(bundle.namespace)].append(bundle.edges)
    return found
