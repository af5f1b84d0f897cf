"""All topics at a glance, for the page's first view: the busiest ones, the broker's totals, the brokers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import InvalidPolicy
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.catalog.resources import ResourceError
from anabranch.broker.observe.metrics import resident_bytes
from anabranch.broker.scalable.load.auto_policy import applied
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.broker.ui.recorder import shown_name
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.records import Records
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import HASH_MAX, SegmentId

TOPICS_MAX: Final = 200
# How long a list of names is fresh enough. A topic with traffic is seen at once, whatever the list says.
NAMES_FRESH_S: Final = 5.0
# A list of ten thousand takes longer to read: reading takes a twentieth of the time at most.
READING_SHARE: Final = 20


_Shape = tuple[SegmentLayout, Mapping[str, Any] | None]


@dataclass(slots=True)
class Names:
    """The names of all topics, read at intervals, and the layouts of those without a controller here."""

    fresh_until: float = float("-inf")
    scalable: tuple[TopicName, ...] = ()
    classic: tuple[TopicName, ...] = ()
    layouts: dict[TopicName, _Shape | None] = field(default_factory=dict)

    async def refresh(self, sources: PageSources) -> None:
        began = time.monotonic()
        if began < self.fresh_until:
            return
        self.fresh_until = began + NAMES_FRESH_S
        scalable: list[TopicName] = []
        classic: set[TopicName] = set()
        for tenant in await sources.resources.tenants():
            for namespace in await sources.resources.namespaces(tenant):
                scalable += await sources.resources.scalable_names(namespace)
                names = await sources.resources.topic_names(namespace)
                classic |= {name.base for name in names if not name.is_system}
                classic |= set(await sources.resources.partitioned_names(namespace, [Domain.PERSISTENT]))
        self.scalable, self.classic = tuple(scalable), tuple(classic)
        self.layouts.clear()
        took = time.monotonic() - began
        self.fresh_until = began + max(NAMES_FRESH_S, took * READING_SHARE)

    async def shape(self, sources: PageSources, name: TopicName) -> _Shape | None:
        """The topic's layout and its own policy; None if it is gone."""
        controller = None if sources.scalable is None else sources.scalable.controllers.get(name)
        if controller is not None and controller.state is not None:
            return controller.state.topic.layout, controller.state.topic.auto_scale
        if name not in self.layouts:
            stored = await Records(sources.metadata).get(name)
            self.layouts[name] = None if stored is None else (stored.layout, stored.auto_scale)
        return self.layouts[name]


async def overview_json(
    sources: PageSources, names: Names, role: str, since_ms: int, wanted: str
) -> dict[str, Any]:
    """`wanted` is part of a name, or empty. Topics that the role may not administer are left out, and not counted."""
    await names.refresh(sources)
    readable = await _readable(sources, role, {*names.scalable, *names.classic, *_open(sources)})
    wanted = wanted.lower()
    matching = [
        (-_rate(sources, name), str(name), name)
        async for name in in_turns(readable)
        if wanted in str(name).lower()
    ]
    busiest = [name for _, _, name in heapq.nsmallest(TOPICS_MAX, matching)]
    consumers = _consumers(sources, busiest)
    return {
        "now": sources.now_ms(),
        "topicCount": len(readable),
        "matching": len(matching),
        "segmentCount": sum(name.domain is Domain.SEGMENT for name in sources.loaded()),
        "topics": [
            row | {"consumers": consumers[name]}
            for name in busiest
            if (row := await _topic(sources, names, name, since_ms)) is not None
        ],
        **await _broker_wide(sources, role, since_ms),
    }


def _open(sources: PageSources) -> Iterable[TopicName]:
    return {shown_name(name) for name in sources.loaded() if not name.is_system}


def _rate(sources: PageSources, name: TopicName) -> float:
    latest = sources.recorder.totals(name).latest
    return 0.0 if latest is None else latest.messages_in + latest.messages_out


async def _readable(sources: PageSources, role: str, names: Iterable[TopicName]) -> list[TopicName]:
    """A right on the namespace counts for all its topics; without it each topic is checked, where that can matter."""
    whole: dict[NamespaceName, bool] = {}
    found = []
    async for name in in_turns(names):
        if name.namespace not in whole:
            whole[name.namespace] = await _may(sources, role, name.namespace)
        is_asked = not whole[name.namespace] and not sources.rights.go_by_tenant
        if whole[name.namespace] or (is_asked and await _may(sources, role, name)):
            found.append(name)
    return found


