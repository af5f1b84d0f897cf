"""Roles with and without rights on a real broker, on the binary protocol and on REST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.broker.security.rights import NotAuthorizedError, Proxied, Rights
from anabranch.model.names import NamespaceName, TopicName
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import C, Guarded, Wire, guarded, token

NS = "/admin/v2/namespaces/acme/news"
NEWS = NamespaceName("acme", "news")
TOPIC = "persistent://acme/news/t"
PATH = "/admin/v2/persistent/acme/news/t"


@pytest.fixture
async def acme() -> AsyncIterator[Guarded]:
    """`writer` may produce, `reader` consume, both on the namespace; `nobody` has a token and no right."""
    async with guarded() as made:
        await made.rest("boss", "POST", f"{NS}/permissions/writer", 204, json=["produce"])
        await made.rest("boss", "POST", f"{NS}/permissions/reader", 204, json=["consume"])
        await made.rest("boss", "PUT", PATH, 204)
        yield made


async def produce(wire: Wire, topic: str = TOPIC, **more: Any) -> pb.BaseCommand:
    return await wire.ask(C.PRODUCER, "producer", topic=topic, producer_id=1, request_id=1, **more)


async def subscribe(wire: Wire, topic: str = TOPIC, subscription: str = "s") -> pb.BaseCommand:
    return await wire.ask(
        C.SUBSCRIBE,
        "subscribe",
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=2,
    )


def refused(answer: pb.BaseCommand) -> bool:
    return answer.type == C.ERROR and answer.error.error == pb.AuthorizationError


async def test_who_may_produce_may_not_consume_and_the_other_way_round(acme: Guarded) -> None:
    async with acme.as_role("writer") as wire:
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS
        answer = await subscribe(wire)
        assert refused(answer)
        assert "role 'writer' may not consume persistent://acme/news/t" in answer.error.message
    async with acme.as_role("reader") as wire:
        assert (await subscribe(wire)).type == C.SUCCESS
        assert refused(await produce(wire))


async def test_nobody_finds_out_what_exists(acme: Guarded) -> None:
    async with acme.as_role("nobody") as wire:
        for topic in (TOPIC, "persistent://acme/news/none", "persistent://acme/none/t"):
            look = await wire.ask(C.LOOKUP, "lookupTopic", topic=topic, request_id=3)
            assert look.lookupTopicResponse.error == pb.AuthorizationError
            count = await wire.ask(C.PARTITIONED_METADATA, "partitionMetadata", topic=topic, request_id=4)
            assert count.partitionMetadataResponse.error == pb.AuthorizationError
            assert refused(await produce(wire, topic))
            assert refused(await subscribe(wire, topic))


async def test_a_tenant_that_does_not_exist_is_told_as_such(acme: Guarded) -> None:
    topic = "persistent://no/no/t"
    async with acme.as_role("nobody") as wire:
        look = await wire.ask(C.LOOKUP, "lookupTopic", topic=topic, request_id=3)
        assert look.lookupTopicResponse.error == pb.TopicNotFound
        count = await wire.ask(C.PARTITIONED_METADATA, "partitionMetadata", topic=topic, request_id=4)
        assert count.partitionMetadataResponse.error == pb.TopicNotFound
    answer = await acme.rest("nobody", "POST", "/admin/v2/namespaces/no/no/retention", 404, json={})
    assert answer.json() == {"reason": "Tenant does not exist"}


@pytest.mark.parametrize("role", ["root", "boss", "writer", "reader"])
async def test_either_right_lets_a_role_look_up_and_list(acme: Guarded, role: str) -> None:
    async with acme.as_role(role) as wire:
        look = await wire.ask(C.LOOKUP, "lookupTopic", topic=TOPIC, request_id=3)
        assert look.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Connect
        listing = await wire.ask(
            C.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="acme/news", request_id=4
        )
        assert list(listing.getTopicsOfNamespaceResponse.topics) == [TOPIC]
    await acme.rest(role, "GET", f"{PATH}/stats", 200)
    await acme.rest(role, "GET", f"{NS}/topics", 200)


async def test_a_grant_on_one_topic_opens_that_topic_alone(acme: Guarded) -> None:
    await acme.rest("boss", "POST", f"{PATH}/permissions/guest", 204, json=["consume"])
    async with acme.as_role("guest") as wire:
        assert (await subscribe(wire)).type == C.SUCCESS
        assert refused(await produce(wire, "persistent://acme/news/other"))
    await acme.rest("guest", "GET", f"{PATH}/stats", 200)
    await acme.rest("guest", "GET", f"{NS}/topics", 403)
    await acme.rest("guest", "GET", "/admin/v2/persistent/acme/news/other/stats", 403)


async def test_admins_of_a_tenant_do_what_they_like_there_and_nothing_elsewhere(acme: Guarded) -> None:
    async with acme.as_role("boss") as wire:
        assert refused(await produce(wire, "persistent://public/default/t"))
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS
    await acme.rest("boss", "PUT", "/admin/v2/namespaces/acme/more", 204)
    for method, path in (
        ("PUT", "/admin/v2/namespaces/public/more"),
        ("GET", "/admin/v2/tenants"),
        ("POST", "/admin/v2/tenants/acme"),
        ("GET", "/admin/v2/namespaces/public"),
        ("GET", "/admin/v2/brokers/configuration/runtime"),
        ("PUT", f"{NS}/unload"),
        ("POST", "/admin/v2/scalable/acme/news/t/split/0"),
    ):
        await acme.rest("boss", method, path, 403)


async def test_groups_of_namespaces_are_for_admins_of_their_tenant_and_domains_for_super_users(
    acme: Guarded,
) -> None:
    group, listed = (
        "/admin/v2/namespaces/acme/news/antiAffinity",
        "/admin/v2/namespaces/standalone/antiAffinity/g",
    )
    domains = "/admin/v2/clusters/standalone/failureDomains"
    await acme.rest("boss", "GET", group, 204)
    await acme.rest("boss", "DELETE", group, 204)
    await acme.rest("boss", "GET", listed, 200, params={"tenant": "acme"})
    await acme.rest("boss", "GET", listed, 403, params={"tenant": "public"})
    for method in ("GET", "POST", "DELETE"):
        await acme.rest("reader", method, group, 403, content="g" if method == "POST" else None)
        await acme.rest("boss", method, f"{domains}/d", 403, content="{}" if method == "POST" else None)
    await acme.rest("reader", "GET", listed, 403, params={"tenant": "acme"})
    await acme.rest("boss", "GET", domains, 403)
    await acme.rest("root", "GET", domains, 200)


async def test_rights_count_as_last_read_while_the_store_is_in_doubt(acme: Guarded) -> None:
    async with acme.as_role("boss") as wire:
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS
    acme.metadata.disconnect()
    for role, may in (("boss", True), ("writer", True), ("reader", False)):
        async with acme.as_role(role) as wire:
            assert refused(await produce(wire, producer_name=f"{role} again")) is not may
    await acme.metadata.reconnect()


async def test_a_grant_that_is_taken_back_ends_what_uses_it(acme: Guarded) -> None:
    async with acme.as_role("writer") as writer, acme.as_role("reader") as reader:
        assert (await produce(writer)).type == C.PRODUCER_SUCCESS
        assert (await subscribe(reader)).type == C.SUCCESS
        await acme.rest("boss", "DELETE", f"{NS}/permissions/writer", 204)
        closed = await writer.receive()
        assert closed is not None
        assert closed.type == C.CLOSE_PRODUCER
        assert refused(await produce(writer, epoch=1))
        await acme.rest("boss", "DELETE", f"{NS}/permissions/reader", 204)
        closed = await reader.receive()
        assert closed is not None
        assert closed.type == C.CLOSE_CONSUMER
        assert refused(await subscribe(reader))


async def kinds_until(wire: Wire, wanted: int) -> list[int]:
    """Of what the broker says by itself, as far as that kind."""
    found: list[int] = []
    while wanted not in found:
        command = await wire.receive()
        assert command is not None, f"closed after {found}"
        found.append(command.type)
    return found


async def watch_topics(wire: Wire, number: int = 1) -> pb.BaseCommand:
    return await wire.ask(
        C.WATCH_TOPIC_LIST,
        "watchTopicList",
        request_id=10 + number,
        watcher_id=number,
        namespace="acme/news",
        topics_pattern="acme/news/.*",
    )


async def test_who_is_an_admin_no_more_loses_what_he_uses(acme: Guarded) -> None:
    async with acme.as_role("boss") as wire:
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS
        assert (await subscribe(wire)).type == C.SUCCESS
        assert (await watch_topics(wire)).type == C.WATCH_TOPIC_LIST_SUCCESS
        tenant = {"adminRoles": ["new-boss"], "allowedClusters": ["standalone"]}
        await acme.rest("root", "POST", "/admin/v2/tenants/acme", 204, json=tenant)
        assert await kinds_until(wire, C.CLOSE_CONSUMER) == [C.CLOSE_PRODUCER, C.CLOSE_CONSUMER]
        assert refused(await produce(wire, epoch=1))
        assert refused(await subscribe(wire))
        assert refused(await watch_topics(wire, 2))
        await acme.rest("boss", "GET", f"{PATH}/stats", 403)
        # What is made now would be told to the watch, had it not ended.
        await acme.rest("new-boss", "PUT", "/admin/v2/persistent/acme/news/secret", 204)
        async with acme.as_role("new-boss") as other:
            assert (await watch_topics(other)).type == C.WATCH_TOPIC_LIST_SUCCESS
        assert await wire.settle() == []


async def test_a_change_of_admins_leaves_others_alone(acme: Guarded) -> None:
    async with acme.as_role("writer") as wire:
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS
        tenant = {"adminRoles": [], "allowedClusters": ["standalone"]}
        await acme.rest("root", "POST", "/admin/v2/tenants/acme", 204, json=tenant)
        await acme.rest("boss", "GET", f"{PATH}/stats", 403)
        assert await wire.settle() == []


async def test_what_is_opened_while_its_right_is_taken_back_does_not_stay() -> None:
    async with guarded(authentication_refresh_check_seconds=0.05) as made:
        for number in range(10):
            await made.rest("boss", "POST", f"{NS}/permissions/late", 204, json=["produce"])
            topic = f"persistent://acme/news/new-{number}"
            async with made.as_role("late") as wire:
                answer, _ = await asyncio.gather(
                    produce(wire, topic), made.rest("boss", "DELETE", f"{NS}/permissions/late", 204)
                )
                if not refused(answer):
                    await kinds_until(wire, C.CLOSE_PRODUCER)


def checkpoint_consumer(number: int, name: str) -> dict[str, Any]:
    return {
        "request_id": number,
        "consumer_id": number,
        "topic": "topic://acme/news/river",
        "subscription": "s",
        "consumer_name": name,
        "consumer_type": pb.CHECKPOINT,
    }


async def test_a_registered_consumer_that_may_not_consume_any_more_is_sent_away(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
    features = pb.FeatureFlags(supports_scalable_topics=True)
    async with acme.wire(token("reader"), feature_flags=features) as (wire, _):
        joined = await wire.ask(
            C.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", **checkpoint_consumer(1, "one")
        )
        assert not joined.scalableTopicSubscribeResponse.HasField("error")
        await acme.rest("boss", "DELETE", f"{NS}/permissions/reader", 204)
        assert await kinds_until(wire, C.CLOSE_CONSUMER) == [C.CLOSE_CONSUMER]
        again = await wire.ask(
            C.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", **checkpoint_consumer(2, "one")
        )
        assert again.scalableTopicSubscribeResponse.error == pb.AuthorizationError


async def test_nobody_finishes_segments_for_a_group_that_he_may_not_join(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
    async with acme.as_role("reader") as reader, acme.as_role("nobody") as nobody:
        joined = await reader.ask(
            C.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", **checkpoint_consumer(1, "one")
        )
        assert not joined.scalableTopicSubscribeResponse.HasField("error")
        # At once, while it is still being found out whether he may.
        nobody.send(C.SCALABLE_TOPIC_SUBSCRIBE, "scalableTopicSubscribe", **checkpoint_consumer(7, "one"))
        nobody.send(
            C.ACK,
            "ack",
            consumer_id=7,
            request_id=8,
            ack_type=pb.CommandAck.Individual,
            message_id=[pb.MessageIdData(ledgerId=0, entryId=0)],
        )
        refusal, answer = await nobody.receive(), await nobody.receive()
        assert refusal is not None
        assert refusal.scalableTopicSubscribeResponse.error == pb.AuthorizationError
        assert answer is not None
        assert answer.ackResponse.HasField("error")


async def test_a_namespace_may_want_the_role_in_the_subscriptions_name(acme: Guarded) -> None:
    await acme.rest("boss", "POST", f"{NS}/subscriptionAuthMode", 204, json="Prefix")
    async with acme.as_role("reader") as wire:
        answer = await subscribe(wire)
        assert refused(answer)
        assert "reader-xxxx" in answer.error.message
        assert (await subscribe(wire, subscription="reader-1")).type == C.SUCCESS


async def test_a_subscription_that_is_granted_to_some_is_refused_to_others(acme: Guarded) -> None:
    await acme.rest("boss", "POST", f"{NS}/permissions/subscription/s", 204, json=["ann"])
    async with acme.as_role("reader") as wire:
        assert refused(await subscribe(wire))
        assert (await subscribe(wire, subscription="another")).type == C.SUCCESS
    await acme.rest("reader", "POST", f"{PATH}/subscription/s/skip_all", 403)


async def test_names_have_an_end(acme: Guarded) -> None:
    """They are stored, and told in every figure."""
    async with acme.as_role("boss") as wire:
        assert (await subscribe(wire, subscription="s" * 1025)).error.error == pb.InvalidTopicName
        assert (await subscribe(wire, subscription="ü" * 513)).error.error == pb.InvalidTopicName
        assert (await produce(wire, producer_name="p" * 1_000_000)).error.error == pb.InvalidTopicName
        told = [pb.KeyValue(key="k", value="v" * 1024)]
        consumer = {"topic": TOPIC, "subscription": "s", "subType": pb.CommandSubscribe.Exclusive}
        answer = await wire.ask(
            C.SUBSCRIBE, "subscribe", consumer_id=1, request_id=2, metadata=told, **consumer
        )
        assert "maxConsumerMetadataSize" in answer.error.message
        assert (await subscribe(wire, subscription="s" * 1024)).type == C.SUCCESS
    await acme.rest("boss", "PUT", f"{PATH}/subscription/{'s' * 1025}", 412)


async def test_schemas_are_read_by_either_and_written_by_who_may_produce(acme: Guarded) -> None:
    schema = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
    for role, may in (("writer", True), ("reader", False), ("nobody", False)):
        async with acme.as_role(role) as wire:
            made = await wire.ask(
                C.GET_OR_CREATE_SCHEMA, "getOrCreateSchema", request_id=5, topic=TOPIC, schema=schema
            )
            assert made.getOrCreateSchemaResponse.HasField("error_code") is not may
    for role, code in (("reader", None), ("nobody", pb.AuthorizationError)):
        async with acme.as_role(role) as wire:
            got = (await wire.ask(C.GET_SCHEMA, "getSchema", request_id=6, topic=TOPIC)).getSchemaResponse
            assert (got.error_code if got.HasField("error_code") else None) == code


async def test_scalable_topics_ask_for_the_same_rights(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", "/admin/v2/scalable/acme/news/river", 204)
    for role, may in (("writer", True), ("nobody", False)):
        async with acme.as_role(role) as wire:
            update = await wire.ask(
                C.SCALABLE_TOPIC_LOOKUP, "scalableTopicLookup", session_id=1, topic="topic://acme/news/river"
            )
            assert update.scalableTopicUpdate.HasField("error") is not may
    segment = (await acme.broker.resources.segment_names(NEWS))[0]
    async with acme.as_role("writer") as wire:
        assert (await produce(wire, str(segment))).type == C.PRODUCER_SUCCESS
        assert refused(await subscribe(wire, str(segment)))


async def test_a_topic_made_anew_inherits_no_grant(acme: Guarded) -> None:
    await acme.rest("boss", "POST", f"{PATH}/permissions/guest", 204, json=["consume"])
    await acme.rest("boss", "DELETE", PATH, 204)
    await acme.rest("boss", "PUT", PATH, 204)
    async with acme.as_role("guest") as wire:
        assert refused(await subscribe(wire))


async def test_stars_count_where_they_are_allowed() -> None:
    async with guarded(authorization_allow_wildcards_matching=True) as made:
        await made.rest("boss", "POST", f"{NS}/permissions/team-*", 204, json=["produce"])
        async with made.as_role("team-ann") as wire:
            assert (await produce(wire)).type == C.PRODUCER_SUCCESS


async def test_grants_count_for_a_client_that_is_connected_already(acme: Guarded) -> None:
    async with acme.as_role("late") as wire:
        assert refused(await produce(wire))
        await acme.rest("boss", "POST", f"{NS}/permissions/late", 204, json=["produce"])
        assert (await produce(wire)).type == C.PRODUCER_SUCCESS


# -- proxies


async def test_what_a_proxy_asks_for_must_be_allowed_to_both(acme: Guarded) -> None:
    rights: Rights = acme.broker.rights
    topic = TopicName.parse(TOPIC)
    await rights.produce(Proxied("root", "writer"), topic)
    for role in (Proxied("root", "reader"), Proxied("nobody", "writer")):
        with pytest.raises(NotAuthorizedError):
            await rights.produce(role, topic)


async def test_a_proxy_names_whom_it_speaks_for() -> None:
    async with guarded(proxy_roles=("proxy",), super_user_roles=("root", "proxy")) as made:
        await made.rest("boss", "POST", f"{NS}/permissions/writer", 204, json=["produce"])
        async with made.wire(token("proxy"), original_principal="writer") as (wire, answer):
            assert answer is not None
            assert answer.type == C.CONNECTED
            assert (await produce(wire)).type == C.PRODUCER_SUCCESS
            assert refused(await subscribe(wire))
        for role, original in (("proxy", ""), ("proxy", "proxy"), ("writer", "root")):
            more = {"original_principal": original} if original else {}
            async with made.wire(token(role), **more) as (_, answer):
                assert answer is not None
                assert refused(answer)


async def test_checks_do_not_hold_each_other_up(acme: Guarded) -> None:
    async with acme.as_role("writer") as one, acme.as_role("nobody") as other:
        answers = await asyncio.gather(produce(one), produce(other))
        assert [answer.type for answer in answers] == [C.PRODUCER_SUCCESS, C.ERROR]


COMPACTIONS = [
    ("POST", f"{PATH}/subscription/__compaction/skip_all", None),
    ("POST", f"{PATH}/subscription/%5F_compaction/skip_all", None),
    ("POST", f"{PATH}/subscription/%255F_compaction/skip/1", None),
    ("POST", f"{PATH}/subscription/__compaction/resetcursor/1", None),
    ("POST", f"{PATH}/subscription/__compaction/resetcursor", {"ledgerId": 0, "entryId": 1}),
    ("POST", f"{PATH}/subscription/__compaction/expireMessages/1", None),
    ("POST", f"{PATH}/subscription/__compaction/expireMessages", {"ledgerId": 0, "entryId": 1}),
    ("PUT", f"{PATH}/subscription/__compaction", None),
    ("PUT", f"{PATH}/subscription/__compaction/properties", {}),
    ("POST", f"{NS}/unsubscribe/__compaction", None),
    ("POST", f"{NS}/clearBacklog/__compaction", None),
    ("POST", f"{NS}/0x00000000_0xffffffff/unsubscribe/__compaction", None),
    ("POST", f"{NS}/0x00000000_0xffffffff/clearBacklog/__compaction", None),
]


@pytest.mark.parametrize(("method", "path", "json"), COMPACTIONS)
@pytest.mark.parametrize("role", ["reader", "boss"])
async def test_nobody_moves_the_cursor_that_keeps_what_is_not_compacted(
    acme: Guarded, role: str, method: str, path: str, json: Any
) -> None:
    """A reader could have the log let go of what readers of the compacted topic have not seen."""
    await acme.rest("boss", "PUT", f"{PATH}/compaction", 204)
    topic = acme.broker.loaded()[TopicName.parse(TOPIC)]
    await topic.compaction.wait()
    assert "__compaction" in topic.subscriptions
    await acme.rest(role, method, path, 405, json=json)
    assert "__compaction" in topic.subscriptions


async def test_who_may_compact_may_have_the_log_let_go(acme: Guarded) -> None:
    await acme.rest("boss", "PUT", f"{PATH}/compaction", 204)
    topic = acme.broker.loaded()[TopicName.parse(TOPIC)]
    await topic.compaction.wait()
    own = f"{PATH}/subscription/__compaction"
    assert (await acme.rest("reader", "DELETE", own)).status_code in (401, 403)
    assert "__compaction" in topic.subscriptions
    await acme.rest("boss", "DELETE", own, 204)
    assert "__compaction" not in topic.subscriptions
