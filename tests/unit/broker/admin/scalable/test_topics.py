"""`/admin/v2/scalable` on a real broker, controller and log over the memory adapters."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote

import httpx
import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress, OwnersListener
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.rest import create_app
from anabranch.broker.security.rights import AllowAll
from anabranch.client import Client, Routing
from anabranch.controller.ports import Assignment, Segments
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import TOPICS, SubscriptionKind
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.admin.conftest import NOW_MS, Rest, serving

NS = "/admin/v2/scalable/public/default"
T = f"{NS}/orders"
TOPIC = "topic://public/default/orders"


async def made(rest: Rest, segments: int = 1, path: str = T) -> None:
    await rest.call("PUT", f"{path}?numInitialSegments={segments}", 204)


async def active(rest: Rest, path: str = T) -> dict[int, str]:
    segments = (await rest.get(path))["segments"].values()
    return {
        s["segmentId"]: f"{s['hashRange']['start']:04x}-{s['hashRange']['end']:04x}"
        for s in segments
        if s["state"] == "ACTIVE"
    }


# -- making, finding, deleting


async def test_a_made_topic_has_its_layout_as_pulsar_writes_it(rest: Rest) -> None:
    await rest.call("PUT", f"{T}?numInitialSegments=2", 204, json={"team": "blue"})
    found = await rest.get(T)
    assert (found["epoch"], found["nextSegmentId"], found["properties"]) == (0, 2, {"team": "blue"})
    assert found["autoScalePolicy"] is None
    assert found["segments"]["1"] == {
        "segmentId": 1,
        "hashRange": {"start": 0x8000, "end": 0xFFFF},
        "state": "ACTIVE",
        "parentIds": [],
        "childIds": [],
        "createdAtEpoch": 0,
        "sealedAtEpoch": 0,
        "createdAtMs": NOW_MS,
        "sealedAtMs": 0,
        "active": True,
        "sealed": False,
        "root": True,
        "leaf": True,
        "legacy": False,
        "entryBucketSplits": [0x8000],
        "entryBuckets": 2,
    }


@pytest.mark.parametrize("content", [b"", b"null", b"{}"])
async def test_an_empty_body_means_no_properties_and_no_number_one_segment(
    rest: Rest, content: bytes
) -> None:
    await rest.call("PUT", T, 204, content=content)
    found = await rest.get(T)
    assert (found["properties"], len(found["segments"])) == ({}, 1)


async def test_a_topic_that_exists_is_a_conflict(rest: Rest) -> None:
    await made(rest, 2)
    assert "exists" in await rest.refused("PUT", T, 409)
    assert len(await active(rest)) == 2


async def test_a_name_taken_by_a_classic_topic_is_a_conflict_that_names_migration(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/orders", 204)
    assert "migrate" in await rest.refused("PUT", T, 409)


async def test_a_number_of_segments_outside_the_limit_is_refused_with_the_limit(rest: Rest) -> None:
    for count in (0, -1, 4097, 70000):
        assert "1 to 4096" in await rest.refused("PUT", f"{T}?numInitialSegments={count}", 412)
    await rest.refused("GET", T, 404)


async def test_a_number_that_is_none_is_refused(rest: Rest) -> None:
    assert "numInitialSegments" in await rest.refused("PUT", f"{T}?numInitialSegments=many", 400)
    assert "body" in await rest.refused("PUT", T, 400, content=b'["a"]')


async def test_a_missing_namespace_is_not_found(rest: Rest) -> None:
    await rest.refused("PUT", "/admin/v2/scalable/public/nowhere/t", 404)
    await rest.refused("GET", "/admin/v2/scalable/public/nowhere", 404)


EVERY_CALL = (
    ("GET", ""),
    ("DELETE", "?force=true"),
    ("GET", "/stats"),
    ("GET", "/properties"),
    ("PUT", "/properties"),
    ("DELETE", "/properties?key=a"),
    ("GET", "/explain"),
    ("GET", "/autoScalePolicy"),
    ("DELETE", "/autoScalePolicy"),
    ("POST", "/split/0"),
    ("POST", "/merge/0/1"),
    ("POST", "/rebucket/0?buckets=2"),
    ("POST", "/migrate"),
    ("PUT", "/subscriptions/s"),
    ("DELETE", "/subscriptions/s"),
    ("POST", "/subscriptions/s/seek?timestamp=1"),
    ("POST", "/subscriptions/s/skip-all"),
)


async def test_an_unknown_topic_is_not_found_whatever_is_asked(rest: Rest) -> None:
    for method, tail in EVERY_CALL:
        assert "orders" in await rest.refused(method, T + tail, 404)


async def test_properties_are_added_changed_and_removed_one_by_one(rest: Rest) -> None:
    await made(rest, 1)
    assert await rest.get(f"{T}/properties") == {}
    await rest.call("PUT", f"{T}/properties", 204, json={"team": "blue", "size": "2"})
    await rest.call("PUT", f"{T}/properties", 204, json={"team": "red"})
    assert await rest.get(f"{T}/properties") == {"team": "red", "size": "2"}
    assert await rest.get(f"{NS}?property=team=red") == [str(TOPIC)]
    await rest.call("POST", f"{T}/split/0")
    await rest.call("DELETE", f"{T}/properties?key=team", 204)
    await rest.call("DELETE", f"{T}/properties?key=never", 204)
    assert (await rest.get(T))["properties"] == {"size": "2"}
    assert await rest.get(f"{NS}?property=team=red") == []
    assert "body" in await rest.refused("PUT", f"{T}/properties", 400, content=b'{"a": 1}')
    assert "key" in await rest.refused("DELETE", f"{T}/properties", 400)


async def test_topics_are_listed_by_their_full_names(rest: Rest) -> None:
    for name in ("b", "a"):
        await made(rest, path=f"{NS}/{name}")
    assert await rest.get(NS) == ["topic://public/default/a", "topic://public/default/b"]


async def test_property_filters_must_all_match(rest: Rest) -> None:
    for name, properties in (("x", {"k": "1", "l": "2"}), ("y", {"k": "1"}), ("z", {"k": "2"})):
        await rest.call("PUT", f"{NS}/{name}", 204, json=properties)
    assert await rest.get(f"{NS}?property=k=1") == ["topic://public/default/x", "topic://public/default/y"]
    assert await rest.get(f"{NS}?property=k=1&property=l=2") == ["topic://public/default/x"]
    assert await rest.get(f"{NS}?property=k%3D3") == []
    assert "NAME=VALUE" in await rest.refused("GET", f"{NS}?property=k", 412)


async def test_a_value_with_an_equals_sign_is_found(rest: Rest) -> None:
    await rest.call("PUT", T, 204, json={"where": "a=b"})
    assert await rest.get(f"{NS}?property=where=a=b") == [TOPIC]


async def test_a_deleted_topic_is_gone_and_can_be_made_anew(rest: Rest) -> None:
    await made(rest, 2)
    await rest.call("PUT", f"{T}/subscriptions/s", 204)
    await rest.call("DELETE", f"{T}?force=false", 204)
    await rest.refused("GET", T, 404)
    assert await rest.get(NS) == []
    await made(rest, 1)
    assert (await rest.get(f"{T}/stats"))["subscriptions"] == {}


async def test_a_topic_with_clients_is_deleted_by_force_only(rest: Rest) -> None:
    await made(rest)
    await rest.client.producer("segment://public/default/orders/0000-ffff-0")
    assert "force" in await rest.refused("DELETE", T, 412)
    await rest.call("DELETE", f"{T}?force=true", 204)
    await rest.refused("GET", T, 404)


# -- names


@pytest.mark.parametrize("local", ["größe", "a b", "a+b", "a%2Fb", "x/y", "q?&=#", "a/stats", "ns/split/0"])
async def test_names_survive_percent_encoding(rest: Rest, local: str) -> None:
    path = f"{NS}/{quote(local, safe='')}"
    await made(rest, path=path)
    assert await rest.get(NS) == [f"topic://public/default/{local}"]
    await rest.call("POST", f"{path}/split/0", 204)
    assert (await rest.get(f"{path}/stats"))["segments"]["1"]["name"] == (
        f"segment://public/default/{local}/0000-7fff-1"
    )
    await rest.call("PUT", f"{path}/subscriptions/{quote('s/ü +', safe='')}", 204)
    assert list((await rest.get(f"{path}/stats"))["subscriptions"]) == ["s/ü +"]
    await rest.call("DELETE", path, 204)


async def test_slashes_as_pulsars_admin_client_sends_them_are_part_of_the_name(rest: Rest) -> None:
    path = f"{NS}/tenants/blue/orders"
    await made(rest, 2, path)
    assert await rest.get(NS) == ["topic://public/default/tenants/blue/orders"]
    await rest.call("POST", f"{path}/merge/0/1", 204)
    assert await active(rest, path) == {2: "0000-ffff"}
    await rest.call("PUT", f"{path}/subscriptions/s?type=QUEUE", 204)
    assert (await rest.get(f"{path}/stats"))["subscriptions"]["s"]["type"] == "QUEUE"
    await rest.call("DELETE", f"{path}?force=true", 204)


async def test_bytes_that_are_no_text_are_refused(rest: Rest) -> None:
    assert "UTF-8" in await rest.refused("GET", f"{NS}/%ff", 400)


# -- split and merge


async def test_a_split_is_published_when_it_is_answered(rest: Rest) -> None:
    await made(rest)
    await rest.call("POST", f"{T}/split/0", 204)
    found = await rest.get(T)
    assert (found["epoch"], found["segments"]["0"]["state"], found["segments"]["0"]["childIds"]) == (
        1,
        "SEALED",
        [1, 2],
    )
    assert await active(rest) == {1: "0000-7fff", 2: "8000-ffff"}


@pytest.mark.parametrize("order", ["0/1", "1/0"])
async def test_neighbours_are_merged_in_either_order(rest: Rest, order: str) -> None:
    await made(rest, 2)
    await rest.call("POST", f"{T}/merge/{order}", 204)
    assert await active(rest) == {2: "0000-ffff"}


async def test_refused_splits_and_merges_say_why_and_change_nothing(rest: Rest) -> None:
    await made(rest, 4)
    await rest.call("POST", f"{T}/split/0", 204)
    before = await rest.get(T)
    for tail, reason in (
        ("split/9", "no segment 9"),
        ("split/0", "sealed"),
        ("merge/1/1", "itself"),
        ("merge/1/9", "no segment 9"),
        ("merge/4/2", "not neighbours"),
        ("merge/0/1", "sealed"),
    ):
        assert reason in await rest.refused("POST", f"{T}/{tail}", 412)
    assert await rest.get(T) == before


async def test_a_rebucket_leaves_one_segment_of_the_same_range_with_the_number_asked_for(rest: Rest) -> None:
    await made(rest, 2)
    await rest.call("POST", f"{T}/rebucket/0?buckets=8", 204)
    segments = (await rest.get(T))["segments"]
    assert (segments["0"]["state"], segments["0"]["childIds"]) == ("SEALED", [2])
    assert segments["2"]["hashRange"] == segments["0"]["hashRange"]
    assert segments["2"]["entryBucketSplits"] == [n * 8192 for n in range(1, 8)]
    stats = await rest.get(f"{T}/stats")
    assert {number: one["entryBuckets"] for number, one in stats["segments"].items()} == {
        "0": 2,
        "1": 2,
        "2": 8,
    }
    assert stats["activeSegments"] == 2
    (told,) = (await rest.get(f"{T}/explain"))["decisions"]
    assert (told["kind"], told["segments"], told["rule"]) == ("rebucket", [0], "manual")


async def test_refused_rebuckets_say_why_and_change_nothing(rest: Rest) -> None:
    await made(rest, 2)
    await rest.call("POST", f"{T}/rebucket/0?buckets=4", 204)
    before = await rest.get(T)
    for tail, reason in (
        ("rebucket/9?buckets=2", "no segment 9"),
        ("rebucket/0?buckets=2", "sealed"),
        ("rebucket/2?buckets=4", "has 4 entry buckets already"),
        ("rebucket/2?buckets=0", "1 to 1024"),
        ("rebucket/2?buckets=-3", "1 to 1024"),
        ("rebucket/2?buckets=1025", "1 to 1024"),
    ):
        assert reason in await rest.refused("POST", f"{T}/{tail}", 412)
    assert "segment id" in await rest.refused("POST", f"{T}/rebucket/x?buckets=2", 400)
    for tail in ("rebucket/2", "rebucket/2?buckets=many"):
        assert "buckets" in await rest.refused("POST", f"{T}/{tail}", 400)
    assert await rest.get(T) == before


async def test_ids_that_are_no_numbers_are_refused(rest: Rest) -> None:
    await made(rest, 2)
    for tail in ("split/x", "split/-1", "split/1.5", "merge/0/x", "merge/x/0", f"split/{2**64}"):
        assert "segment id" in await rest.refused("POST", f"{T}/{tail}", 400)


async def test_layout_changes_keep_the_properties(rest: Rest) -> None:
    await rest.call("PUT", f"{T}?numInitialSegments=2", 204, json={"k": "v"})
    await rest.call("POST", f"{T}/split/1", 204)
    await rest.call("POST", f"{T}/merge/0/2", 204)
    assert (await rest.get(T))["properties"] == {"k": "v"}


# -- subscriptions


async def cursors(rest: Rest, path: str = T) -> dict[str, dict[str, int]]:
    """Backlog by segment and subscription."""
    segments = (await rest.get(f"{path}/stats"))["segments"]
    return {
        number: {name: cursor["msgBacklog"] for name, cursor in segment["subscriptions"].items()}
        for number, segment in segments.items()
    }


async def test_a_subscription_is_made_on_all_segments_and_taken_from_all(rest: Rest) -> None:
    await made(rest, 2)
    await rest.publish("segment://public/default/orders/0000-7fff-0", b"one", b"two")
    await rest.call("POST", f"{T}/split/0", 204)
    await rest.call("PUT", f"{T}/subscriptions/s?type=STREAM", 204)
    assert await cursors(rest) == {"0": {"s": 2}, "1": {"s": 0}, "2": {"s": 0}, "3": {"s": 0}}
    await rest.call("PUT", f"{T}/subscriptions/s?type=STREAM", 204)
    await rest.call("DELETE", f"{T}/subscriptions/s", 204)
    assert await cursors(rest) == {"0": {}, "1": {}, "2": {}, "3": {}}
    assert (await rest.get(f"{T}/stats"))["subscriptions"] == {}


async def test_a_subscription_has_the_type_that_was_asked_for(rest: Rest) -> None:
    await made(rest)
    await rest.call("PUT", f"{T}/subscriptions/default", 204)
    await rest.call("PUT", f"{T}/subscriptions/queue?type=QUEUE", 204)
    found = (await rest.get(f"{T}/stats"))["subscriptions"]
    assert {name: s["type"] for name, s in found.items()} == {"default": "STREAM", "queue": "QUEUE"}
    assert "STREAM" in await rest.refused("PUT", f"{T}/subscriptions/x?type=SHARED", 400)


async def test_children_of_a_split_have_the_subscriptions_of_their_parent(rest: Rest) -> None:
    await made(rest)
    await rest.call("PUT", f"{T}/subscriptions/s", 204)
    await rest.call("POST", f"{T}/split/0", 204)
    assert await cursors(rest) == {"0": {"s": 0}, "1": {"s": 0}, "2": {"s": 0}}


async def test_an_unknown_subscription_is_not_found(rest: Rest) -> None:
    await made(rest)
    for method, tail in (("DELETE", ""), ("POST", "/seek?timestamp=0"), ("POST", "/skip-all")):
        assert "subscription s" in await rest.refused(method, f"{T}/subscriptions/s{tail}", 404)


async def test_seek_and_skip_all_move_every_segment(rest: Rest) -> None:
    await made(rest, 2)
    await rest.call("PUT", f"{T}/subscriptions/s", 204)
    await rest.publish("segment://public/default/orders/0000-7fff-0", b"one", b"two")
    await rest.publish("segment://public/default/orders/8000-ffff-1", b"three")
    assert await cursors(rest) == {"0": {"s": 2}, "1": {"s": 1}}
    await rest.call("POST", f"{T}/subscriptions/s/skip-all", 204)
    assert await cursors(rest) == {"0": {"s": 0}, "1": {"s": 0}}
    await rest.call("POST", f"{T}/subscriptions/s/seek?timestamp=0", 204)
    assert await cursors(rest) == {"0": {"s": 2}, "1": {"s": 1}}


@pytest.mark.parametrize("query", ["", "?timestamp=noon", "?timestamp=-1"])
async def test_a_seek_needs_a_time_in_milliseconds(rest: Rest, query: str) -> None:
    await made(rest)
    await rest.call("PUT", f"{T}/subscriptions/s", 204)
    assert "timestamp" in await rest.refused("POST", f"{T}/subscriptions/s/seek{query}", 400)


# -- stats


async def test_stats_count_segments_and_describe_each(rest: Rest) -> None:
    await made(rest, 2)
    await rest.call("PUT", f"{T}/subscriptions/s", 204)
    await rest.client.producer("segment://public/default/orders/8000-ffff-1")
    await rest.publish("segment://public/default/orders/0000-7fff-0", b"x" * 100)
    await rest.call("POST", f"{T}/split/0", 204)
    found = await rest.get(f"{T}/stats")
    assert [found[k] for k in ("epoch", "totalSegments", "activeSegments", "sealedSegments")] == [1, 4, 3, 1]
    assert found["controller"] == rest.broker.service_url
    assert found["operation"] is None
    parent, other = found["segments"]["0"], found["segments"]["1"]
    assert (parent["name"], parent["state"]) == ("segment://public/default/orders/0000-7fff-0", "SEALED")
    assert parent["storageSize"] > 100
    assert found["storageSize"] == parent["storageSize"]
    assert parent["subscriptions"]["s"] | {"msgRateOut": 0} == {
        "msgBacklog": 1,
        "drained": False,
        "consumerCount": 0,
        "msgRateOut": 0,
        "msgThroughputOut": 0.0,
    }
    assert (other["state"], other["producerCount"]) == ("ACTIVE", 1)
    assert found["subscriptions"]["s"]["msgBacklog"] == 1


async def test_stats_report_producers_that_route_keys_by_different_halves(rest: Rest) -> None:
    await made(rest, 4)
    async with Client(rest.broker.service_url) as client:
        producers = [
            await client.producer(str(TOPIC), name="ours", routing=Routing.HIGH),
            await client.producer(str(TOPIC), name="java-m1", routing=Routing.LOW),
        ]
        for agreeing, producer in enumerate(producers):
            for number in range(40):
                await producer.send(b"x", key=f"key-{number}")
            await producer.flush()
            for topic in rest.broker.loaded().values():
                topic.update_rates(10.0)
            routing = (await rest.get(f"{T}/stats"))["routing"]
            if not agreeing:
                assert (routing["kind"], routing["keysByLow"], routing["advice"]) == ("high", 0, None)
    assert routing["kind"] == "mixed"
    assert routing["keysOutside"] > 0
    assert "'java-m1' routes keys by the low half" in routing["advice"]
    assert "'ours' by the high half" in routing["advice"]
    assert "Routing.LOW" in routing["advice"]


async def test_stats_of_producers_that_agree_on_the_low_half_have_no_complaint(rest: Rest) -> None:
    await made(rest, 4)
    assert (await rest.get(f"{T}/stats"))["routing"]["kind"] == ""
    async with Client(rest.broker.service_url) as client:
        producer = await client.producer(str(TOPIC), routing=Routing.LOW)
        for number in range(40):
            await producer.send(b"x", key=f"key-{number}")
        await producer.flush()
        for topic in rest.broker.loaded().values():
            topic.update_rates(10.0)
    routing = (await rest.get(f"{T}/stats"))["routing"]
    assert (routing["kind"], routing["keysOutside"], routing["advice"]) == ("low", 0, None)


async def test_stats_have_the_rates_of_every_segment(rest: Rest) -> None:
    await made(rest, 2)
    await rest.publish("segment://public/default/orders/0000-7fff-0", *[b"x"] * 20)
    for topic in rest.broker.loaded().values():
        topic.update_rates(10.0)
    found = await rest.get(f"{T}/stats")
    assert found["segments"]["0"]["msgRateIn"] == 2.0
    assert found["segments"]["0"]["msgThroughputIn"] > 2.0
    assert found["segments"]["1"]["msgRateIn"] == 0.0
    assert found["msgRateIn"] == 2.0


async def test_a_consumer_attached_to_every_segment_counts_once(rest: Rest) -> None:
    await made(rest, 2)
    for descriptor in ("0000-7fff-0", "8000-ffff-1"):
        await rest.client.consumer(
            f"segment://public/default/orders/{descriptor}",
            "q",
            kind=pb.CommandSubscribe.Shared,
            earliest=True,
        )
    found = (await rest.get(f"{T}/stats"))["subscriptions"]["q"]
    assert (found["type"], found["consumerCount"], found["consumers"]) == ("QUEUE", 1, [])


async def test_stats_show_stream_consumers_what_they_read_and_whether_they_are_there(rest: Rest) -> None:
    await made(rest, 2)
    client = Client(rest.broker.service_url)
    here = await client.stream_consumer(TOPIC, "s", consumer_name="here")
    elsewhere = Client(rest.broker.service_url)
    await elsewhere.stream_consumer(TOPIC, "s", consumer_name="away")
    found = (await rest.get(f"{T}/stats"))["subscriptions"]["s"]
    assert (found["type"], found["consumerCount"]) == ("STREAM", 2)
    reads = {
        c["consumerName"]: (c["type"], c["connected"], c["assignedSegments"]) for c in found["consumers"]
    }
    assert reads.keys() == {"here", "away"}
    assert sorted(n for _, _, numbers in reads.values() for n in numbers) == [0, 1]
    assert all(kind == "STREAM" and connected for kind, connected, _ in reads.values())
    elsewhere.crash()
    while all(c["connected"] for c in found["consumers"]):
        # The broker notices a moment later; each request gives it a turn.
        found = (await rest.get(f"{T}/stats"))["subscriptions"]["s"]
    assert {c["consumerName"]: c["connected"] for c in found["consumers"]} == {"here": True, "away": False}
    await here.leave()
    found = (await rest.get(f"{T}/stats"))["subscriptions"]["s"]
    assert [c["consumerName"] for c in found["consumers"]] == ["away"]
    await elsewhere.close()
    await client.close()
    await rest.call("DELETE", f"{T}/subscriptions/s", 204)
    assert (await rest.get(f"{T}/stats"))["subscriptions"] == {}


# -- unloading


async def test_unloading_the_namespace_gives_up_its_controllers_until_the_topic_is_used_again(
    rest: Rest,
) -> None:
    service = rest.broker.scalable
    assert service is not None
    await made(rest, 2)
    await rest.call("POST", f"{T}/split/0", 204)
    classic = TopicName.parse("topic://public/default/plain")
    await rest.publish("persistent://public/default/plain", b"x")
    await service.stats(classic)
    assert set(service.controllers) == {TopicName.parse(TOPIC), classic}
    await rest.call("PUT", "/admin/v2/namespaces/public/default/unload", 204)
    assert not service.controllers
    assert await service.leader(TopicName.parse(TOPIC)) == ""
    assert not rest.broker.loaded()
    await rest.publish("segment://public/default/orders/8000-ffff-1", b"back")
    await rest.call("POST", f"{T}/split/1", 204)
    await service.stats(classic)
    await rest.call("PUT", "/admin/v2/persistent/public/default/plain/unload", 204)
    assert set(service.controllers) == {TopicName.parse(TOPIC)}


async def test_consumers_keep_their_segments_when_their_topic_is_unloaded(rest: Rest) -> None:
    await made(rest, 2)
    client = Client(rest.broker.service_url)
    async with (
        await client.stream_consumer(TOPIC, "s", consumer_name="one") as one,
        await client.stream_consumer(TOPIC, "s", consumer_name="two"),
    ):
        before = await consumers(rest)
        await rest.call("PUT", "/admin/v2/namespaces/public/default/unload", 204)
        for descriptor in ("0000-7fff-0", "8000-ffff-1"):
            await rest.publish(f"segment://public/default/orders/{descriptor}", b"after")
        assert (await one.receive()).payload == b"after"
        # They are all away at first, and each request gives them a turn to come back.
        while (found := await consumers(rest)) != before:
            assert [reads for _, reads in found.values()] == [reads for _, reads in before.values()]


async def consumers(rest: Rest) -> dict[str, tuple[bool, list[int]]]:
    found = (await rest.get(f"{T}/stats"))["subscriptions"]["s"]["consumers"]
    return {c["consumerName"]: (c["connected"], c["assignedSegments"]) for c in found}


# -- what is not there


async def test_turned_off_everything_says_how_to_turn_it_on() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), BrokerConfig(scalable_topic_enabled=False)) as rest:
        for method, path in (("GET", NS), ("PUT", T), ("GET", T), ("DELETE", T), ("POST", f"{T}/split/0")):
            assert "scalableTopicEnabled" in await rest.refused(method, path, 405)
        await rest.call("PUT", "/admin/v2/persistent/public/default/classic", 204)


# -- namespaces


async def test_a_namespace_with_a_scalable_topic_is_deleted_by_force_only(rest: Rest) -> None:
    namespace = "/admin/v2/namespaces/public/gone"
    await rest.call("PUT", namespace, 204)
    await made(rest, 2, "/admin/v2/scalable/public/gone/t")
    await rest.client.producer("segment://public/gone/t/0000-7fff-0")
    assert "non empty" in await rest.refused("DELETE", namespace, 409)
    assert await rest.get("/admin/v2/scalable/public/gone") == ["topic://public/gone/t"]
    await rest.call("DELETE", f"{namespace}?force=true", 204)
    await rest.refused("GET", "/admin/v2/scalable/public/gone", 404)
    assert await rest.broker.resources.scalable_names(NamespaceName("public", "gone")) == []
    assert not [name for name in rest.broker.loaded() if name.namespace == NamespaceName("public", "gone")]


async def test_segments_are_no_topics_of_the_namespace(rest: Rest) -> None:
    await made(rest, 2)
    await rest.publish("segment://public/default/orders/0000-7fff-0", b"x")
    for path in (
        "/admin/v2/namespaces/public/default/topics?mode=ALL",
        "/admin/v2/persistent/public/default",
    ):
        assert await rest.get(path) == []


# -- classic topics


class Told:
    """A consumer's connection."""

    segments = -1

    def send_assignment(self, topic: TopicName, consumer_id: int, assignment: Assignment) -> None:
        self.segments = len(assignment.segments)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_migrated_topic_keeps_its_messages_and_subscriptions(rest: Rest, partitions: int) -> None:
    classic = "/admin/v2/persistent/public/default/orders"
    if partitions:
        await rest.call("PUT", f"{classic}/partitions", 204, json=partitions)
    else:
        await rest.call("PUT", classic, 204)
    first = "persistent://public/default/orders" + ("-partition-0" if partitions else "")
    await rest.call("PUT", f"{classic}/subscription/s", 204, json="earliest")
    await rest.publish(first, b"kept")
    await rest.call("POST", f"{T}/migrate", 204)
    found = await rest.get(f"{T}/stats")
    count = max(1, partitions)
    assert (found["activeSegments"], found["sealedSegments"]) == (count, count)
    assert found["segments"]["0"]["name"] == first
    assert found["subscriptions"]["s"]["msgBacklog"] == 1
    assert "already" in await rest.refused("POST", f"{T}/migrate", 409)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("is_led", [True, False])
