"""A hidden write belongs to those who may write its topics: nobody else decides, drops, joins or sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

import pytest

import anabranch.client
from anabranch.broker.policy.namespace import Tenant
from anabranch.client.hidden_writes.write import Write
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import WRITE_DECIDED
from harness.guarded import C, Guarded, guarded, token
from harness.simple_client import Hidden

ORDERS = "persistent://acme/news/orders"
RIVER = "topic://acme/news/river"
SEGMENT = "segment://acme/news/river/0000-ffff-0"
OWN = "persistent://eve/ns/x"
ATTEMPT, EVES = UUID(int=1).hex, UUID(int=2).hex
JOB = WriteBatch("spark/5f1c/orders", 7)
PATH = "/admin/v2/anabranch/writes/spark%2F5f1c%2Forders/7"


@pytest.fixture
async def acme() -> AsyncIterator[Guarded]:
    """`job` may produce to the topics of acme/news, `eve` may consume them, and has a tenant of her own."""
    async with guarded() as made:
        resources = made.broker.resources
        await resources.create_tenant(
            "eve", Tenant(admin_roles=("eve",), allowed_clusters=(resources.cluster,))
        )
        await resources.create_namespace(NamespaceName("eve", "ns"))
        await made.rest("eve", "PUT", "/admin/v2/persistent/eve/ns/x", 204)
        await made.rest("boss", "PUT", "/admin/v2/persistent/acme/news/orders", 204)
        await made.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
        grant = "/admin/v2/namespaces/acme/news/permissions"
        await made.rest("boss", "POST", f"{grant}/job", 204, json=["produce"])
        await made.rest("boss", "POST", f"{grant}/eve", 204, json=["consume"])
        yield made


async def write(acme: Guarded, role: str, topic: str, attempt: str = ATTEMPT) -> None:
    """A task writes a row and ends."""
    write = Write(JOB.write, JOB.batch, UUID(attempt))
    async with (
        anabranch.client.connect(acme.url, token=token(role)) as client,
        client.producer(topic, write=write) as producer,
    ):
        await producer.send(b"row", key="k")


async def attach(acme: Guarded, role: str, topic: str, attempt: str = ATTEMPT) -> pb.BaseCommand:
    """What PRODUCER is answered."""
    async with acme.as_role(role) as wire:
        metadata = Hidden(JOB.write, JOB.batch, attempt).metadata
        return await wire.ask(
            C.PRODUCER, "producer", topic=topic, producer_id=1, request_id=1, metadata=metadata
        )


async def rows(acme: Guarded, topic: str) -> int:
    opened = await acme.broker.topic(TopicName.parse(topic))
    await opened.hidden.look()
    return opened.log.entries


def decision(winners: Sequence[str], *topics: str, target: str = "") -> dict[str, object]:
    return {"winners": list(winners), "topics": list(topics), **({"target": target} if target else {})}


@pytest.mark.parametrize(("given", "held"), [(ORDERS, ORDERS), (RIVER, SEGMENT)])
async def test_who_may_not_produce_to_a_batchs_topics_neither_decides_nor_drops_it(
    acme: Guarded, given: str, held: str
) -> None:
    await write(acme, "job", given)
    for body in (
        decision([], OWN),
        decision([], target=OWN),
        decision([EVES], OWN),
        decision([]),
        decision([], held),
    ):
        await acme.rest("eve", "PUT", PATH, 403, json=body)
    for target in ({"target": OWN}, {}):
        await acme.rest("eve", "POST", f"{PATH}/drop", 403, json={"attempts": [ATTEMPT], **target})
    await acme.rest("eve", "GET", PATH, 403)
    answer = await acme.rest("job", "PUT", PATH, 200, json=decision([ATTEMPT], held))
    assert answer.json() == {"winners": [ATTEMPT], "topics": [held], "dropped": []}
    assert (await acme.rest("job", "GET", PATH, 200)).json() == answer.json()
    await acme.rest("eve", "GET", PATH, 403)
    await acme.rest("eve", "PUT", PATH, 403, json=decision([], OWN))
    assert await rows(acme, held) == 1


async def test_nobody_joins_a_batch_of_topics_that_are_closed_to_him(acme: Guarded) -> None:
    await write(acme, "job", ORDERS)
    answer = await attach(acme, "eve", OWN, EVES)
    assert answer.error.error == pb.AuthorizationError
    assert "orders" not in answer.error.message.replace(JOB.write, "")
    await acme.rest("job", "PUT", PATH, 200, json=decision([ATTEMPT], ORDERS))
    answer = await attach(acme, "eve", OWN, EVES)
    assert answer.error.error == pb.AuthorizationError, "that it is decided is nothing to her either"


@pytest.mark.parametrize("body", [decision([], target=OWN), decision([EVES], OWN)])
async def test_a_name_that_somebody_else_was_quicker_to_take_is_refused_and_never_found_decided(
    acme: Guarded, body: dict[str, object]
) -> None:
    await acme.rest("eve", "PUT", PATH, 200, json=body)
    answer = await attach(acme, "job", ORDERS)
    assert answer.error.error == pb.AuthorizationError
    assert WRITE_DECIDED not in answer.error.message
    await acme.rest("job", "PUT", PATH, 403, json=decision([ATTEMPT], ORDERS))


async def test_a_batch_of_several_topics_belongs_to_who_may_produce_to_all_of_them(acme: Guarded) -> None:
    await acme.rest(
        "boss", "POST", "/admin/v2/persistent/acme/news/orders/permissions/part", 204, json=["produce"]
    )
    await write(acme, "job", ORDERS)
    await write(acme, "job", RIVER, UUID(int=3).hex)
    await acme.rest("part", "PUT", PATH, 403, json=decision([ATTEMPT], ORDERS))
    await acme.rest("part", "POST", f"{PATH}/drop", 403, json={"attempts": [ATTEMPT], "target": ORDERS})
    dropped = await acme.rest("job", "POST", f"{PATH}/drop", 200, json={"attempts": [ATTEMPT]})
    assert dropped.json()["dropped"] == [ATTEMPT], "without a target: the record knows its topics"


async def test_a_role_that_may_write_to_one_partition_decides_what_it_wrote_there(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/persistent/acme/news/parted/partitions", 204, json=2)
    part = "persistent://acme/news/parted-partition-1"
    grant = "/admin/v2/persistent/acme/news/parted-partition-1/permissions/part"
    await acme.rest("boss", "POST", grant, 204, json=["produce"])
    assert (await attach(acme, "part", part)).type == C.PRODUCER_SUCCESS
    await acme.rest("part", "PUT", PATH, 200, json=decision([ATTEMPT], part))


async def test_the_first_attempt_binds_a_batch_once_for_all_segments_and_partitions(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/persistent/acme/news/parted/partitions", 204, json=2)
    for topic in (SEGMENT, f"{ORDERS[:-6]}parted-partition-0", f"{ORDERS[:-6]}parted-partition-1", SEGMENT):
        assert (await attach(acme, "job", topic)).type == C.PRODUCER_SUCCESS
    record = await acme.broker.write_records.get(JOB)
    assert record is not None
    assert record.about == (RIVER, "persistent://acme/news/parted")


async def test_attempts_of_before_are_bound_when_their_topic_is_looked_at(acme: Guarded) -> None:
    await write(acme, "job", ORDERS)
    records = acme.broker.write_records
    await acme.broker.metadata.delete(records.path(JOB))  # As a release left it that did not bind.
    await acme.broker.unload_topic(TopicName.parse(ORDERS))
    await acme.broker.topic(TopicName.parse(ORDERS))
    await acme.rest("eve", "PUT", PATH, 403, json=decision([], OWN))
    await acme.rest("job", "PUT", PATH, 200, json=decision([ATTEMPT], ORDERS))
    assert await rows(acme, ORDERS) == 1


async def test_statistics_name_writes_and_attempts_only_to_those_who_may_produce(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/persistent/acme/news/parted/partitions", 204, json=1)
    for topic, attempt in ((ORDERS, ATTEMPT), ("persistent://acme/news/parted", EVES)):
        await write(acme, "job", topic, attempt)
    one = "/admin/v2/persistent/acme/news/orders/internalStats"
    many = "/admin/v2/persistent/acme/news/parted/partitioned-internalStats"
    shown = (await acme.rest("job", "GET", one, 200)).json()["hiddenWrites"]
    assert shown == [{"write": JOB.write, "batch": 7, "attempts": [{"attempt": ATTEMPT, "entries": 1}]}]
    assert (await acme.rest("eve", "GET", one, 200)).json()["hiddenWrites"] == [{"entries": 1}]
    assert EVES in (await acme.rest("job", "GET", many, 200)).text
    assert EVES not in (await acme.rest("eve", "GET", many, 200)).text


async def test_a_connected_producers_figures_do_not_name_its_attempt(acme: Guarded) -> None:
    async with acme.as_role("job") as wire:
        metadata = [*Hidden(JOB.write, JOB.batch, ATTEMPT).metadata, pb.KeyValue(key="team", value="red")]
        await wire.ask(C.PRODUCER, "producer", topic=ORDERS, producer_id=1, request_id=1, metadata=metadata)
        stats = (await acme.rest("eve", "GET", "/admin/v2/persistent/acme/news/orders/stats", 200)).json()
    assert [one["metadata"] for one in stats["publishers"]] == [{"team": "red"}]
