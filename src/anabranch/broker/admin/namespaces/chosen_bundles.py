"""The words that Pulsar's clients may write instead of a bundle's range, where a bundle is split: `LARGEST` is the one
with the most topics, `HOT` the one with the most bytes a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from anabranch.broker.admin.across.all_brokers import from_others
from anabranch.broker.admin.across.owner_calls import MEDIA
from anabranch.broker.admin.elsewhere import InnerRequest
from anabranch.broker.admin.http.answer import HttpAnswer
from anabranch.broker.admin.http.large import in_turns
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.namespaces.namespaces import logged_topics
from anabranch.broker.admin.services import AdminServices
from anabranch.model.bundles import BundleRanges
from anabranch.model.names import NamespaceName

# What other brokers ask.
inner: Final = Routes("/inner/bundles", needs=Needs.NOTHING, is_described=False)


class ChosenBundle(StrEnum):
    LARGEST = "LARGEST"
    HOT = "HOT"


async def range_of(services: AdminServices, namespace: NamespaceName, text: str) -> str:
    """The range that the text means now; any other text as it is. Of equals the first counts; of bundles without any
    traffic, and for `HOT`, the one with the most topics."""
    if text not in ChosenBundle.__members__:
        return text
    ranges = (await services.resources.policies(namespace)).bundles.ranges
    topics: Counter[str] = Counter()
    async for name in in_turns(await logged_topics(services, namespace)):
        topics[ranges.of(name).range] += 1
    heat = await _heat_everywhere(services, namespace) if text == ChosenBundle.HOT else {}
    # Of equals `max` takes the first one.
    return max(ranges.names, key=lambda one: (heat.get(one, 0.0), topics[one]))


async def _heat_everywhere(services: AdminServices, namespace: NamespaceName) -> Mapping[str, float]:
    """Bytes a second of each bundle with traffic, at all brokers: each has the bundles that it owns."""
    parts = [await _heat_here(services, namespace)]
    if services.shared is not None:
        asked = InnerRequest("GET", "/inner/bundles/heat", f"namespace={namespace}")
        parts += [
            msgspec.msgpack.decode(answer.body, type=dict[str, float])
            for answer in await from_others(services.elsewhere, asked)
        ]
    heat: Counter[str] = Counter()
    for part in parts:
        heat.update(part)
    return heat


@inner.get("/heat")
async def heat(services: AdminServices, namespace: str) -> HttpAnswer:
    found = await _heat_here(services, NamespaceName.parse(namespace))
    return HttpAnswer(msgspec.msgpack.encode(found), MEDIA)


async def _heat_here(services: AdminServices, namespace: NamespaceName) -> dict[str, float]:
    ranges: BundleRanges = (await services.resources.policies(namespace)).bundles.ranges
    found: dict[str, float] = {}
    async for topic in in_turns(list(services.loaded().values())):
        if topic.name.namespace != namespace:
            continue
        sent = sum(consumer.rates[1] for one in topic.subscriptions.values() for consumer in one.consumers)
        name = ranges.of(topic.name).range
        found[name] = found.get(name, 0.0) + topic.rates_in[1] + sent
    return found