async def test_nothing_of_a_classic_topics_v5_consumers_outlives_it(
    rest: Rest, partitions: int, is_led: bool
) -> None:
    classic = "/admin/v2/persistent/public/default/orders"
    whole = f"{classic}/partitions" if partitions else classic
    await rest.call("PUT", whole, 204, **({"json": partitions} if partitions else {}))
    topics = rest.broker.scalable
    assert topics is not None
    link = Told()
    name = TopicName.parse(TOPIC)
    await topics.register(name, "s", "one", SubscriptionKind.STREAM, 1, link)
    if not is_led:
        await topics.controllers[name].close(resign=True)
    await rest.call("DELETE", f"{whole}?force=true", 204)
    while await rest.broker.metadata.scan(TOPICS):
        for controller in list(topics.controllers.values()):
            await controller.collect()  # As it happens every ten seconds.
    assert await rest.broker.metadata.children("/topics/public/default") == []
    assert link.segments == (0 if is_led else -1), "its consumers are told by whoever leads it"


async def test_a_classic_topic_with_clients_is_migrated_by_force_only(rest: Rest) -> None:
    await rest.client.producer("persistent://public/default/orders")
    assert "force" in await rest.refused("POST", f"{T}/migrate", 412)
    await rest.refused("GET", T, 404)
    await rest.call("POST", f"{T}/migrate?force=true", 204)
    assert len(await active(rest)) == 1


