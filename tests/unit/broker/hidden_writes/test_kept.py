"""What a job has written and not decided about stays, whatever else deletes: it takes force, or a decision."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from anabranch.broker.catalog.segment_records import topic_id_of
from anabranch.broker.config.config import BrokerConfig
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from harness.simple_client import Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving

A = "a" * 32
JOB = WriteBatch("job", 0)
V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default"
T = f"{V2}/persistent/public/default/t"
TOPIC = "persistent://public/default/t"
SEGMENT = "segment://public/default/river/0000-ffff-0"
HOUR_MS = 3_600_000
UNDECIDED = "not decided"


@dataclass
class Clock:
    ahead_ms: int = 0

    def __call__(self) -> int:
        return NOW_MS + self.ahead_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def rest(clock: Clock) -> AsyncIterator[Rest]:
    config = BrokerConfig(log_linger_seconds=0, log_linger_bytes=0, hidden_writes_timeout_seconds=1_000_000)
    async with serving(MemoryMetadata(clock), config, now_ms=clock) as made:
        yield made


async def write(rest: Rest, topic: str = TOPIC) -> None:
    """A task writes a row and ends; its driver has not decided yet."""
    producer = await rest.client.producer(topic, hidden=Hidden("job", 0, A))
    await (await producer.send(b"row"))
    await producer.close()


async def rows_after_deciding(rest: Rest, topic: str = TOPIC) -> int:
    await rest.broker.write_records.decide(JOB, [A], [topic])
    opened = await rest.broker.topic(TopicName.parse(topic))
    await opened.hidden.reveal(JOB)
    return opened.log.entries


@pytest.mark.parametrize("mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"])
async def test_a_topic_with_hidden_entries_is_not_inactive(rest: Rest, clock: Clock, mode: str) -> None:
    policy = {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 60, "deleteWhileInactive": True}
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json=policy)
    await write(rest)
    for clock.ahead_ms in (0, HOUR_MS, 2 * HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rows_after_deciding(rest) == 1


async def test_a_topic_whose_hidden_entries_were_dropped_becomes_inactive(rest: Rest, clock: Clock) -> None:
    policy = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 60}
    await rest.call("POST", f"{NS}/inactiveTopicPolicies", 204, json={**policy, "deleteWhileInactive": True})
    await write(rest)
    await rest.broker.write_records.drop(JOB, [A])
    opened = await rest.broker.topic(TopicName.parse(TOPIC))
    await opened.hidden.look()
    await opened.maintain()
    for clock.ahead_ms in (0, HOUR_MS):
        await rest.broker.inactive_topics.sweep()
    assert await rest.get(f"{V2}/persistent/public/default") == []


async def test_a_topic_with_hidden_entries_is_deleted_by_force_only(rest: Rest) -> None:
    await write(rest)
    assert UNDECIDED in await rest.refused("DELETE", T, 412)
    assert await rows_after_deciding(rest) == 1
    await rest.call("DELETE", T, 204)


async def test_a_partitioned_topic_with_hidden_entries_is_deleted_by_force_only(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/partitions", 204, json=3)
    last = f"{TOPIC}-partition-2"
    await write(rest, last)
    assert UNDECIDED in await rest.refused("DELETE", f"{T}/partitions", 412)
    assert len(await rest.get(f"{V2}/persistent/public/default")) == 3, "all of it or nothing"
    assert await rows_after_deciding(rest, last) == 1
    await rest.call("DELETE", f"{T}/partitions", 204)


async def test_a_scalable_topic_with_hidden_entries_is_deleted_by_force_only(rest: Rest) -> None:
    river = f"{V2}/scalable/public/default/river"
    await rest.call("PUT", river, 204)
    await write(rest, SEGMENT)
    assert UNDECIDED in await rest.refused("DELETE", river, 412)
    assert UNDECIDED in await rest.refused("DELETE", f"{V2}/segments/public/default/river/0000-ffff-0", 412)
    assert await rows_after_deciding(rest, SEGMENT) == 1
    await rest.call("DELETE", river, 204)


async def test_a_namespace_or_bundle_with_hidden_entries_is_deleted_by_force_only(rest: Rest) -> None:
    await write(rest)
    await rest.refused("DELETE", NS, 409)
    edges = (await rest.get(f"{NS}/bundles"))["boundaries"]
    answers = [await rest.http.delete(f"{NS}/{first}_{last}") for first, last in pairwise(edges)]
    assert [answer.status_code for answer in answers].count(409) == 1, "the one with the topic"
    assert await rows_after_deciding(rest) == 1


async def test_truncation_and_trimming_leave_what_is_hidden(rest: Rest, clock: Clock) -> None:
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    await rest.call("POST", f"{NS}/retention", 204, json=nothing)
    await rest.call("POST", f"{NS}/messageTTL", 204, json=1)
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish(TOPIC, b"before")
    await write(rest)
    await rest.publish(TOPIC, b"after")
    clock.ahead_ms = HOUR_MS
    await rest.call("DELETE", f"{T}/truncate", 204)
    await rest.call("POST", f"{T}/trim", 204)
    await rest.call("POST", f"{T}/subscription/s/skip_all", 204)
    opened = await rest.broker.topic(TopicName.parse(TOPIC))
    assert opened.log.entries == 0
    assert await rows_after_deciding(rest) == 2
    assert opened.subscriptions["s"].backlog() == 2


async def test_revealing_says_when_the_topic_of_a_segment_is_gone(rest: Rest) -> None:
    river = f"{V2}/scalable/public/default/river"
    await rest.call("PUT", river, 204)
    await write(rest, SEGMENT)
    await rest.broker.write_records.decide(JOB, [A], [SEGMENT])
    await rest.call("DELETE", f"{river}?force=true", 204)
    path = f"{V2}/anabranch/reveal/segment/public/default/river%2F0000-ffff-0?write=job&batch=0"
    assert "does not exist" in await rest.refused("POST", path, 410)
    await rest.call("PUT", river, 204)
    await rest.refused("POST", path.replace("0000-ffff-0", "0000-ffff-7"), 404)


async def topic_id(rest: Rest, name: str) -> str:
    return topic_id_of((await rest.broker.topic(TopicName.parse(name))).log.topic_record)


@pytest.mark.parametrize(
    ("made", "name", "revealed"),
    [
        (T, TOPIC, "persistent/public/default/t"),
        (f"{V2}/scalable/public/default/river", SEGMENT, "segment/public/default/river%2F0000-ffff-0"),
    ],
)
async def test_revealing_says_when_the_topic_that_was_written_to_is_another_one_by_now(
    rest: Rest, made: str, name: str, revealed: str
) -> None:
    path = f"{V2}/anabranch/reveal/{revealed}?write=job&batch=0"
    await rest.call("PUT", made, 204)
    await write(rest, name)
    former = await topic_id(rest, name)
    await rest.call("DELETE", f"{made}?force=true", 204)
    await rest.call("PUT", made, 204)
    await rest.broker.write_records.decide(JOB, [A], [name])
    assert "made again" in await rest.refused("POST", f"{path}&topicId={former}", 410)
    await rest.call("POST", f"{path}&topicId={await topic_id(rest, name)}", 204)
    # Who does not know the id goes on: whoever has made the topic again may not miss anything.
    await rest.call("POST", path, 204)


async def test_a_segment_that_another_topic_of_the_name_never_had_was_not_collected(rest: Rest) -> None:
    river = f"{V2}/scalable/public/default/river"
    path = f"{V2}/anabranch/reveal/segment/public/default/river%2F0000-ffff-0?write=job&batch=0"
    await rest.call("PUT", river, 204)
    await write(rest, SEGMENT)
    former = await topic_id(rest, SEGMENT)
    await rest.call("DELETE", f"{river}?force=true", 204)
    await rest.call("PUT", river, 204, params={"numInitialSegments": 2})
    await rest.broker.write_records.decide(JOB, [A], [SEGMENT])
    assert "made again" in await rest.refused("POST", f"{path}&topicId={former}", 410)
    record = await rest.broker.records.get(TopicName.parse("topic://public/default/river"))
    assert record is not None
    await rest.refused("POST", f"{path}&topicId={record.layout.topic_id}", 404)
