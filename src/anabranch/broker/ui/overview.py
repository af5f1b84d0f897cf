"""All topics at a glance, for the page's first view: the busiest ones, the broker's totals, the brokers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import InvalidPolicy
from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.broker import Broker
from anabranch.broker.metrics import resident_bytes
from anabranch.broker.owners import BROKERS
from anabranch.broker.resources import NAMES_PER_TURN, ResourceError
from anabranch.broker.scalable.auto_policy import applied
from anabranch.broker.ui.recorder import shown_name
from anabranch.controller.records import Records
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import HASH_MAX, SegmentId

TOPICS_MAX: Final = 200
# How long a list of names is good enough. A topic that carries messages is seen at once, whatever the list says.
NAMES_FRESH_S: Final = 5.0
# A list of ten thousand takes longer to read: it is read for a twentieth of the time at most.
READING_SHARE: Final = 20


_Shape = tuple[SegmentLayout, Mapping[str, Any] | None]


@dataclass(slots=True)
class Names:
    """The names of all topics, read now and then, and the layouts of those that no controller here knows."""

    fresh_until: float = float("-inf")
    all: frozenset[TopicName] = frozenset()
    layouts: dict[TopicName, _Shape | None] = field(default_factory=dict)

    async def refresh(self, broker: Broker) -> None:
        began = time.monotonic()
        if began < self.fresh_until:
            return
        self.fresh_until = began + NAMES_FRESH_S
        found: set[TopicName] = set()
        for tenant in await broker.resources.tenants():
            for namespace in await broker.resources.namespaces(tenant):
                found.update(await broker.resources.scalable_names(namespace))
                async for name in _in_turns(await broker.resources.topic_names(namespace)):
                    if not name.is_system:
                        found.add(name.base)
                found.update(await broker.resources.partitioned_names(namespace, [Domain.PERSISTENT]))
        self.all = frozenset(found)
        self.layouts.clear()
        took = time.monotonic() - began
        self.fresh_until = began + max(NAMES_FRESH_S, took * READING_SHARE)

    async def shape(self, broker: Broker, name: TopicName) -> _Shape | None:
        """The topic's layout and its own policy; None if it is gone."""
        controller = None if broker.scalable is None else broker.scalable.controllers.get(name)
        if controller is not None and controller.state is not None:
            return controller.state.topic.layout, controller.state.topic.auto_scale
        if name not in self.layouts:
            stored = await Records(broker.metadata).get(name)
            self.layouts[name] = None if stored is None else (stored.layout, stored.auto_scale)
        return self.layouts[name]


async def overview_json(
    broker: Broker, names: Names, role: str, since_ms: int, wanted: str
) -> dict[str, Any]:
    """`wanted` is part of a name, or empty. Topics that the role may not administer are left out, uncounted."""
    await names.refresh(broker)
    wanted = wanted.lower()
    count = 0
    matching: list[tuple[float, str, TopicName]] = []
    open_now = [name for name in _open(broker) if name not in names.all]
    async for name in _readable(broker, role, itertools.chain(names.all, open_now)):
        count += 1
        if wanted in (text := str(name)).lower():
            matching.append((-_rate(broker, name), text, name))
    busiest = [name for _, _, name in heapq.nsmallest(TOPICS_MAX, matching)]
    consumers = _consumers(broker, busiest)
    return {
        "now": broker.now_ms(),
        "topicCount": count,
        "matching": len(matching),
        "segmentCount": sum(name.domain is Domain.SEGMENT for name in broker.loaded()),
        "topics": [
            row | {"consumers": consumers[name]}
            for name in busiest
            if (row := await _topic(broker, names, name, since_ms)) is not None
        ],
        **await _broker_wide(broker, role, since_ms),
    }


def _open(broker: Broker) -> Iterable[TopicName]:
    return {shown_name(name) for name in broker.loaded() if not name.is_system}


def _rate(broker: Broker, name: TopicName) -> float:
    latest = broker.recorder.totals(name).latest
    return 0.0 if latest is None else latest.messages_in + latest.messages_out


async def _readable(broker: Broker, role: str, names: Iterable[TopicName]) -> AsyncIterator[TopicName]:
    """A right on the namespace counts for all its topics; without it each is asked for."""
    whole: dict[NamespaceName, bool] = {}
    async for name in _in_turns(names):
        if name.namespace not in whole:
            whole[name.namespace] = await _may(broker, role, name.namespace)
        if whole[name.namespace] or await _may(broker, role, name):
            yield name


