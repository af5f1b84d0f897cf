"""What a request on a topic name means when the topic is partitioned: every partition, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.broker.admin.errors import RestError
from anabranch.broker.broker import Broker
from anabranch.broker.errors import TopicNotFoundError
from anabranch.broker.topic import Topic
from anabranch.model.names import TopicName


async def parts(broker: Broker, name: TopicName) -> list[TopicName]:
    """The topics that hold the messages: the partitions of a partitioned topic, else the topic itself."""
    count = 0 if name.is_partition else await broker.resources.partitions(name)
    return [name.partition(index) for index in range(count)] or [name]


async def single(broker: Broker, name: TopicName, *, partitioned: int = 404) -> Topic:
    """The open topic; 404 if there is none. A partitioned topic has no log of its own; that status is for one."""
    try:
        return await broker.topic(name)
    except TopicNotFoundError:
        if not name.is_partition and await broker.resources.partitions(name):
            raise RestError(
                partitioned, f"Topic {name} not found: it is partitioned, name one of its partitions"
            ) from None
        raise RestError(404, f"Topic {name} not found") from None


async def each(broker: Broker, name: TopicName) -> list[Topic]:
    """The topic, or every partition that exists by now; 404 if there is none."""
    found = []
    for part in await parts(broker, name):
        try:
            found.append(await broker.topic(part))
        except TopicNotFoundError:
            # Partitions are made at their first use when the topic was made by use.
            continue
    if not found:
        raise RestError(404, f"Topic {name} not found")
    return found


def merged(stats: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Partitions' stats as one: figures are added, parts with a name are merged by it, the rest is the first's."""
    total: dict[str, Any] = {}
    for one in stats:
        for key, value in one.items():
            total[key] = _added(key, total[key], value) if key in total else value
    return total


_NAMED = {"publishers": "producerName", "consumers": "consumerName"}
# Averages, times and ids of which a sum would mean nothing.
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


def _added(key: str, one: Any, other: Any) -> Any:
    if isinstance(one, bool) or one is None or other is None:
        return one or other
    if isinstance(one, int | float):
        if key == "topicCreationTimeStamp" or "earliest" in key:
            return min(one, other) if one and other else one or other  # 0 is for none.
        return max(one, other) if key in _LARGEST or "timestamp" in key.lower() else one + other
    if isinstance(one, dict) and all(isinstance(value, dict) for value in (*one.values(), *other.values())):
        return {
            name: merged([part[name] for part in (one, other) if name in part]) for name in {**one, **other}
        }
    if key in _NAMED:
        names = dict.fromkeys(item[_NAMED[key]] for item in (*one, *other))
        return [merged([item for item in (*one, *other) if item[_NAMED[key]] == name]) for name in names]
    return one
