"""Hidden writes of a topic: nobody sees an entry before its batch is decided, and of a loser nobody ever does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from anabranch.broker.admin.topics import writes
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.hidden_writes import topic as hidden_writes
from anabranch.broker.security.rights import AllowAll
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import TopicName
from anabranch.wire.extensions import ATTEMPT_DROPPED, WRITE_DECIDED
from harness.simple_client import Consumer, EndOfTopic, Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.admin.topics.test_read_plans import Elsewhere

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    config = BrokerConfig(default_retention_time_in_minutes=0, log_linger_seconds=0, log_linger_bytes=0)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as made:
        yield made


async def write(rest: Rest, attempt: str, *payloads: bytes, batch: int = 0) -> list[tuple[int, int]]:
    producer = await rest.client.producer(TOPIC, hidden=Hidden("job", batch, attempt))
    receipts = [await producer.send(payload) for payload in payloads]
    await producer.close()
    return [await receipt for receipt in receipts]


async def decide(rest: Rest, *winners: str, batch: int = 0) -> Any:
    answer = await rest.call(
        "PUT",
        f"/admin/v2/anabranch/writes/job/{batch}",
        json={"winners": list(winners), "topics": [TOPIC]},
    )
    return answer.json()


async def reveal(rest: Rest, *, batch: int = 0, status: int = 204) -> None:
    path = "/admin/v2/anabranch/reveal/persistent/public/default/t"
    await rest.call("POST", path, status, params={"write": "job", "batch": str(batch)})


async def take(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(5):
        return [(await consumer.receive()).payload for _ in range(count)]


async def backlog(rest: Rest, subscription: str) -> int:
    stats = await rest.get("/admin/v2/persistent/public/default/t/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


async def test_entries_are_seen_once_they_are_revealed_and_not_before(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    await rest.publish(TOPIC, b"before")
    await write(rest, A, b"1", b"2")
    await rest.publish(TOPIC, b"after")
    assert await take(consumer, 1) == [b"before"]
    assert await backlog(rest, "s") == 1
    await reveal(rest, status=409)
    assert (await decide(rest, A))["winners"] == [A]
    await reveal(rest)
    assert await take(consumer, 3) == [b"1", b"2", b"after"]
    await reveal(rest)


async def test_a_losing_attempt_is_never_seen_and_counts_nowhere(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    loser = await rest.client.producer(TOPIC, hidden=Hidden("job", 0, B))
    await (await loser.send(b"lost"))
    await write(rest, A, b"won")
    await (await loser.send(b"lost too"))
    await rest.publish(TOPIC, b"after")
    await decide(rest, A)
    await reveal(rest)
    assert await take(consumer, 2) == [b"won", b"after"]
    late = await rest.client.consumer(TOPIC, "late", earliest=True)
    assert await take(late, 2) == [b"won", b"after"]
    assert await backlog(rest, "s") == 2
    topic = await rest.broker.topic(NAME)
    assert topic.log.entries == 2
    await topic.subscriptions["s"].skip_all()
    assert await backlog(rest, "s") == 0
    with pytest.raises(RequestRefused, match=WRITE_DECIDED):
        await write(rest, B, b"again")


async def test_a_dropped_attempt_cannot_win_and_cannot_write(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    await write(rest, A, b"lost")
    dropped = await rest.call("POST", "/admin/v2/anabranch/writes/job/0/drop", json={"attempts": [A]})
    assert dropped.json() == {"winners": None, "topics": [], "dropped": [A]}
    with pytest.raises(RequestRefused, match=ATTEMPT_DROPPED):
        await write(rest, A, b"more")
    path = "/admin/v2/anabranch/writes/job/0"
    await rest.refused("PUT", path, 409, json={"winners": [A], "topics": [TOPIC]})
    await write(rest, B, b"won")
    await decide(rest, B)
    await reveal(rest)
    assert await take(consumer, 1) == [b"won"]


async def test_the_last_message_is_the_last_one_readers_see(rest: Rest) -> None:
    (seen,) = await rest.publish(TOPIC, b"seen")
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    (hidden,) = await write(rest, A, b"hidden")
    assert await consumer.last_message() == (seen, True)
    await decide(rest, A)
    await reveal(rest)
    assert await consumer.last_message() == (hidden, False)
    await write(rest, B, b"lost", batch=1)
    assert await consumer.last_message() == (hidden, True)
    await decide(rest, A, batch=1)
    await reveal(rest, batch=1)
    assert await consumer.last_message() == (hidden, False)


async def test_the_first_decision_stands(rest: Rest) -> None:
    await write(rest, A, b"a")
    await write(rest, B, b"b")
    first = await decide(rest, A)
    assert await decide(rest, B) == first
    assert await rest.get("/admin/v2/anabranch/writes/job/0") == first


async def test_a_record_tells_what_was_written_and_which_run_has_finished_it_last(rest: Rest) -> None:
    path = "/admin/v2/anabranch/writes/job/0"
    first = {"rows": 2, "digest": "d", "claim": {"run": "r1", "by": "x"}}

    async def put(**body: Any) -> Any:
        return (await rest.call("PUT", path, json={"topics": [TOPIC], **body})).json()

    await rest.refused("PUT", path, 404, json={"winners": None, "topics": [], "claim": first["claim"]})
    await write(rest, A, b"1", b"2")
    undecided = await put(winners=None, claim={"run": "r0", "by": "w"})
    assert undecided == {"winners": None, "topics": [], "dropped": []}, "there is nothing to claim"
    decided = await put(winners=[A], **first)
    assert decided == {"winners": [A], "topics": [TOPIC], "dropped": [], **first}
    # The same run again, by something else: it learns that it was not the first.
    assert await put(winners=[B], rows=9, digest="e", claim={"run": "r1", "by": "y"}) == decided
    assert await put(winners=None, claim={"run": "r1", "by": "y"}) == decided
    later = await put(winners=None, claim={"run": "r2", "by": "z"})
    assert later == decided | {"claim": {"run": "r2", "by": "z"}}
    assert await put(winners=[B], claim={"run": "r2", "by": "y"}) == later
    assert await put(winners=[B]) == later
    assert await rest.get(path) == later


async def test_statistics_say_what_readers_wait_for(rest: Rest) -> None:
    path = "/admin/v2/persistent/public/default/t/internalStats"
    await rest.publish(TOPIC, b"seen")
    assert (await rest.get(path))["hiddenWrites"] == []
    await write(rest, A, b"1", b"2", batch=3)
    stats = await rest.get(path)
    assert stats["hiddenWrites"] == [{"write": "job", "batch": 3, "attempts": [{"attempt": A, "entries": 2}]}]
    assert stats["numberOfEntries"] == 1


async def test_what_is_dropped_goes_with_what_lies_before_it(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    await write(rest, A, b"1", b"2")
    await rest.publish(TOPIC, b"kept")
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await topic.maintain()
    assert topic.log.kept_first < topic.log.kept_end, "what is open is kept"
    await decide(rest)
    await reveal(rest)
    first = topic.log.kept_first
    await topic.maintain()
    assert topic.log.kept_first > first
    assert list(topic.hidden.entries.dropped) == []
    assert topic.log.entries == 1
    assert not topic.log.has_lost(first), "nobody misses what nobody was to see"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (Hidden("job", 0, "a" * 31), "32 hexadecimal digits"),
        (Hidden("", 0, A), "1 to 200 printable characters"),
        (Hidden("job", -1, A), "a number from 0 on"),
    ],
)
async def test_a_producer_that_names_no_attempt_is_refused(rest: Rest, metadata: Hidden, reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason):
        await rest.client.producer(TOPIC, hidden=metadata)


async def test_an_entry_that_does_not_name_its_attempt_is_refused(rest: Rest) -> None:
    producer = await rest.client.producer(TOPIC, hidden=Hidden("job", 0, A))
    producer.attempt = B
    with pytest.raises(RequestRefused, match=A):
        await (await producer.send(b"whose?"))
    topic = await rest.broker.topic(NAME)
    assert topic.log.kept_first == topic.log.kept_end


async def test_an_attempt_has_one_batch(rest: Rest) -> None:
    await write(rest, A, b"1", batch=0)
    with pytest.raises(RequestRefused, match="one batch"):
        await write(rest, A, b"1", batch=1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "writes/job/5", None, 404),
        ("GET", "writes/job/x", None, 412),
        ("GET", f"writes/{'w' * 201}/0", None, 412),
        ("PUT", "writes/job/5", None, 400),
        ("PUT", "writes/job/5", {"winners": ["x"], "topics": []}, 412),
        ("PUT", "writes/job/5", {"winners": [A], "topics": ["topic://public/default/t"]}, 412),
        ("PUT", "writes/job/5", {"winners": [A]}, 400),
        ("PUT", "writes/job/5", {"winners": [A], "topics": [], "rows": -1}, 400),
        ("PUT", "writes/job/5", {"winners": [A], "topics": [], "digest": "d" * 201}, 400),
        ("PUT", "writes/job/5", {"winners": [A], "topics": [], "claim": {"run": "", "by": "x"}}, 400),
        ("POST", "writes/job/5/drop", {"attempts": "x"}, 400),
        ("POST", "reveal/persistent/public/default/none?write=job&batch=5", None, 404),
        ("POST", "reveal/persistent/public/default/t", None, 412),
        ("POST", "reveal/topic/public/default/t?write=job&batch=5", None, 412),
    ],
)
async def test_what_rest_refuses(rest: Rest, method: str, path: str, body: Any, status: int) -> None:
    await rest.publish(TOPIC, b"x")
    sent = {} if body is None else {"json": body}
    await rest.refused(method, f"/admin/v2/anabranch/{path}", status, **sent)


async def test_names_of_writes_are_percent_encoded(rest: Rest) -> None:
    path = "/admin/v2/anabranch/writes/q%2F1%3A%20%C3%BC%2B/7"
    stored = (await rest.call("PUT", path, json={"winners": [], "topics": []})).json()
    assert stored == {"winners": [], "topics": [], "dropped": []}
    assert await rest.broker.write_records.get(WriteBatch("q/1: ü+", 7)) is not None


async def test_the_owner_reveals_and_any_broker_knows_the_record() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), owners=Elsewhere()) as rest:
        stored = await decide(rest, A)
        assert await rest.get("/admin/v2/anabranch/writes/job/0") == stored
        path = "/admin/v2/anabranch/reveal/segment/public/default/a%2Fb/0000-ffff-0?write=job&batch=0"
        answer = await rest.call("POST", path, 307)
        assert answer.headers["location"] == f"http://other:8080{path}"


class Lookers(AllowAll):
    """Everybody may look, and nobody produce."""

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        return False


async def test_who_may_not_produce_to_a_topic_decides_nothing_there() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=Lookers()) as rest:
        await rest.broker.write_records.decide(WriteBatch("job", 1), [A], [TOPIC])
        base, body = "/admin/v2/anabranch", {"winners": [A], "topics": [TOPIC]}
        assert "produce" in await rest.refused("PUT", f"{base}/writes/job/0", 403, json=body)
        assert "produce" in await rest.refused("GET", f"{base}/writes/job/1", 403)
        reveal_path = f"{base}/reveal/persistent/public/default/t?write=job&batch=1"
        assert "produce" in await rest.refused("POST", reveal_path, 403)


async def test_a_terminated_topic_has_its_end_once_all_is_decided(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    await write(rest, A, b"a")
    await rest.call("POST", "/admin/v2/persistent/public/default/t/terminate")
    topic = await rest.broker.topic(NAME)
    assert not topic.has_end
    assert not topic.subscriptions["s"].is_drained
    await decide(rest, A)
    await reveal(rest)
    assert topic.has_end
    async with asyncio.timeout(5):
        message = await consumer.receive()
        assert message.payload == b"a"
        await consumer.ack(message)
        with pytest.raises(EndOfTopic):
            await consumer.receive()


async def test_what_is_open_is_known_when_the_topic_is_opened_again(rest: Rest) -> None:
    consumer = await rest.client.consumer(TOPIC, "s", earliest=True)
    await write(rest, A, b"1")
    await write(rest, B, b"2")
    await rest.publish(TOPIC, b"3")
    await rest.broker.unload_topic(NAME)
    topic = await rest.broker.topic(NAME)
    assert topic.hidden.has_open
    assert topic.log.entries == 0
    await decide(rest, B)
    await rest.broker.unload_topic(NAME)
    topic = await rest.broker.topic(NAME)
    assert not topic.hidden.has_open, "an owner looks up what was decided meanwhile"
    assert topic.log.entries == 2
    again = await rest.client.consumer(TOPIC, "s")
    assert await take(again, 2) == [b"2", b"3"]
    del consumer


async def test_a_topic_has_a_most_of_open_attempts_and_takes_more_once_some_are_decided(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_writes, "ATTEMPTS_MAX", 2)
    await write(rest, A, b"1")
    await write(rest, B, b"2")
    with pytest.raises(RequestRefused, match="2 attempts at hidden writes that are not decided"):
        await write(rest, C, b"3", batch=1)
    # Those that are there go on.
    await write(rest, A, b"4")
    await decide(rest, A)
    await reveal(rest)
    await write(rest, C, b"3", batch=1)


async def test_of_very_many_open_batches_the_first_are_told(rest: Rest) -> None:
    most = hidden_writes.ATTEMPTS_SHOWN_MAX
    await write(rest, A, b"1", batch=7)
    hidden = rest.broker.loaded()[NAME].hidden.entries
    for n in range(3 * most):
        hidden.attach(UUID(int=n).hex, WriteBatch("others", n))
    found = await rest.get("/admin/v2/anabranch/writes")
    assert len(found) == most
    # What readers wait for is told first, however many others there are.
    assert [found[0][name] for name in ("write", "batch", "attempts", "entries")] == ["job", 7, [A], 1]
    last = 3 * most - 1
    (one,) = await rest.get(f"/admin/v2/anabranch/writes?write=others&batch={last}")
    assert (one["batch"], one["attempts"], one["heldSeconds"]) == (last, [UUID(int=last).hex], 0.0)
    assert await rest.get("/admin/v2/anabranch/writes?write=others&batch=999999") == []
    stats = await rest.get(f"/admin/v2/{TOPIC.replace('://', '/')}/internalStats")
    assert len(stats["hiddenWrites"]) == most
    assert stats["hiddenAttempts"] == 3 * most + 1


async def test_no_more_attempts_are_dropped_over_rest_than_owners_can_read_in_a_moment(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "DROPPED_MAX", 2)
    await write(rest, A, b"1")
    path = "/admin/v2/anabranch/writes/job/0/drop"
    await rest.call("POST", path, json={"attempts": [B, C]})
    assert "decide that nothing has won" in await rest.refused("POST", path, 412, json={"attempts": [A]})
    # One that is decided stays as it is, whoever asks for what.
    await decide(rest, A)
    assert (await rest.call("POST", path, json={"attempts": [A]})).json()["winners"] == [A]