async def _may(sources: PageSources, role: str, where: NamespaceName | TopicName) -> bool:
    try:
        await sources.rights.administer(role, where)
    except NotAuthorizedError:
        return False
    return True


async def _broker_wide(sources: PageSources, role: str, since_ms: int) -> dict[str, Any]:
    """Sums over all topics are for roles that may see all of them."""
    try:
        await sources.rights.super_user(role)
    except NotAuthorizedError:
        return {"totals": [], "brokers": None}
    totals = sources.recorder.broker_totals.since(since_ms)
    return {
        "totals": [[round(value, 2) for value in total] for total in totals],
        "brokers": _brokers(sources),
    }


def _brokers(sources: PageSources) -> list[dict[str, Any]]:
    found = []
    for name, broker in sources.registry.living().items():
        shown: dict[str, Any] = {
            "name": name,
            "serviceUrl": broker.address.service_url,
            "started": broker.started_ms,
            "isThis": broker.run_id == sources.registry.me.run_id,
        }
        if shown["isThis"]:
            shown |= {
                "connections": len(sources.connections),
                "memory": resident_bytes(),
                "lag": round(sources.lag_s(), 4),
            }
        found.append(shown)
    return found


async def _topic(sources: PageSources, names: Names, name: TopicName, since_ms: int) -> dict[str, Any] | None:
    totals = sources.recorder.totals(name)
    latest = totals.latest
    shape = (
        await _scalable(sources, names, name)
        if name.domain is Domain.TOPIC
        else await _classic(sources, name)
    )
    if shape is None:
        return None
    return {
        "name": str(name),
        "msgRateIn": 0.0 if latest is None else round(latest.messages_in, 2),
        "msgRateOut": 0.0 if latest is None else round(latest.messages_out, 2),
        "backlog": 0 if latest is None else latest.backlog,
        "spark": [[total.at_ms, round(total.messages_in, 1)] for total in totals.since(since_ms)],
        **shape,
    }


async def _classic(sources: PageSources, name: TopicName) -> dict[str, Any]:
    partitions = await sources.resources.partitions(name)
    return {"kind": "classic", "segmentCount": max(1, partitions), "section": [[1.0, 0.0]], "heat": 0.0}


async def _scalable(sources: PageSources, names: Names, name: TopicName) -> dict[str, Any] | None:
    """For a topic that another broker leads, the record is read; its loads are known to that broker alone."""
    found = await names.shape(sources, name)
    if found is None:
        return None
    layout, override = found
    try:
        policies = await sources.resources.policies(name.namespace)
        limits = applied(sources.config, policies, override).policy.split
    except (InvalidPolicy, ResourceError):
        limits = Load()
    heats = _heats(sources, name, limits)
    section = [
        [round(len(segment.range) / (HASH_MAX + 1), 5), round(heats.get(segment.id, 0.0), 3)]
        for segment in layout.active
    ]
    return {
        "kind": "scalable",
        "segmentCount": len(layout.active),
        "section": section,
        "heat": max((heat for _, heat in section), default=0.0),
    }


def _heats(sources: PageSources, name: TopicName, limits: Load) -> dict[SegmentId, float]:
    """Heat averaged over the same time as for decisions."""
    if sources.scaling is None or min(limits.rates) <= 0:
        return {}
    heats = {}
    from_ms = sources.now_ms() - round(sources.config.scalable_topic_load_report_window * 1000)
    for number, samples in sources.scaling.reporter.history.since(name, from_ms).items():
        sums = [sum(column) / len(samples) for column in zip(*(s.load.rates for s in samples), strict=True)]
        heats[number] = Load(*sums).heat(limits)
    return heats


def _consumers(sources: PageSources, names: Iterable[TopicName]) -> dict[TopicName, int]:
    """Consumers of all subscriptions. The controller counts those of a stream; for others the largest count of a
    segment is taken."""
    counts: dict[TopicName, dict[str, int]] = {name: {} for name in names}
    for open_name, topic in sources.loaded().items():
        found = counts.get(shown_name(open_name))
        if found is not None:
            for subscription in topic.subscriptions.values():
                found[subscription.name] = max(found.get(subscription.name, 0), len(subscription.consumers))
    for name, found in counts.items():
        controller = None if sources.scalable is None else sources.scalable.controllers.get(name)
        for subscribed, coordinator in {} if controller is None else controller.coordinators.items():
            if coordinator.record.kind is not SubscriptionKind.QUEUE:
                found[subscribed] = max(found.get(subscribed, 0), len(coordinator.group.sessions))
    return {name: sum(found.values()) for name, found in counts.items()}
