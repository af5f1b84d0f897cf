"""All topics at a glance, for the page's first view: the busiest ones, the broker's totals, the brokers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from anabranch.autoscale.load import Load
from anabranch.autoscale.policy import InvalidPolicy
from anabranch.broker.admin.across.all_brokers import heard_from_others
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.catalog.owners import BrokerAddress
from anabranch.broker.catalog.resources import ResourceError
from anabranch.broker.observe.troubles import Disk
from anabranch.broker.runtime.machine import resident_bytes
from anabranch.broker.scalable.load.auto_policy import applied
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.broker.ui.parts import BrokerFigures, OverviewPart, TopicPart, most
from anabranch.broker.ui.recorder import Total, Totals, shown_name
from anabranch.broker.ui.sources import PageSources
from anabranch.broker.ui.sums import back, summed
from anabranch.controller.records import Records
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import SubscriptionKind
from anabranch.model.segments import HASH_MAX, SegmentId

TOPICS_MAX: Final = 200
# So many of its topics a broker tells another one, whose busiest may be others.
PART_TOPICS_MAX: Final = 400
ROWS_PER_TURN: Final = 20
# How long the page waits for brokers that do not answer.
ANSWER_MAX_S: Final = 2.0
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
    layouts_until: float = float("-inf")

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
        took = time.monotonic() - began
        self.fresh_until = began + max(NAMES_FRESH_S, took * READING_SHARE)

    async def shape(self, sources: PageSources, name: TopicName) -> _Shape | None:
        """The topic's layout and its own policy; None if it is gone."""
        controller = None if sources.scalable is None else sources.scalable.controllers.get(name)
        if controller is not None and controller.state is not None:
            return controller.state.topic.layout, controller.state.topic.auto_scale
        if (now := time.monotonic()) >= self.layouts_until:
            self.layouts.clear()
            self.layouts_until = now + NAMES_FRESH_S
        if name not in self.layouts:
            stored = await Records(sources.metadata).get(name)
            self.layouts[name] = None if stored is None else (stored.layout, stored.auto_scale)
        return self.layouts[name]


async def overview_json(
    sources: PageSources, names: Names, role: str, since_ms: int, wanted: str
) -> dict[str, Any]:
    """`wanted` is part of a name, or empty. Topics that the role may not administer are left out, and not counted."""
    wanted = wanted.lower()
    heard = await _heard(sources, since_ms, wanted)
    others = _Others(heard)
    await names.refresh(sources)
    all_names = {*names.scalable, *names.classic, *_open(sources), *others.names}
    readable = await _readable(sources, role, all_names)
    matching = [
        (-_rate(sources, name) - others.rate(name), str(name), name)
        async for name in in_turns(readable)
        if wanted in str(name).lower()
    ]
    busiest = [name for _, _, name in heapq.nsmallest(TOPICS_MAX, matching)]
    consumers = _consumers(sources, busiest)
    return {
        "now": sources.now_ms(),
        "topicCount": len(readable),
        "matching": len(matching),
        "segmentCount": _segments(sources) + sum(part.segments for part in others.parts),
        "topics": [
            row | {"consumers": sum(others.consumers(name, consumers[name]).values())}
            async for name in in_turns(busiest, ROWS_PER_TURN)
            if (row := await _topic(sources, names, others, name, since_ms)) is not None
        ],
        **await _broker_wide(sources, role, heard, since_ms),
    }


async def _heard(
    sources: PageSources, since_ms: int, wanted: str
) -> Mapping[BrokerAddress, OverviewPart | None]:
    """What the other brokers add; None for those that do not answer soon."""
    query = urlencode({"since": back(since_ms, sources.step_ms), "q": wanted})
    asked = InnerRequest("GET", "/inner/ui/overview", query)
    heard = await heard_from_others(sources.elsewhere, asked, answer_max_s=ANSWER_MAX_S)
    return {
        broker: msgspec.msgpack.decode(answer.body, type=OverviewPart)
        if answer is not None and answer.is_success
        else None
        for broker, answer in heard
    }


