"""What operators do to classic topics, done to scalable ones: on a real broker over the memory adapters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch.client import Client, QueueConsumer
from anabranch.client.errors import RequestRefused, TimedOut
from unit.broker.admin.conftest import Rest

NS = "/admin/v2/scalable/public/default"
T = f"{NS}/orders"
TOPIC = "topic://public/default/orders"
SUB = f"{T}/subscription/s"


async def sent(rest: Rest, *texts: str, key: str | None = None) -> None:
    """Each in an entry of its own, published at a time of its own."""
    async with Client(rest.broker.service_url, now_ms=ticking(rest)) as client:
        producer = await client.producer(TOPIC, batching=False)
        for text in texts:
            await producer.send(text.encode(), key=key or text)


_CLOCKS: dict[int, int] = {}


def ticking(rest: Rest) -> Any:
    """A clock that no two publishes find alike."""

    def now() -> int:
        _CLOCKS[id(rest)] = _CLOCKS.get(id(rest), 1_000) + 1
        return _CLOCKS[id(rest)]

    return now


async def filled(rest: Rest) -> list[str]:
    """Twelve messages in order of their times, in four segments, two of them sealed."""
    await rest.call("PUT", f"{T}?numInitialSegments=2", 204)
    await rest.call("PUT", f"{T}/subscriptions/s?type=QUEUE", 204)
    texts = [f"m{n}" for n in range(12)]
    await sent(rest, *texts[:6])
    await rest.call("POST", f"{T}/split/0", 204)
    await sent(rest, *texts[6:])
    return texts


async def peeked(rest: Rest, count: int) -> list[str]:
    found = []
    for place in range(1, count + 1):
        answer = await rest.http.get(f"{SUB}/position/{place}")
        if answer.status_code == 404:
            break
        found.append(answer.text)
    return found


async def test_messages_are_counted_by_publish_time_across_segments(rest: Rest) -> None:
    texts = await filled(rest)
    found = [
        (await rest.call("GET", f"{T}/examinemessage?initialPosition=earliest&messagePosition={n + 1}")).text
        for n in range(12)
    ]
    assert found == texts
    latest = await rest.call("GET", f"{T}/examinemessage?messagePosition=2")
    assert latest.text == "m10"
    assert latest.headers["X-Anabranch-Segment"] in ("1", "2", "3")
    assert "not found" in await rest.refused("GET", f"{T}/examinemessage?messagePosition=13", 404)
    assert await peeked(rest, 20) == texts
    # Java's client asks where classic topics would be.
    java = await rest.call("GET", "/admin/v2/topic/public/default/orders/subscription/s/position/3")
    assert java.text == "m2"


async def test_messages_of_one_time_are_all_counted(rest: Rest) -> None:
    await rest.call("PUT", f"{T}?numInitialSegments=3", 204)
    async with Client(rest.broker.service_url, now_ms=lambda: 5_000) as client:
        producer = await client.producer(TOPIC, batching=False)
        for n in range(9):
            await producer.send(b"%d" % n, key=str(n))
    found = {
        (await rest.call("GET", f"{T}/examinemessage?initialPosition=earliest&messagePosition={n}")).text
        for n in range(1, 10)
    }
    assert found == {str(n) for n in range(9)}


async def test_a_message_is_found_by_its_id_whichever_segment_it_is_in(rest: Rest) -> None:
    await filled(rest)
    for place in (1, 7, 12):
        path = f"{T}/examinemessage?initialPosition=earliest&messagePosition={place}"
        one = await rest.call("GET", path)
        ledger, entry = one.headers["X-Pulsar-Message-ID"].split(":")
        found = await rest.call("GET", f"{T}/ledger/{ledger}/entry/{entry}")
        assert found.text == one.text
        assert found.headers["X-Anabranch-Segment"] == one.headers["X-Anabranch-Segment"]
    await rest.refused("GET", f"{T}/ledger/999999/entry/0", 404)


async def test_each_segment_tells_its_last_message_and_the_first_of_a_time(rest: Rest) -> None:
    await filled(rest)
    last = await rest.get(f"{T}/lastMessageId")
    first = await rest.get(f"{T}/messageid/0")
    assert set(first) == set(last)
    assert set(last) <= {"0", "1", "2", "3"}
    for number, at in last.items():
        found = await rest.call("GET", f"{T}/ledger/{at['ledgerId']}/entry/{at['entryId']}")
        assert found.headers["X-Anabranch-Segment"] == number
        assert (first[number]["ledgerId"], first[number]["entryId"]) <= (at["ledgerId"], at["entryId"])
    newest = await rest.call("GET", f"{T}/examinemessage")
    assert newest.headers["X-Pulsar-Message-ID"] in {
        f"{at['ledgerId']}:{at['entryId']}" for at in last.values()
    }
    assert await rest.get(f"{T}/messageid/{10**14}") == {}


async def test_the_next_messages_are_skipped_by_their_times(rest: Rest) -> None:
    texts = await filled(rest)
    await rest.call("POST", f"{SUB}/skip/5", 204)
    assert await peeked(rest, 20) == texts[5:]
    await rest.call("POST", f"{SUB}/skip/0", 204)
    await rest.call("POST", f"{SUB}/skip/2", 204)
    assert await peeked(rest, 20) == texts[7:]
    assert await rest.get(f"{T}/subscriptions") == ["s"]
    counted = (await rest.call("POST", f"{SUB}/analyzeBacklog")).json()
    assert (counted["entries"], counted["messages"], counted["aborted"]) == (5, 5, False)
    assert sum(one["messages"] for one in counted["segments"].values()) == 5
    await rest.call("POST", f"{SUB}/skip/100", 204)
    assert await peeked(rest, 20) == []


async def test_skipping_all_and_moving_back_apply_to_sealed_segments_too(rest: Rest) -> None:
    texts = await filled(rest)
    await rest.call("POST", f"{SUB}/skip_all", 204)
    assert await peeked(rest, 20) == []
    await rest.call("POST", f"{SUB}/resetcursor/0", 204)
    assert await peeked(rest, 20) == texts


@pytest.mark.parametrize("path", ["/subscription/s", "/all_subscription"])
async def test_messages_expire_by_their_age_in_every_segment(rest: Rest, path: str) -> None:
    texts = await filled(rest)
    await rest.call("POST", f"{T}{path}/expireMessages/{2**31 - 1}", 204)
    assert await peeked(rest, 20) == texts
    await rest.call("POST", f"{T}{path}/expireMessages/1", 204)
    assert await peeked(rest, 20) == []
    await rest.refused("POST", f"{T}{path}/expireMessages/-1", 412)


async def test_truncating_deletes_what_all_segments_hold(rest: Rest) -> None:
    await filled(rest)
    await rest.call("DELETE", f"{T}/truncate", 204)
    assert await peeked(rest, 20) == []
    await rest.refused("GET", f"{T}/examinemessage?initialPosition=earliest", 404)
    await sent(rest, "after")
    assert await peeked(rest, 20) == ["after"]


async def test_a_terminated_topic_takes_no_message_and_is_read_to_its_end(rest: Rest) -> None:
    texts = await filled(rest)
    ids = (await rest.call("POST", f"{T}/terminate")).json()
    assert all(at["entryId"] >= 0 for at in ids.values())
    assert (await rest.get(T))["terminated"] is True
    await rest.call("POST", f"{T}/terminate")
    assert "terminated" in await rest.refused("POST", f"{T}/split/1", 412)
    async with Client(rest.broker.service_url) as client:
        with pytest.raises(RequestRefused, match="was terminated and accepts no more messages"):
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")
        queue: QueueConsumer = await client.queue_consumer(TOPIC, "s")
        found = []
        for _ in texts:
            message = await queue.receive(timeout_s=30)
            found.append(message.value.decode())
            await queue.ack(message)
        assert sorted(found) == sorted(texts)
        assert await queue.flush()
    stats = await rest.get(f"{T}/stats")
    assert stats["subscriptions"].keys() == {"s"}
    # A topic of the same name may be made again.
    await rest.call("DELETE", f"{T}?force=true", 204)
    await rest.call("PUT", T, 204)
    await sent(rest, "again")


async def test_a_producer_that_was_there_before_is_told_why_nothing_is_stored(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    async with Client(rest.broker.service_url) as client:
        producer = await client.producer(TOPIC, send_timeout_s=5)
        await producer.send(b"before")
        await rest.call("POST", f"{T}/terminate")
        with pytest.raises(TimedOut, match="already terminated"):
            await producer.send(b"after")
        await producer.close(flush=False)


async def test_what_is_not_there_is_named(rest: Rest) -> None:
    for method, path in (
        ("GET", f"{T}/lastMessageId"),
        ("DELETE", f"{T}/truncate"),
        ("POST", f"{T}/terminate"),
        ("GET", f"{T}/subscriptions"),
        ("POST", f"{SUB}/skip/1"),
    ):
        assert f"{TOPIC} does not exist" in await rest.refused(method, path, 404)
    await rest.call("PUT", T, 204)
    for method, path in (
        ("POST", f"{SUB}/skip/1"),
        ("POST", f"{SUB}/skip_all"),
        ("POST", f"{SUB}/analyzeBacklog"),
        ("GET", f"{SUB}/position/1"),
        ("POST", f"{SUB}/expireMessages/1"),
    ):
        assert "Subscription s not found" in await rest.refused(method, path, 404)
    await rest.call("PUT", "/admin/v2/persistent/public/default/old", 204)
    told = await rest.refused("GET", f"{NS}/old/lastMessageId", 404)
    assert "persistent://public/default/old is a classic topic" in told


async def test_numbers_that_no_request_can_carry_are_refused(rest: Rest) -> None:
    await filled(rest)
    classic = "/admin/v2/persistent/public/default/t"
    await rest.call("PUT", classic, 204)
    await rest.call("PUT", f"{classic}/subscription/s", 204)
    huge = "9" * 30
    for method, path in (
        ("POST", f"{SUB}/resetcursor/{huge}"),
        ("GET", f"{T}/messageid/{huge}"),
        ("GET", f"{T}/ledger/{huge}/entry/0"),
        ("GET", f"{T}/ledger/0/entry/-{huge}"),
        ("POST", f"{classic}/subscription/s/resetcursor/{huge}"),
        ("GET", f"{classic}/messageid/{huge}"),
        ("GET", f"{classic}/ledger/{huge}/entry/0"),
    ):
        assert "Expected `int`" in await rest.refused(method, path, 400)


# -- policies


async def test_policies_of_a_topic_act_on_its_segments_and_on_those_that_are_split_later(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    await rest.call("PUT", f"{T}/subscriptions/s?type=QUEUE", 204)
    await sent(rest, "a")
    retention = {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8}
    await rest.call("POST", f"{T}/retention", 204, json=retention)
    await rest.call("POST", f"{T}/messageTTL", 204, json=90)
    assert await rest.get(f"{T}/retention") == retention
    assert await rest.get("/admin/v2/topic/public/default/orders/messageTTL") == 90

    def in_force() -> dict[int, tuple[Any, Any]]:
        return {
            int(name.segment.rpartition("-")[2]): (
                topic.in_force.effective.retention_policies.minutes,
                topic.in_force.effective.message_ttl_in_seconds,
            )
            for name, topic in rest.broker.loaded().items()
            if name.segment
        }

    assert in_force() == {0: (7, 90)}
    await rest.call("POST", f"{T}/split/0", 204)
    await sent(rest, *"abcdefgh")
    assert {number: in_force()[number] for number in (1, 2)} == {1: (7, 90), 2: (7, 90)}
    await rest.call("DELETE", f"{T}/messageTTL", 204)
    assert {ttl for _, ttl in in_force().values()} == {0}
    await rest.call("DELETE", f"{T}/policies", 204)
    assert {minutes for minutes, _ in in_force().values()} != {7}


async def test_a_quota_of_the_topic_holds_publishers_of_its_segments(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    await rest.call("POST", f"{T}/publishRate", 204, json={"publishThrottlingRateInMsg": 3})
    await sent(rest, "a")
    (segment,) = [topic for name, topic in rest.broker.loaded().items() if name.segment]
    assert segment.in_force.effective.publish_rate is not None
    assert segment.in_force.effective.publish_rate.messages == 3
    quota = {"limitSize": 1000, "policy": "producer_exception"}
    await rest.call("POST", f"{T}/backlogQuota", 204, json=quota)
    assert (await rest.get(f"{T}/backlogQuotaMap"))["destination_storage"]["limitSize"] == 1000


async def test_policies_end_with_their_topic_and_survive_its_migration(rest: Rest) -> None:
    classic = "/admin/v2/persistent/public/default/orders"
    await rest.call("PUT", classic, 204)
    await rest.call("POST", f"{classic}/messageTTL", 204, json=90)
    await rest.refused("GET", f"{T}/messageTTL", 404)
    await rest.call("POST", f"{T}/migrate", 204)
    assert await rest.get(f"{T}/messageTTL") == 90
    await rest.call("DELETE", f"{T}?force=true", 204)
    await rest.call("PUT", T, 204)
    await rest.call("GET", f"{T}/messageTTL", 204)


async def test_policies_that_would_not_act_are_refused_with_the_reason(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    told = await rest.refused("POST", f"{T}/compactionThreshold", 405, json=100)
    assert "scalable topics are not compacted" in told
    told = await rest.refused("POST", f"{T}/inactiveTopicPolicies", 405, json={})
    assert "not deleted for being unused" in told


@pytest.mark.parametrize("seed", range(6))
async def test_no_more_is_skipped_where_clocks_of_producers_differ(rest: Rest, seed: int) -> None:
    """Within a segment entries are not in the order of their times then: one may be from the far future."""
    choose = random.Random(seed)
    times = [choose.choice((1_000, 2_000, 5_000_000, 7_000_000)) + choose.randrange(100) for _ in range(24)]
    await rest.call("PUT", f"{T}?numInitialSegments=2", 204)
    await rest.call("PUT", f"{T}/subscriptions/s?type=QUEUE", 204)
    clock = iter(times)
    at = [0]
    async with Client(rest.broker.service_url, now_ms=lambda: at[0]) as client:
        producer = await client.producer(TOPIC, batching=False)
        for number in range(24):
            at[0] = next(clock)
            await producer.send(b"%d" % number, key=str(number))
    left = 24
    for count in (1, 4, 7, 3, 8):
        for place in (1, (left + 1) // 2, left):
            assert (await rest.http.get(f"{SUB}/position/{place}")).status_code == 200
        await rest.call("POST", f"{SUB}/skip/{count}", 204)
        left -= count
        assert (await rest.call("POST", f"{SUB}/analyzeBacklog")).json()["entries"] == left
    assert (
        len({(await rest.http.get(f"{T}/examinemessage?messagePosition={n}")).text for n in range(1, 25)})
        == 24
    )
