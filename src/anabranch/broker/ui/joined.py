"""One topic of several brokers for the page: the leader's view of it, and the traffic that each owner has measured.

The broker that is asked gathers: from the leader what only the leader knows (decisions, policy, assignments), from
every broker the samples of the segments that it serves, or served within the last hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from anabranch.broker.admin.across.all_brokers import heard_from_others
from anabranch.broker.admin.elsewhere import BrokerSilent, InnerRequest
from anabranch.broker.ui.classic import classic_figures, classic_parts
from anabranch.broker.ui.parts import RiverPart, samples_together
from anabranch.broker.ui.recorder import KEPT_MS
from anabranch.broker.ui.river import drawn, loads, topic_totals
from anabranch.broker.ui.sources import PageSources
from anabranch.broker.ui.sums import back, summed
from anabranch.controller.core.errors import NotLeader
from anabranch.model.names import Domain, TopicName

ANSWER_MAX_S: Final = 2.0


def river_part(sources: PageSources, topic: TopicName, since_ms: int, *, is_classic: bool) -> RiverPart:
    """What this broker has of a topic, which is named as `topic://` also if it is classic."""
    if is_classic:
        name = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
        return RiverPart(topic_totals(sources.recorder, name, since_ms), classic=classic_parts(sources, name))
    generation, known = sources.recorder.layouts.remembered(topic)
    return RiverPart(
        topic_totals(sources.recorder, topic, since_ms),
        {} if sources.scaling is None else loads(sources.scaling.reporter.history, topic, since_ms),
        generation=generation,
        remembered=drawn(known),
    )


async def from_leader(
    sources: PageSources, elsewhere: NotLeader, role: str, topic: TopicName, since_ms: int, layout: str
) -> dict[str, Any] | None:
    """The leader's answer to the same question; None if there is none."""
    leader = await sources.registry.find(elsewhere.leader) if elsewhere.leader else None
    if leader is None or not sources.has_others:
        return None
    path = f"/ui/api/topics/{topic.namespace}/{quote(topic.local, safe='')}"
    query = f"since={since_ms}&layout={quote(layout)}"
    try:
        asked = InnerRequest("GET", path, query, role=role)
        answer = await sources.elsewhere.ask(leader, asked, answer_max_s=ANSWER_MAX_S)
    except BrokerSilent:
        return None
    if not answer.is_success:
        return None
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    # A topic that the leader does not lead any more.
    return None if found["kind"] == "elsewhere" else found


async def joined(
    sources: PageSources, topic: TopicName, found: dict[str, Any], since_ms: int
) -> dict[str, Any]:
    """The leader's answer with what every broker has measured."""
    step_ms, now_ms = sources.step_ms, sources.now_ms()
    from_ms = back(since_ms, step_ms)
    path = f"/inner/ui/topics/{topic.namespace}/{quote(topic.local, safe='')}"
    is_classic = found["kind"] == "classic"
    asked = InnerRequest("GET", path, f"since={from_ms}&classic={str(is_classic).lower()}")
    heard = await heard_from_others(sources.elsewhere, asked, answer_max_s=ANSWER_MAX_S)
    parts = [river_part(sources, topic, from_ms, is_classic=is_classic)]
    parts += [
        msgspec.msgpack.decode(answer.body, type=RiverPart)
        for _, answer in heard
        if answer is not None and answer.is_success
    ]
    silent = [broker.id for broker, answer in heard if answer is None]
    found |= {"totals": summed([part.totals for part in parts], step_ms, since_ms, now_ms), "silent": silent}
    if is_classic:
        return found | classic_figures(one for part in parts for one in part.classic)
    found["samples"] = samples_together(part.samples for part in parts)
    found["owners"] = await _segment_owners(sources, topic)
    if found.get("layout"):
        found["layout"] = _with_pruned(found["layout"], parts, now_ms)
    return found


async def _segment_owners(sources: PageSources, topic: TopicName) -> dict[str, str]:
    """The broker that serves each segment; segments without an owner at the moment are left out."""
    assert sources.scalable is not None
    record = await sources.scalable.get(topic)
    found = {}
    for segment in () if record is None else record.layout.segments.values():
        if (owner := sources.owners.owner(segment.topic(topic))) is not None:
            found[str(segment.id)] = owner.id
    return found


def _with_pruned(layout: dict[str, Any], parts: Sequence[RiverPart], now_ms: int) -> dict[str, Any]:
    """The layout with segments, and links to them, that only a former leader remembers."""
    generation = int(layout["id"].partition(".")[0])
    segments: dict[int, dict[str, Any]] = {one["id"]: one for one in layout["segments"]}
    for part in parts:
        for one in part.remembered if part.generation == generation else ():
            known = segments.setdefault(one["id"], one | {"gone": True})
            for link in ("parents", "children"):
                known[link] = sorted({*known[link], *one[link]})
    kept = [
        one
        for number, one in sorted(segments.items())
        if not one["gone"] or one["sealed"] >= now_ms - KEPT_MS
    ]
    return layout | {"segments": kept}
