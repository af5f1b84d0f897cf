"""REST of subscriptions: cursors made, moved and emptied, and messages looked at."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_message
from unit.broker.admin.conftest import NOW_MS, Rest

T = "/admin/v2/persistent/public/default/t"
S = f"{T}/subscription/s"


async def backlog(rest: Rest) -> int:
    return int((await rest.get(f"{T}/stats"))["subscriptions"]["s"]["msgBacklog"])


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("earliest", 3),
        ("latest", 0),
        ({"ledgerId": -1, "entryId": -1}, 3),
        ({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1, "batchIndex": None}, 0),
        (None, 0),
    ],
)
async def test_a_subscription_starts_where_its_body_says(rest: Rest, body: object, left: int) -> None:
    await rest.publish("t", b"1", b"2", b"3")
    await rest.call("PUT", S, 204, json=body)
    assert await backlog(rest) == left
    assert await rest.get(f"{T}/subscriptions") == ["s"]
    await rest.refused("PUT", S, 409, json=body)


async def test_a_subscription_starts_at_a_message_id(rest: Rest) -> None:
    ids = await rest.publish("t", b"1", b"2", b"3")
    at = {"ledgerId": ids[1][0], "entryId": ids[1][1], "properties": {"a": "b"}}
    await rest.call("PUT", S, 204, json=at)
    assert await backlog(rest) == 2
    assert await rest.get(f"{S}/properties") == {"a": "b"}


@pytest.mark.parametrize(
    ("sent", "name"),
    [("a%252Fb%252Bc%2Bd", "a/b+c d"), ("plain", "plain"), ("a%2Fb", "a/b"), ("%25C3%25BC", "ü")],
)
async def test_subscription_names_are_encoded_once_or_as_javas_client_does_twice(
    rest: Rest, sent: str, name: str
) -> None:
    await rest.call("PUT", f"{T}/subscription/{sent}", 204)
    assert await rest.get(f"{T}/subscriptions") == [name]
    await rest.call("DELETE", f"{T}/subscription/{sent}", 204)


async def test_a_subscription_with_consumers_is_deleted_only_by_force(rest: Rest) -> None:
    await rest.client.consumer("t", "s")
    await rest.refused("DELETE", S, 412)
    await rest.call("DELETE", f"{S}?force=true", 204)
    assert await rest.get(f"{T}/subscriptions") == []
    await rest.refused("DELETE", S, 404)


async def test_a_backlog_is_skipped_in_part_and_whole(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    await rest.publish("t", *(b"%d" % i for i in range(5)))
    await rest.call("POST", f"{S}/skip/2", 204)
    assert await backlog(rest) == 3
    await rest.call("POST", f"{S}/skip_all", 204)
    assert await backlog(rest) == 0
    await rest.refused("POST", f"{S}/skip/-1", 412)
    await rest.refused("POST", f"{T}/subscription/nobody/skip_all", 404)


async def test_a_cursor_is_reset_by_id_and_by_time(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    ids = await rest.publish("t", *(b"%d" % i for i in range(4)))
    await rest.call("POST", f"{S}/skip_all", 204)
    at = {"ledgerId": ids[1][0], "entryId": ids[1][1], "partitionIndex": -1}
    await rest.call("POST", f"{S}/resetcursor", 204, json=at)
    assert await backlog(rest) == 3
    await rest.call("POST", f"{S}/resetcursor", 204, json={**at, "isExcluded": True})
    assert await backlog(rest) == 2
    await rest.call("POST", f"{S}/resetcursor/0", 204)
    assert await backlog(rest) == 4
    await rest.call("POST", f"{S}/resetcursor/{2**53}", 204)
    assert await backlog(rest) == 0
    await rest.call("POST", f"{S}/resetcursor", 204, json={"ledgerId": -1, "entryId": -1})
    assert await backlog(rest) == 4
    await rest.refused("POST", f"{S}/resetcursor/soon", 400)


async def test_old_messages_are_expired(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    await rest.publish("t", b"1", b"2")
    # The broker's clock stands at NOW_MS and the messages are of today: none is old.
    await rest.call("POST", f"{S}/expireMessages/1", 204)
    assert await backlog(rest) == 2
    assert NOW_MS < 2**53
    await rest.call("POST", f"{T}/all_subscription/expireMessages/1", 204)
    assert await backlog(rest) == 2
    await rest.refused("POST", f"{S}/expireMessages/-5", 412)


async def test_messages_expire_up_to_a_place(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    ids = await rest.publish("t", b"1", b"2", b"3")
    at = {"ledgerId": ids[1][0], "entryId": ids[1][1]}
    await rest.call("POST", f"{S}/expireMessages", 204, json={**at, "isExcluded": True})
    assert await backlog(rest) == 2
    await rest.call("POST", f"{S}/expireMessages", 204, json=at)
    assert await backlog(rest) == 1
    await rest.call("POST", f"{S}/expireMessages", 204, json={"ledgerId": -1, "entryId": -1})
    assert await backlog(rest) == 1


async def test_messages_are_looked_at_without_being_consumed(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    ids = await rest.publish("t", b"first", b"second", key="k")
    second = await rest.call("GET", f"{S}/position/2")
    assert second.content == b"second"
    assert second.headers["X-Pulsar-Message-ID"] == f"{ids[1][0]}:{ids[1][1]}"
    assert second.headers["X-Pulsar-partition-key"] == "k"
    assert b"X-Pulsar-PROPERTY" in [name for name, _ in second.headers.raw], (
        "Java's client compares letter by letter"
    )
    await rest.refused("GET", f"{S}/position/3", 404)
    by_id = await rest.call("GET", f"{T}/ledger/{ids[0][0]}/entry/{ids[0][1]}")
    assert by_id.content == b"first"
    await rest.refused("GET", f"{T}/ledger/{ids[0][0]}/entry/99", 404)
    newest = await rest.call("GET", f"{T}/examinemessage?initialPosition=latest&messagePosition=1")
    assert newest.content == b"second"
    assert (await rest.get(f"{T}/messageid/0"))["entryId"] == ids[0][1]
    assert await backlog(rest) == 2


async def test_every_partition_has_the_subscription(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/partitions", 204, json=2)
    await rest.call("PUT", S, 204)
    assert await rest.get(f"{T}/subscriptions") == ["s"]
    for i in range(2):
        await rest.publish(f"t-partition-{i}", b"x")
        assert await rest.get(f"{T}-partition-{i}/subscriptions") == ["s"]
    await rest.refused("POST", f"{S}/skip/1", 405)
    await rest.call("POST", f"{S}/skip_all", 204)
    stats = await rest.get(f"{T}/partitioned-stats")
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    await rest.call("DELETE", S, 204)
    await rest.refused("DELETE", S, 404)


async def test_clearing_a_namespace_empties_every_backlog(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    await rest.publish("t", b"x")
    await rest.call("POST", "/admin/v2/namespaces/public/default/clearBacklog", 204)
    assert await backlog(rest) == 0
    await rest.call("POST", "/admin/v2/namespaces/public/default/unsubscribe/s", 204)
    assert await rest.get(f"{T}/subscriptions") == []


async def test_skipping_damage_where_there_is_none_skips_nothing(rest: Rest) -> None:
    await rest.publish("t", b"x")
    assert (await rest.call("POST", f"{T}/skip-damage")).json() == {"skippedEntries": 0}


@pytest.mark.parametrize("size", [100, 1 << 20])
async def test_a_packed_message_is_looked_at_unpacked(rest: Rest, size: int) -> None:
    await rest.call("PUT", S, 204)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZLIB)
    topic = await rest.broker.topic(TopicName.parse("persistent://public/default/t"))
    topic.log.append(build_message(metadata, bytes(size)), 1)
    confirmed = asyncio.Event()
    topic.confirmations.when_confirmed(confirmed.set)
    await confirmed.wait()
    assert (await rest.call("GET", f"{S}/position/1")).content == bytes(size)
    assert (await rest.call("GET", f"{T}/examinemessage")).content == bytes(size)


async def test_a_message_that_unpacks_to_too_much_is_shown_packed(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZLIB)
    topic = await rest.broker.topic(TopicName.parse("persistent://public/default/t"))
    topic.log.append(build_message(metadata, bytes(6 << 20)), 1)
    confirmed = asyncio.Event()
    topic.confirmations.when_confirmed(confirmed.set)
    await confirmed.wait()
    answer = await rest.call("GET", f"{S}/position/1")
    assert answer.headers["X-Pulsar-compression"] == "ZLIB"
    assert zlib.decompress(answer.content) == bytes(6 << 20)


async def test_the_position_of_a_message_may_be_any_number(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    await rest.publish("t", b"1", b"2")
    await rest.refused("GET", f"{S}/position/1000000000", 404)
    await rest.call("POST", f"{S}/skip/2147483647", 204)
    assert await backlog(rest) == 0


async def test_properties_of_a_subscription_have_a_size(rest: Rest) -> None:
    await rest.refused("PUT", S, 409, json={"ledgerId": -1, "entryId": -1, "properties": {"k": "x" * 20_000}})
    await rest.call("PUT", S, 204)
    await rest.refused("PUT", f"{S}/properties", 409, json={"k": "x" * 20_000})
    assert await rest.get(f"{S}/properties") == {}