class _Others:
    """What the other brokers add to each topic."""

    def __init__(self, heard: Mapping[BrokerAddress, OverviewPart | None]) -> None:
        self.parts = [part for part in heard.values() if part is not None]
        self._topics: dict[str, list[TopicPart]] = {}
        for part in self.parts:
            for name, told in part.topics.items():
                self._topics.setdefault(name, []).append(told)

    @property
    def names(self) -> list[TopicName]:
        return [TopicName.parse(name) for name in self._topics]

    def of(self, name: TopicName) -> Sequence[TopicPart]:
        return self._topics.get(str(name), ())

    def rate(self, name: TopicName) -> float:
        return sum(part.msg_rate_in + part.msg_rate_out for part in self.of(name))

    def consumers(self, name: TopicName, mine: dict[str, int]) -> dict[str, int]:
        return most([mine, *(part.consumers for part in self.of(name))])


async def overview_part(sources: PageSources, names: Names, since_ms: int, wanted: str) -> OverviewPart:
    """What this broker adds to the page of another: the busiest of its open topics."""
    matching = [name for name in _open(sources) if wanted in str(name).lower()]
    busiest = heapq.nsmallest(PART_TOPICS_MAX, matching, key=lambda name: (-_rate(sources, name), str(name)))
    consumers = _consumers(sources, busiest)
    topics = {}
    async for name in in_turns(busiest, ROWS_PER_TURN):
        totals = sources.recorder.totals(name)
        latest = totals.latest
        shape = await names.shape(sources, name) if name.domain is Domain.TOPIC else None
        heats = {} if shape is None else _heats(sources, name, await _limits(sources, name, shape))
        topics[str(name)] = TopicPart(
            0.0 if latest is None else latest.messages_in,
            0.0 if latest is None else latest.messages_out,
            sources.recorder.backlog(name),
            _spark(totals, since_ms),
            {int(number): heat for number, heat in heats.items()},
            consumers[name],
        )
    return OverviewPart(
        own_load(sources),
        _segments(sources),
        _rounded(sources, since_ms),
        topics,
        await sources.troubles(),
    )


def own_load(sources: PageSources) -> BrokerFigures:
    latest = sources.recorder.broker_totals.latest
    return BrokerFigures(
        len(sources.connections),
        resident_bytes(),
        round(sources.lag_s(), 4),
        len(sources.loaded()),
        0.0 if latest is None else round(latest.messages_in, 2),
        0.0 if latest is None else round(latest.messages_out, 2),
    )


def _segments(sources: PageSources) -> int:
    return sum(name.domain is Domain.SEGMENT for name in sources.loaded())


def _spark(totals: Totals, since_ms: int) -> list[list[float]]:
    return [[total.at_ms, round(total.messages_in, 1)] for total in totals.since(since_ms)]


def _rounded(sources: PageSources, since_ms: int) -> list[list[float]]:
    return [[round(value, 2) for value in total] for total in sources.recorder.broker_totals.since(since_ms)]


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
            whole[name.namespace] = await may_administer(sources, role, name.namespace)
        is_asked = not whole[name.namespace] and not sources.rights.go_by_tenant
        if whole[name.namespace] or (is_asked and await may_administer(sources, role, name)):
            found.append(name)
    return found


async def may_administer(sources: PageSources, role: str, where: NamespaceName | TopicName) -> bool:
    try:
        await sources.rights.administer(role, where)
    except NotAuthorizedError:
        return False
    return True


async def _broker_wide(
    sources: PageSources, role: str, heard: Mapping[BrokerAddress, OverviewPart | None], since_ms: int
) -> dict[str, Any]:
    """Sums over all topics are for roles that may see all of them."""
    try:
        await sources.rights.super_user(role)
    except NotAuthorizedError:
        return {"totals": [], "brokers": None, "troubles": None}
    totals = _rounded(sources, since_ms)
    if sources.has_others:
        own = _rounded(sources, back(since_ms, sources.step_ms))
        theirs = [part.totals for part in heard.values() if part is not None]
        totals = summed([own, *theirs], sources.step_ms, since_ms, sources.now_ms())
    mine = await sources.troubles()
    others = [part.troubles for part in heard.values() if part is not None and part.troubles is not None]
    return {
        "totals": totals,
        "brokers": _brokers(sources, heard, mine.disk),
        "troubles": [msgspec.to_builtins(one) for part in (mine, *others) for one in part.troubles],
        "moreTroubles": sum(part.more for part in (mine, *others)),
    }


