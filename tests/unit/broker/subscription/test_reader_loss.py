"""Readers that name the first entry they are owed hear when retention has taken it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.errors import NotAllowedError
from anabranch.broker.subscription.reader_loss import check
from anabranch.client.errors import RequestRefused
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from anabranch.wire.extensions import (
    DATA_LOST,
    OTHER_TOPIC,
    OWED_FROM,
    TOPIC_ID,
    UNKNOWN_POSITION,
    position_text,
    read_position,
)
from unit.broker.admin.conftest import NOW_MS, Rest, serving

NAME = TopicName.parse("persistent://public/default/t")
CONFIG = BrokerConfig(default_retention_time_in_minutes=0, log_linger_seconds=0, log_linger_bytes=0)


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS), CONFIG) as made:
        yield made


def reader(owed: str, *, durable: bool = False) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=str(NAME),
        subscription="reader",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=1,
        durable=durable,
        metadata=[pb.KeyValue(key=OWED_FROM, value=owed)],
    )


async def test_a_reader_is_refused_once_something_it_is_owed_is_gone(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    receipts = await rest.publish("t", *[b"x"] * 4)
    ledger = receipts[0][0]
    for entry in range(5):
        check(topic.log, reader(position_text(ledger, entry)))
    await topic.maintain()
    assert topic.log.entries == 0
    for entry in range(4):
        with pytest.raises(NotAllowedError, match=f"^{DATA_LOST} {ledger}:4: .* from {ledger}:{entry} on"):
            check(topic.log, reader(position_text(ledger, entry)))
    with pytest.raises(NotAllowedError):
        check(topic.log, reader("0:0"))
    # It has read all that there was.
    check(topic.log, reader(position_text(ledger, 4)))


async def test_nothing_is_owed_from_before_a_topic_had_entries(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    await topic.maintain()
    check(topic.log, reader("0:0"))


async def test_the_end_of_a_ledger_that_is_gone_is_no_loss(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    ledger = (await rest.publish("t", b"x", b"y"))[0][0]
    await rest.call("PUT", "/admin/v2/persistent/public/default/t/subscription/s", 204)
    await topic.close()
    # Opened again, it has a new ledger.
    topic = await rest.broker.topic(NAME, create=True)
    later = (await rest.publish("t", b"z"))[0][0]
    assert later > ledger
    await topic.maintain()
    assert topic.log.first == (later, 0)
    check(topic.log, reader(position_text(ledger, 2)))
    with pytest.raises(NotAllowedError):
        check(topic.log, reader(position_text(ledger, 1)))


async def test_consumers_with_a_cursor_and_readers_of_what_there_is_are_not_refused(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    await rest.publish("t", b"x")
    await topic.maintain()
    check(topic.log, reader("0:0", durable=True))
    check(topic.log, reader("earliest"))


async def test_a_place_of_another_topic_is_refused_also_when_it_was_deleted_and_made_again(
    rest: Rest,
) -> None:
    ledgers = []
    for name in ("t", "other"):
        ledgers.append((await rest.publish(name, *[b"x"] * 4))[0][0])
        await rest.call("PUT", f"/admin/v2/persistent/public/default/{name}/subscription/s", 204)
    earlier, later = ledgers
    for name, ledger in (("t", later), ("other", earlier)):
        topic = await rest.broker.topic(TopicName.parse(f"persistent://public/default/{name}"), create=False)
        for entry in (1, 4, 9):
            with pytest.raises(NotAllowedError, match=f"^{UNKNOWN_POSITION} {ledger}:{entry}: "):
                check(topic.log, reader(position_text(ledger, entry)))
    topic = await rest.broker.topic(NAME, create=False)
    # Of its own ledgers any place is taken: the end may be behind what a reader has been sent.
    check(topic.log, reader(position_text(earlier, 9)))
    await rest.call("DELETE", "/admin/v2/persistent/public/default/t?force=true", 204)
    topic = await rest.broker.topic(NAME, create=True)
    with pytest.raises(NotAllowedError, match=f"^{UNKNOWN_POSITION}"):
        check(topic.log, reader(position_text(earlier, 4)))


async def test_places_of_ledgers_that_are_gone_are_known(rest: Rest) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    ledger = (await rest.publish("t", b"x", b"y"))[0][0]
    for _ in range(2):
        await topic.maintain()
        await topic.close()
        # Opened again, it has a new ledger, and the empty one before it is listed no more.
        topic = await rest.broker.topic(NAME, create=True)
        empty = topic.log.end
        assert empty[0] > ledger
        check(topic.log, reader(position_text(ledger, 2)))
        check(topic.log, reader(position_text(*empty)))
    check(topic.log, reader(position_text(empty[0] - 1, 0)))
    with pytest.raises(NotAllowedError, match=f"^{UNKNOWN_POSITION}"):
        check(topic.log, reader(position_text(empty[0] + 1, 0)))


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":1", "-1:0", "1:-1", "1:2:3", "x:1", "1:\u0661", "1" * 20 + ":0"]
)
def test_what_is_no_position_is_not_read_as_one(text: str) -> None:
    assert read_position(text) is None


def test_a_position_is_written_as_it_is_read() -> None:
    at: Position = (2**62, 0)
    assert read_position(position_text(*at)) == at


async def test_nobody_is_at_the_end_of_a_topic_before_all_that_came_before_the_seal_is_confirmed(
    rest: Rest,
) -> None:
    topic = await rest.broker.topic(NAME, create=True)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    sealing = asyncio.create_task(topic.terminate())
    await asyncio.sleep(0)
    # All of these have their turn before anything is confirmed: the seal, a subscription, and a look at it.
    subscribing = asyncio.create_task(topic.create_subscription("early", "earliest", {}))
    seen: list[tuple[bool, int, bool]] = []
    asyncio.get_running_loop().call_soon(
        lambda: seen.append((topic.is_sealed, topic.log.entries, topic.subscriptions["early"].is_sealed))
    )
    topic.log.append(build_entry(metadata, b"x"), 1)
    early = await subscribing
    await sealing
    assert seen == [(True, 0, False)]
    assert topic.log.entries == 1
    assert early.is_sealed
    assert not await early.look_whether_drained()
    await early.skip_all()
    assert await early.look_whether_drained()


async def test_a_reader_of_a_topic_that_was_deleted_and_made_again_is_refused_by_its_id(rest: Rest) -> None:
    def of(topic_id: str) -> pb.CommandSubscribe:
        request = reader("earliest")
        request.metadata.append(pb.KeyValue(key=TOPIC_ID, value=topic_id))
        return request

    former = (await rest.broker.topic(NAME, create=True)).log
    topic_id = former.topic_record.topic_id
    assert len(topic_id) == 32
    check(former, of(topic_id))
    # It does not say.
    check(former, of(""))
    await rest.call("DELETE", "/admin/v2/persistent/public/default/t?force=true", 204)
    present = (await rest.broker.topic(NAME, create=True)).log
    with pytest.raises(
        NotAllowedError, match=f"^{OTHER_TOPIC} {present.topic_record.topic_id}: .*made again"
    ):
        check(present, of(topic_id))
    check(present, of(present.topic_record.topic_id))


async def test_partitions_have_the_id_of_their_topic(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/p/partitions", 204, json=2)
    await rest.call("POST", "/admin/v2/persistent/public/default/p/partitions", 204, json=3)
    name = TopicName.parse("persistent://public/default/p")
    topic_id = await rest.broker.resources.classic_id(name)
    found = {(await rest.broker.topic(name.partition(n))).log.topic_record.topic_id for n in range(3)}
    assert found == {topic_id}
    shown = await rest.call("GET", "/admin/v2/persistent/public/default/p/partitions", 200)
    assert topic_id not in shown.text, "Pulsar's answer has no such field"


PARTITIONED = "/admin/v2/persistent/public/default/p/partitions"


async def read_as(rest: Rest, partition: TopicName, topic_id: str) -> None:
    """A reader of that partition which names the topic's id."""
    metadata = [pb.KeyValue(key=TOPIC_ID, value=topic_id)]
    made = await rest.client.consumer(str(partition), f"as-{topic_id}", durable=False, metadata=metadata)
    await made.close()