async def test_a_classic_topic_is_not_split_before_it_is_migrated(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/orders", 204)
    assert "migrate" in await rest.refused("POST", f"{T}/split/0", 412)


# -- rights


class Refusing(AllowAll):
    """Refuses what is named, and notes who asked for what."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.asked: list[str] = []

    def _answer(self, right: str, where: object) -> bool:
        self.asked.append(f"{right} {where}")
        return right not in self._refused

    async def is_super_user(self, role: str) -> bool:
        return self._answer("super user", role)

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        return self._answer("administer", where)

    async def may_list_topics(self, role: str, namespace: NamespaceName) -> bool:
        return self._answer("list topics", namespace)

    async def may_lookup(self, role: str, topic: TopicName) -> bool:
        return self._answer("look up", topic)

    async def may_produce(self, role: str, topic: TopicName) -> bool:
        return self._answer("produce", topic)

    async def may_consume(self, role: str, topic: TopicName, subscription: str) -> bool:
        return self._answer("consume", topic)


RIGHTS = {
    "look up": (("GET", ""), ("GET", "/stats"), ("GET", "/properties"), ("GET", "/explain")),
    "consume": (
        ("PUT", "/subscriptions/s"),
        ("DELETE", "/subscriptions/s"),
        ("POST", "/subscriptions/s/seek?timestamp=1"),
        ("POST", "/subscriptions/s/skip-all"),
    ),
    "produce": (("POST", "/migrate"),),
    "super user": (
        ("POST", "/split/0"),
        ("POST", "/merge/0/1"),
        ("POST", "/rebucket/0?buckets=2"),
    ),
    "administer": (
        ("PUT", ""),
        ("DELETE", "?force=true"),
        ("PUT", "/properties"),
        ("DELETE", "/properties?key=a"),
        ("GET", "/autoScalePolicy"),
        ("POST", "/autoScalePolicy"),
        ("DELETE", "/autoScalePolicy"),
    ),
}


@pytest.mark.parametrize("right", RIGHTS)
async def test_without_its_right_on_the_topic_a_call_is_refused(right: str) -> None:
    authorizer = Refusing(right)
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=authorizer) as rest:
        for method, tail in RIGHTS[right]:
            assert right in await rest.refused(method, T + tail, 403)
    where = "" if right == "super user" else TOPIC
    assert authorizer.asked == [f"{right} {where}"] * len(RIGHTS[right])


def test_every_call_has_its_right() -> None:
    assert {call for calls in RIGHTS.values() for call in calls} >= set(EVERY_CALL)


async def test_topics_are_listed_for_whom_the_namespace_allows_it() -> None:
    authorizer = Refusing("list topics")
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=authorizer) as rest:
        assert "list the topics of" in await rest.refused("GET", NS, 403)
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=Refusing("administer")) as rest:
        await rest.get(NS)


# -- two brokers


class OneOwner:
    """Every topic belongs to the first broker, once it is known, except those of `at_second`."""

    def __init__(self, is_first: bool, at_second: set[TopicName] | None = None) -> None:
        self._is_first = is_first
        self.at_second = set() if at_second is None else at_second
        self.first: Broker | None = None
        self.second: Broker | None = None

    def owner(self, topic: TopicName) -> BrokerAddress:
        found = self.second if topic in self.at_second else self.first
        assert found is not None
        return BrokerAddress(found.service_url, found.http_url)

    def is_mine(self, topic: TopicName) -> bool:
        return self._is_first != (topic in self.at_second)

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        return lambda: None

    def segments(self, owner: BrokerAddress) -> Segments:
        assert self.first is not None
        return self.first.segment_owner


@pytest.fixture
async def two() -> AsyncIterator[tuple[Rest, Rest]]:
    """Two brokers on one store; the first owns all segments."""
    store = MemoryMetadata(lambda: NOW_MS)
    at_second: set[TopicName] = set()
    one, other = OneOwner(True, at_second), OneOwner(False, at_second)
    async with (
        serving(store, http_url="http://one:8080", owners=one) as first,
        serving(store, http_url="http://other:8080", owners=other, remote_segments=other.segments) as second,
    ):
        one.first = other.first = first.broker
        one.second = other.second = second.broker
        yield first, second


def give(two: tuple[Rest, Rest], topic: str) -> None:
    """The second broker owns that topic from now on, and so leads it; its segments stay where they are."""
    owners = two[0].broker.owners
    assert isinstance(owners, OneOwner)
    owners.at_second.add(TopicName.parse(topic))


@contextlib.asynccontextmanager
async def following(*brokers: Rest) -> AsyncIterator[httpx.AsyncClient]:
    """A client that follows redirects from one broker to another."""
    mounts = {
        rest.broker.http_url: httpx.ASGITransport(create_app(rest.broker.admin_services(), rest.broker.page))
        for rest in brokers
    }
    async with httpx.AsyncClient(mounts=mounts, follow_redirects=True) as http:
        yield http


async def test_what_the_leader_must_do_is_redirected_to_it_word_for_word(two: tuple[Rest, Rest]) -> None:
    first, second = two
    path = f"{NS}/{quote('größe/a b', safe='')}"
    await made(first, 2, path)
    await first.call("POST", f"{path}/split/0", 204)
    for method, tail in (
        ("POST", "/split/1"),
        ("POST", "/merge/2/3"),
        ("POST", "/rebucket/1?buckets=4"),
        ("PUT", "/subscriptions/s%2Ft?type=QUEUE"),
        ("POST", "/subscriptions/s/seek?timestamp=17"),
        ("GET", "/stats"),
        ("DELETE", "?force=true"),
    ):
        answer = await second.call(method, path + tail, 307)
        assert answer.headers["location"] == f"http://one:8080{path}{tail}"


async def test_calls_at_any_broker_succeed_for_whoever_follows(two: tuple[Rest, Rest]) -> None:
    first, second = two
    give(two, TOPIC)
    await made(second, 1)
    await second.call("POST", f"{T}/split/0", 204)
    async with following(first, second) as http:
        assert (await http.post(f"http://one:8080{T}/split/1")).status_code == 204
        assert (await http.put(f"http://one:8080{T}/subscriptions/s")).status_code == 204
        assert (await http.post(f"http://one:8080{T}/split/1")).status_code == 412
        assert (await http.get(f"http://one:8080{T}/stats")).json()["controller"] == second.broker.service_url
        assert (await http.delete(f"http://one:8080{T}")).status_code == 204
    await first.refused("GET", T, 404)


async def test_a_namespace_is_deleted_wherever_its_topics_are_led(two: tuple[Rest, Rest]) -> None:
    first, second = two
    namespace, folder = "/admin/v2/namespaces/public/gone", "/admin/v2/scalable/public/gone"
    await first.call("PUT", namespace, 204)
    give(two, "topic://public/gone/b")
    for leader, name in ((first, "a"), (second, "b"), (first, "c")):
        await made(leader, 2, f"{folder}/{name}")
        await leader.call("POST", f"{folder}/{name}/split/0", 204)
    async with following(first, second) as http:
        assert (await http.delete(f"http://other:8080{namespace}?force=true")).status_code == 204
    await second.refused("GET", folder, 404)
    assert await first.broker.resources.scalable_names(NamespaceName("public", "gone")) == []


async def test_reads_are_answered_by_any_broker(two: tuple[Rest, Rest]) -> None:
    first, second = two
    await made(first, 2)
    await first.call("POST", f"{T}/split/0", 204)
    assert await second.get(T) == await first.get(T)
    assert await second.get(NS) == [TOPIC]


async def test_a_leader_that_is_gone_is_succeeded_by_the_broker_that_owns_the_topic(
    two: tuple[Rest, Rest],
) -> None:
    first, second = two
    await made(first, 1)
    await first.call("POST", f"{T}/split/0", 204)
    assert first.broker.scalable is not None
    give(two, TOPIC)
    await first.broker.scalable.release(TopicName.parse(TOPIC))
    await second.call("POST", f"{T}/split/1", 204)
    assert len(await active(first)) == 3


@pytest.mark.parametrize("number", ["-1", "٣", "0x1", str(2**63), "9" * 5000])
async def test_what_is_no_number_of_a_segment_is_told_so(rest: Rest, number: str) -> None:
    await rest.call("PUT", T, json={})
    assert "no segment id" in await rest.refused("POST", f"{T}/split/{number}", 400)


async def test_a_name_that_no_subscription_may_have_is_refused(rest: Rest) -> None:
    await made(rest)
    for path in (f"{T}/subscriptions", "/admin/v2/segments/public/default/orders/0000-ffff-0/subscription"):
        for length in (1025, 5000):
            reason = await rest.refused("PUT", f"{path}/{'s' * length}", 412)
            assert f"subscription name of {length}" in reason