def _brokers(
    sources: PageSources, heard: Mapping[BrokerAddress, OverviewPart | None], own_disk: Disk
) -> list[dict[str, Any]]:
    found = []
    by_url = {broker.service_url: part for broker, part in heard.items()}
    for name, broker in sources.registry.living().items():
        shown: dict[str, Any] = {
            "name": name,
            "serviceUrl": broker.address.service_url,
            "started": broker.started_ms,
            "isThis": broker.run_id == sources.registry.me.run_id,
        }
        load = own_load(sources) if shown["isThis"] else None
        space = own_disk if shown["isThis"] else None
        if (part := by_url.get(shown["serviceUrl"])) is not None:
            load = part.load
            space = None if part.troubles is None else part.troubles.disk
        if space is not None:
            shown["disk"] = msgspec.to_builtins(space)
        if load is not None:
            shown |= {"connections": load.connections, "memory": load.memory, "lag": load.lag}
        if sources.has_others:
            shown |= {"isSilent": load is None}
            shown |= (
                {}
                if load is None
                else {"topics": load.topics, "in": load.msg_rate_in, "out": load.msg_rate_out}
            )
        found.append(shown)
    return found


async def _topic(
    sources: PageSources, names: Names, others: _Others, name: TopicName, since_ms: int
) -> dict[str, Any] | None:
    totals = sources.recorder.totals(name)
    latest = totals.latest or _NOTHING
    theirs = others.of(name)
    spark = _spark(totals, since_ms)
    if sources.has_others:
        series = [_spark(totals, back(since_ms, sources.step_ms)), *(part.spark for part in theirs)]
        spark = summed(series, sources.step_ms, since_ms, sources.now_ms())
    shape = (
        await _scalable(sources, names, others, name)
        if name.domain is Domain.TOPIC
        else await _classic(sources, name)
    )
    if shape is None:
        return None
    return {
        "name": str(name),
        "msgRateIn": round(latest.messages_in + sum(part.msg_rate_in for part in theirs), 2),
        "msgRateOut": round(latest.messages_out + sum(part.msg_rate_out for part in theirs), 2),
        "backlog": _known_sum([sources.recorder.backlog(name), *(part.backlog for part in theirs)]),
        "spark": spark,
        **shape,
    }


def _known_sum(backlogs: Iterable[int | None]) -> int | None:
    """What waits in all parts that are known; None if none is."""
    known = [backlog for backlog in backlogs if backlog is not None]
    return sum(known) if known else None


_NOTHING: Final = Total(0, 0.0, 0.0, 0.0, 0.0, 0)


async def _classic(sources: PageSources, name: TopicName) -> dict[str, Any]:
    partitions = await sources.resources.partitions(name)
    return {"kind": "classic", "segmentCount": max(1, partitions), "section": [[1.0, 0.0]], "heat": 0.0}


async def _scalable(
    sources: PageSources, names: Names, others: _Others, name: TopicName
) -> dict[str, Any] | None:
    """For a topic that another broker leads, the record is read. The load of a segment is known to its owner."""
    found = await names.shape(sources, name)
    if found is None:
        return None
    layout, _ = found
    heats = dict(_heats(sources, name, await _limits(sources, name, found)))
    for part in others.of(name):
        for number, heat in part.heats.items():
            heats[SegmentId(number)] = max(heat, heats.get(SegmentId(number), 0.0))
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


async def _limits(sources: PageSources, name: TopicName, shape: _Shape) -> Load:
    """The loads at which a segment of the topic splits."""
    try:
        policies = await sources.resources.policies(name.namespace)
        return applied(sources.config, policies, shape[1]).policy.split
    except (InvalidPolicy, ResourceError):
        return Load()


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


def _consumers(sources: PageSources, names: Iterable[TopicName]) -> dict[TopicName, dict[str, int]]:
    """Consumers of each subscription. The controller counts those of a stream; for others the largest count of a
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
    return counts
