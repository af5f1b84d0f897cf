"""What admin clients in other languages read and compare: found with the tests of Pulsar's client for Go."""

from __future__ import annotations

import pytest

from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.admin.conftest import NOW_MS, Rest

V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default"
DEFAULT = f"{V2}/persistent/public/default"
T = f"{DEFAULT}/t"


async def test_stats_tell_when_a_topic_was_made_published_to_and_connected_to(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    before = await rest.get(f"{T}/stats")
    assert (before["topicCreationTimeStamp"], before["lastPublishTimeStamp"]) == (NOW_MS, 0)
    producer = await rest.client.producer("t")
    await (await producer.send(b"x"))
    after = await rest.get(f"{T}/stats")
    assert after["lastPublishTimeStamp"] > 0
    assert after["publishers"][0]["connectedSince"].startswith("2023-11-14T22:13:20")


async def test_stats_of_partitions_have_the_first_creation_and_the_last_publish(rest: Rest) -> None:
    await rest.call("PUT", f"{DEFAULT}/p/partitions", 204, json=2)
    await rest.publish("p-partition-1", b"x")
    stats = await rest.get(f"{DEFAULT}/p/partitioned-stats")
    assert stats["topicCreationTimeStamp"] == NOW_MS
    published = [one["lastPublishTimeStamp"] for one in stats["partitions"].values()]
    assert stats["lastPublishTimeStamp"] == max(published) > min(published) == 0


async def test_producers_of_a_terminated_topic_are_closed_and_told_when_they_come_back(rest: Rest) -> None:
    producer = await rest.client.producer("t")
    await (await producer.send(b"last"))
    await rest.call("POST", f"{T}/terminate")
    with pytest.raises(ConnectionLost, match="closed the producer"):
        await (await producer.send(b"too late"))
    with pytest.raises(RequestRefused) as refused:
        await rest.client.producer("t")
    assert refused.value.error == pb.TopicTerminatedError


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ({"topicType": "partitioned"}, "[defaultNumPartitions] cannot be null when the type is partitioned."),
        (
            {"topicType": "partitioned", "defaultNumPartitions": -1},
            "[defaultNumPartitions] cannot be less than 1 for partition type.",
        ),
        (
            {"topicType": "non-partitioned", "defaultNumPartitions": 3},
            "[defaultNumPartitions] is not allowed to be set when the type is non-partition.",
        ),
        ({"topicType": ""}, "[topicType] is missing: give partitioned or non-partitioned."),
    ],
)
async def test_faults_of_automatic_creation_are_told_in_the_words_that_clients_know(
    rest: Rest, sent: dict[str, object], fault: str
) -> None:
    reason = await rest.refused(
        "POST", f"{NS}/autoTopicCreation", 412, json={"allowAutoTopicCreation": True, **sent}
    )
    assert reason == f"Invalid configuration for autoTopicCreationOverride. the detail is {fault}"


async def test_automatic_creation_is_switched_off_without_a_type(rest: Rest) -> None:
    off = {"allowAutoTopicCreation": False, "topicType": ""}
    await rest.call("POST", f"{NS}/autoTopicCreation", 204, json=off)
    assert (await rest.get(f"{NS}/autoTopicCreation"))["allowAutoTopicCreation"] is False
    await rest.refused("PUT", f"{DEFAULT}/new/subscription/s", 404)


async def test_a_namespace_that_is_missing_is_told_in_the_words_that_clients_know(rest: Rest) -> None:
    path = f"{V2}/namespaces/public/none/schemaCompatibilityStrategy"
    assert await rest.refused("PUT", path, 404, json="FULL") == "Namespace does not exist"


async def test_numbers_below_zero_are_refused_in_the_words_that_clients_know(rest: Rest) -> None:
    reason = await rest.refused("POST", f"{NS}/maxTopicsPerNamespace", 412, json=-1)
    assert reason == "maxTopicsPerNamespace must be 0 or more"
    reason = await rest.refused("POST", f"{NS}/subscriptionExpirationTime", 412, json=-1)
    assert reason == "Invalid value for subscription expiration time"


async def test_a_look_through_a_subscription_that_is_not_there_makes_none(rest: Rest) -> None:
    await rest.publish("t", b"1", b"2")
    assert (await rest.call("GET", f"{T}/subscription/nobody/position/2")).content == b"2"
    await rest.refused("GET", f"{T}/subscription/nobody/position/3", 404)
    assert await rest.get(f"{T}/subscriptions") == []


async def test_dynamic_settings_that_mean_nothing_here_are_kept_and_odd_booleans_are_false(
    rest: Rest,
) -> None:
    configuration = f"{V2}/brokers/configuration"
    unused = "entryFilterNames"
    await rest.call("POST", f"{configuration}/{unused}/a%2Fb", 200)
    await rest.call("POST", f"{configuration}/allowAutoSubscriptionCreation/%7B%7D", 200)
    assert await rest.get(f"{configuration}/values") == {
        unused: "a/b",
        "allowAutoSubscriptionCreation": "{}",
    }
    assert (await rest.get(f"{configuration}/runtime"))["allowAutoSubscriptionCreation"] == "false"
    await rest.call("DELETE", f"{configuration}/{unused}", 200)
    await rest.call("POST", f"{configuration}/allowAutoSubscriptionCreation/true", 200)
    assert (await rest.get(f"{configuration}/runtime"))["allowAutoSubscriptionCreation"] == "true"
