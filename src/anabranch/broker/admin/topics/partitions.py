"""What a request about a partitioned topic means: every partition, or a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from anabranch.broker.admin.across.owner_calls import OwnerCall, at_owners
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.owners import check_mine
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName

P = ParamSpec("P")
R = TypeVar("R")


async def parts(services: AdminServices, name: TopicName) -> list[TopicName]:
    """The topics that hold the messages: the partitions of a partitioned topic, else the topic itself."""
    count = 0 if name.is_partition else await services.resources.partitions(name)
    return [name.partition(index) for index in range(count)] or [name]


async def owned_parts(services: AdminServices, name: TopicName) -> list[TopicName]:
    """As `parts`; ServedElsewhere, which redirects the caller, if that is a single topic of another broker."""
    found = await parts(services, name)
    if found == [name]:
        await check_mine(services.owners, name)
    return found


async def single(services: AdminServices, name: TopicName, *, partitioned: int = 404) -> Topic:
    """The open topic; 404 if there is none. A partitioned topic has no log of its own and is refused with that
    status."""
    try:
        return await services.topic(name)
    except TopicNotFoundError:
        if not name.is_partition and await services.resources.partitions(name):
            raise RestError(
                partitioned, f"Topic {name} not found: it is partitioned, name one of its partitions"
            ) from None
        raise RestError(404, f"Topic {name} not found") from None


async def on_parts(
    services: AdminServices, name: TopicName, call: OwnerCall[P, R], *arguments: P.args, **none: P.kwargs
) -> list[tuple[TopicName, R]]:
    """The call's results for the topic, or for every partition that exists; 404 if there is none.

    Partitions of an auto-created topic are created at their first use."""
    found = await at_owners(services, await owned_parts(services, name), call, *arguments, **none)
    if not found:
        raise RestError(404, f"Topic {name} not found")
    return found


def merged(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Partitions' stats as one: figures are added, parts with a name are merged by it, the rest is the first one's."""
    gathered: dict[str, list[Any]] = {}
    for one in stats:
        for key, value in one.items():
            gathered.setdefault(key, []).append(value)
    return {key: _together(key, values) for key, values in gathered.items()}


_NAMED = {"publishers": "producerName", "consumers": "consumerName"}
# Averages, times and ids, for which a sum would mean nothing.
_LARGEST = frozenset(
    {
        "averageMsgSize",
        "avgMessagesPerEntry",
        "producerId",
        "topicEpoch",
        "backlogQuotaLimitSize",
        "backlogQuotaLimitTime",
        "oldestBacklogMessageAgeSeconds",
    }
)


def _together(key: str, values: Sequence[Any]) -> Any:
    """Merges all values in one pass: there may be thousands of partitions with thousands of producers."""
    known = [value for value in values if value is not None]
    first = known[0] if known else None
    if isinstance(first, bool):
        return any(known)
    if isinstance(first, int | float):
        if key == "topicCreationTimeStamp" or "earliest" in key:
            return min(filter(None, known), default=0)  # 0 means none.
        return max(known) if key in _LARGEST or "timestamp" in key.lower() else sum(known)
    if isinstance(first, dict) and all(isinstance(part, dict) for value in known for part in value.values()):
        return {name: merged(parts) for name, parts in _by_name(pair for v in known for pair in v.items())}
    if (name_of := _NAMED.get(key)) is not None:
        return [merged(parts) for _, parts in _by_name((item[name_of], item) for v in known for item in v)]
    return first


def _by_name(pairs: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    """The values of each name, in the order in which names first occur."""
    found: dict[str, list[Any]] = {}
    for name, part in pairs:
        found.setdefault(name, []).append(part)
    return found.items()