async def _in_turns(names: Iterable[TopicName]) -> AsyncIterator[TopicName]:
    """Lets others run in between: there may be a hundred thousand, and the page asks every few seconds."""
    for number, name in enumerate(names, 1):
        yield name
        if number % NAMES_PER_TURN == 0:
            await asyncio.sleep(0)


async def _may(broker: Broker, role: str, where: NamespaceName | TopicName) -> bool:
    try:
        await broker.rights.administer(role, where)
    except NotAuthorizedError:
        return False
    return True


async def _broker_wide(broker: Broker, role: str, since_ms: int) -> dict[str, Any]:
    """Sums over everybody's topics are for those who may see all of them."""
    try:
        await broker.rights.super_user(role)
    except NotAuthorizedError:
        return {"totals": [], "brokers": None}
    totals = broker.recorder.broker_totals.since(since_ms)
    return {
        "totals": [[round(value, 2) for value in total] for total in totals],
        "brokers": await _brokers(broker),
    }


async def _brokers(broker: Broker) -> list[dict[str, Any]]:
    found = []
    for child in await broker.metadata.children(BROKERS):
        node = await broker.metadata.get(f"{BROKERS}/{child}")
        if node is None:
            continue
        value = json.loads(node.value)
        shown = {
            "name": child,
            "serviceUrl": value.get("pulsarServiceUrl", ""),
            "started": value.get("startTimestamp", 0),
            "isThis": value.get("pulsarServiceUrl") == broker.service_url,
        }
        if shown["isThis"]:
            shown |= {
                "connections": len(broker.sessions),
                "memory": resident_bytes(),
                "lag": round(broker.loop_lag_s, 4),
            }
        found.append(shown)
    return found


async def _topic(broker: Broker, names: Names, name: TopicName, since_ms: int) -> dict[str, Any] | None:
    totals = broker.recorder.totals(name)
    latest = totals.latest
    shape = (
        await _scalable(broker, names, name) if name.domain is Domain.TOPIC else await _classic(broker, name)
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


async def _classic(broker: Broker, name: TopicName) -> dict[str, Any]:
    partitions = await broker.resources.partitions(name)
    return {"kind": "classic", "segmentCount": max(1, partitions), "section": [[1.0, 0.0]], "heat": 0.0}


async def _scalable(broker: Broker, names: Names, name: TopicName) -> dict[str, Any] | None:
    """Of a topic that another broker leads the record is read; its loads are known to that one alone."""
    found = await names.shape(broker, name)
    if found is None:
        return None
    layout, override = found
    try:
        policies = await broker.resources.policies(name.namespace)
        limits = applied(broker.config, policies, override).policy.split
    except (InvalidPolicy, ResourceError):
        limits = Load()
    heats = _heats(broker, name, limits)
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


def _heats(broker: Broker, name: TopicName, limits: Load) -> dict[SegmentId, float]:
    """Averaged over as long as decisions average it."""
    if broker.scaling is None or min(limits.rates) <= 0:
        return {}
    heats = {}
    from_ms = broker.now_ms() - round(broker.config.scalable_topic_load_report_window * 1000)
    for number, samples in broker.load_history.since(name, from_ms).items():
        sums = [sum(column) / len(samples) for column in zip(*(s.load.rates for s in samples), strict=True)]
        heats[number] = Load(*sums).heat(limits)
    return heats


def _consumers(broker: Broker, names: Iterable[TopicName]) -> dict[TopicName, int]:
    """Of all subscriptions. Those of a stream are counted by the controller, others where there are most."""
    counts: dict[TopicName, dict[str, int]] = {name: {} for name in names}
    for open_name, topic in broker.loaded().items():
        found = counts.get(shown_name(open_name))
        if found is not None:
            for subscription in topic.subscriptions.values():
                found[subscription.name] = max(found.get(subscription.name, 0), len(subscription.consumers))
    for name, found in counts.items():
        controller = None if broker.scalable is None else broker.scalable.controllers.get(name)
        for subscribed, coordinator in {} if controller is None else controller.coordinators.items():
            if coordinator.record.kind is not SubscriptionKind.QUEUE:
                found[subscribed] = max(found.get(subscribed, 0), len(coordinator.group.sessions))
    return {name: sum(found.values()) for name, found in counts.items()}