async def test_partitions_that_were_there_before_their_topic_are_read_under_its_id(rest: Rest) -> None:
    name = TopicName.parse("persistent://public/default/p")
    for index in (0, 2):
        await rest.publish(str(name.partition(index)), b"early")
    await rest.call("PUT", PARTITIONED, 204, json=2)
    await rest.call("POST", PARTITIONED, 204, json=3)
    topic_id = await rest.broker.resources.classic_id(name)
    own = [(await rest.broker.topic(name.partition(n))).log.topic_record.topic_id for n in range(3)]
    assert own[1] == topic_id
    assert len({*own, topic_id}) == 3
    for index in range(3):
        await read_as(rest, name.partition(index), topic_id)
        # And under the one that they have had before.
        await read_as(rest, name.partition(index), own[index])
    with pytest.raises(RequestRefused, match=OTHER_TOPIC):
        await read_as(rest, name.partition(0), own[2])


async def test_a_partition_left_of_a_former_topic_is_read_as_one_of_the_present_topic_alone(
    rest: Rest,
) -> None:
    name = TopicName.parse("persistent://public/default/p")
    await rest.call("PUT", PARTITIONED, 204, json=2)
    former = await rest.broker.resources.classic_id(name)
    # A producer that comes back between the two makes it again.
    await rest.broker.delete_topic(name.partition(1), force=True)
    await rest.broker.resources.delete_partitioned(name)
    await rest.call("PUT", PARTITIONED, 204, json=2)
    present = await rest.broker.resources.classic_id(name)
    assert present != former
    for index in range(2):
        await read_as(rest, name.partition(index), present)
    with pytest.raises(RequestRefused, match=OTHER_TOPIC):
        await read_as(rest, name.partition(1), former)


async def test_a_log_that_is_not_the_present_one_of_its_partition_is_part_of_nothing(rest: Rest) -> None:
    name = TopicName.parse("persistent://public/default/p")
    await rest.publish(str(name.partition(0)), b"early")
    former = (await rest.broker.topic(name.partition(0))).log.topic_record
    await rest.broker.delete_topic(name.partition(0), force=True)
    await rest.call("PUT", PARTITIONED, 204, json=1)
    present = (await rest.broker.topic(name.partition(0))).log.topic_record
    assert await rest.broker.known.part_of(name.partition(0), former) == ""
    assert await rest.broker.known.part_of(name.partition(0), present) == present.topic_id


async def test_partitions_of_other_ids_are_read_under_that_of_the_topic_that_they_became(rest: Rest) -> None:
    name = TopicName.parse("persistent://public/default/p")
    await rest.publish(str(name.partition(0)), b"early")
    await rest.call("PUT", PARTITIONED, 204, json=2)
    topic_id = await rest.broker.resources.classic_id(name)
    await rest.call("POST", "/admin/v2/scalable/public/default/p/migrate", 204)
    record = await rest.broker.records.get(name)
    assert record is not None
    assert record.layout.topic_id == topic_id
    for index in range(2):
        await read_as(rest, name.partition(index), topic_id)
