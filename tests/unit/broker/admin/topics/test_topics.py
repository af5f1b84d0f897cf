"""REST of topics: making, partitions, figures, the end."""

from __future__ import annotations

import json

import pytest

from anabranch.broker.observe.topic_stats import RUNS_SHOWN_MAX
from anabranch.broker.state.cursor import Cursor
from anabranch.client import RequestRefused
from anabranch.wire import pulsar_pb2 as pb
from unit.broker.admin.conftest import Rest
from unit.broker.admin.http.test_large import Turns

V2 = "/admin/v2"
DEFAULT = f"{V2}/persistent/public/default"
BATCH = {"batchIndex": -1, "batchSize": 0}
T = f"{DEFAULT}/t"


async def test_a_topic_is_made_once_listed_and_deleted(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    await rest.refused("PUT", T, 409)
    assert await rest.get(DEFAULT) == ["persistent://public/default/t"]
    assert await rest.get(f"{V2}/namespaces/public/default/topics") == ["persistent://public/default/t"]
    assert await rest.get(f"{T}/partitions") == {"partitions": 0, "deleted": False}
    await rest.call("DELETE", T, 204)
    await rest.refused("DELETE", T, 404)
    await rest.refused("GET", f"{T}/stats", 404)
    await rest.refused("GET", f"{T}/partitions", 404)
    assert await rest.get(DEFAULT) == []


@pytest.mark.parametrize(
    "local", ["a%2520b", "with%20space", "with+space", "%C3%BCber", "a%252Fb", "x%3Fy%23z"]
)
async def test_names_with_odd_characters_are_the_same_over_rest_and_wire(rest: Rest, local: str) -> None:
    await rest.call("PUT", f"{DEFAULT}/{local}", 204, json={"owner": "me"})
    [name] = await rest.get(DEFAULT)
    await rest.publish(name, b"x")
    assert (await rest.get(f"{DEFAULT}/{local}/stats"))["msgInCounter"] == 1
    assert await rest.get(f"{DEFAULT}/{local}/properties") == {"owner": "me"}


async def test_a_slash_in_a_local_name_is_refused_clearly(rest: Rest) -> None:
    assert "cluster" in await rest.refused("PUT", f"{DEFAULT}/a%2Fb", 412)


async def test_a_topic_in_use_is_deleted_only_by_force(rest: Rest) -> None:
    consumer = await rest.client.consumer("t", "s")
    assert "active" in await rest.refused("DELETE", T, 412)
    await consumer.close()
    await rest.call("PUT", f"{T}/subscription/idle", 204)
    await rest.call("DELETE", T, 204)
    assert await rest.get(DEFAULT) == []


async def test_a_partitioned_topic_grows_is_described_and_deleted(rest: Rest) -> None:
    path = f"{DEFAULT}/p"
    await rest.call("PUT", f"{path}/partitions", 204, content=b"2")
    assert (await rest.get(f"{path}/partitions"))["partitions"] == 2
    assert await rest.get(f"{DEFAULT}/partitioned") == ["persistent://public/default/p"]
    assert await rest.get(DEFAULT) == [f"persistent://public/default/p-partition-{i}" for i in range(2)]
    await rest.refused("PUT", f"{path}/partitions", 409, json=2)
    await rest.refused("PUT", path, 409)
    await rest.refused("GET", f"{path}/stats", 404)
    await rest.refused("DELETE", path, 409)
    await rest.call("PUT", f"{path}/subscription/s", 204, json="earliest")
    await rest.call("POST", f"{path}/partitions", 204, json=3)
    await rest.refused("POST", f"{path}/partitions", 422, json=1)
    await rest.publish("p-partition-2", b"1", b"2")
    await rest.publish("p-partition-0", b"3")
    stats = await rest.get(f"{path}/partitioned-stats")
    assert stats["metadata"]["partitions"] == 3
    assert stats["msgInCounter"] == 3
    assert stats["subscriptions"]["s"]["msgBacklog"] == 3
    assert len(stats["partitions"]) == 3
    assert (await rest.get(f"{path}/partitioned-stats?perPartition=false"))["partitions"] == {}
    consumer = await rest.client.consumer("p-partition-1", "s")
    await rest.refused("DELETE", f"{path}/partitions", 412)
    await consumer.close()
    await rest.call("DELETE", f"{path}/partitions", 204)
    await rest.refused("DELETE", f"{path}/partitions", 404)
    assert await rest.get(DEFAULT) == []


async def test_partitions_may_come_with_properties(rest: Rest) -> None:
    body = json.dumps({"partitions": 1, "properties": {"a": "b"}}).encode()
    kind = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}
    await rest.call("PUT", f"{T}/partitions", 204, content=body, headers=kind)
    assert await rest.get(f"{T}/properties") == {"a": "b"}


@pytest.mark.parametrize(("count", "status"), [(0, 406), (-1, 406), (10**9, 406), ("x", 400), (None, 400)])
async def test_impossible_numbers_of_partitions_are_refused(rest: Rest, count: object, status: int) -> None:
    await rest.refused("PUT", f"{T}/partitions", status, json=count)


async def test_a_topic_named_as_a_partition_needs_its_partitioned_topic(rest: Rest) -> None:
    await rest.refused("PUT", f"{DEFAULT}/p-partition-0", 412)
    await rest.refused("POST", f"{DEFAULT}/p/createMissedPartitions", 404)
    await rest.call("PUT", f"{DEFAULT}/p/partitions", 204, json=1)
    await rest.refused("PUT", f"{DEFAULT}/p-partition-0", 409)
    await rest.refused("PUT", f"{DEFAULT}/p-partition-1", 412)


async def test_topics_are_listed_by_bundle(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    bundle = (await rest.call("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")).text
    assert await rest.get(f"{DEFAULT}?bundle={bundle}") == ["persistent://public/default/t"]
    assert await rest.get(f"{DEFAULT}?bundle=0x00000000_0x00000001") == []
    await rest.refused("DELETE", f"{V2}/namespaces/public/default/{bundle}", 409)
    await rest.call("DELETE", f"{V2}/namespaces/public/default/{bundle}?force=true", 204)
    assert await rest.get(DEFAULT) == []


async def test_stats_leave_out_and_look_up_what_is_asked_for(rest: Rest) -> None:
    consumer = await rest.client.consumer("t", "s")
    await rest.publish("t", b"1")
    plain = await rest.get(f"{T}/stats")
    assert plain["earliestMsgPublishTimeInBacklogs"] == 0
    assert plain["lastPublishTimeStamp"] > 0
    assert len(plain["subscriptions"]["s"]["consumers"]) == 1
    asked = await rest.get(f"{T}/stats?getEarliestTimeInBacklog=true&excludeConsumers=true")
    assert asked["earliestMsgPublishTimeInBacklogs"] == plain["lastPublishTimeStamp"]
    assert asked["oldestBacklogMessageSubscriptionName"] == "s"
    assert asked["subscriptions"]["s"]["consumers"] == []
    await consumer.close()


async def test_what_is_stored_of_a_topic_is_shown(rest: Rest) -> None:
    [at] = await rest.publish("t", b"1")
    await rest.call("PUT", f"{T}/subscription/s", 204, json="earliest")
    info = await rest.get(f"{T}/internal-info")
    assert [ledger["ledgerId"] for ledger in info["ledgers"]] == [at[0]]
    assert info["cursors"]["s"]["markDelete"].keys() == {"ledgerId", "entryId"}
    await rest.call("PUT", f"{DEFAULT}/p/partitions", 204, json=2)
    assert len((await rest.get(f"{DEFAULT}/p/internal-info"))["partitions"]) == 2


async def test_a_terminated_topic_takes_no_more(rest: Rest) -> None:
    [_, last] = await rest.publish("t", b"1", b"2")
    ended = await rest.call("POST", f"{T}/terminate")
    assert ended.json() == {"ledgerId": last[0], "entryId": last[1], "partitionIndex": -1} | BATCH
    assert (await rest.get(f"{T}/lastMessageId"))["entryId"] == last[1]
    with pytest.raises(RequestRefused) as refused:
        await rest.client.producer("t")
    assert refused.value.error == pb.TopicTerminatedError
    await rest.call("PUT", f"{DEFAULT}/p/partitions", 204, json=2)
    await rest.refused("POST", f"{DEFAULT}/p/terminate", 405)
    assert set((await rest.call("POST", f"{DEFAULT}/p/terminate/partitions")).json()) == {"0", "1"}


async def test_an_unloaded_topic_opens_again_with_all_it_had(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"1", b"2")
    await rest.call("PUT", f"{T}/unload", 204)
    await rest.call("PUT", f"{V2}/namespaces/public/default/unload", 204)
    assert not rest.broker.loaded()
    assert (await rest.get(f"{T}/stats"))["subscriptions"]["s"]["msgBacklog"] == 2
    assert (await rest.get(f"{T}/internalStats"))["numberOfEntries"] == 2
    await rest.refused("PUT", f"{DEFAULT}/absent/unload", 404)


async def test_internal_stats_tell_the_size_of_every_ledger(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"1", b"2")
    first = await rest.get(f"{T}/internalStats")
    assert first["currentLedgerSize"] == first["totalSize"] == first["ledgers"][-1]["size"] > 0
    await rest.call("PUT", f"{T}/unload", 204)
    await rest.publish("t", b"3")
    then = await rest.get(f"{T}/internalStats")
    assert 0 < then["currentLedgerSize"] < first["totalSize"]
    assert sum(ledger["size"] for ledger in then["ledgers"]) == then["totalSize"] > first["totalSize"]


async def test_stats_of_very_many_subscriptions_are_made_in_turns(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    (topic,) = rest.broker.loaded().values()
    turns, taken = Turns(), []
    for many in (0, 2000):
        for n in range(many):
            made = topic.subscribing.make(f"r{n}", Cursor(topic.log.first), is_durable=False)
            topic.subscribing.all[f"r{n}"] = made
        before = turns.count
        assert len((await rest.get(f"{T}/stats"))["subscriptions"]) == many + 1
        taken.append(turns.count - before)
    turns.close()
    assert taken[1] >= taken[0] + 9


async def test_internal_stats_name_the_first_of_very_many_holes(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.call("PUT", f"{T}/subscription/other", 204)
    (topic,) = rest.broker.loaded().values()
    for name in ("s", "other"):
        ledger, first = topic.subscriptions[name].cursor.next
        for n in range(RUNS_SHOWN_MAX - 10):
            topic.subscriptions[name].cursor.ack((ledger, first + 2 * n + 1))
    told = (await rest.get(f"{T}/internalStats"))["cursors"]
    shown = [told[name]["individuallyDeletedMessages"] for name in ("s", "other")]
    assert [text.count("..") for text in shown] == [RUNS_SHOWN_MAX - 10, 10]
    assert shown[1].endswith("],…]")
    assert "…" not in shown[0]
    assert told["other"]["totalNonContiguousDeletedMessagesRange"] == RUNS_SHOWN_MAX - 10


async def test_lookup_names_this_broker(rest: Rest) -> None:
    found = await rest.get("/lookup/v2/topic/persistent/public/default/t")
    assert found["brokerUrl"] == found["nativeUrl"] == rest.broker.service_url
    assert found["httpUrl"] == "http://localhost:8080"
    bundle = await rest.call("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")
    assert bundle.text.startswith("0x")
    await rest.refused("GET", "/lookup/v2/topic/persistent/no/body/t", 404)
    await rest.refused("GET", "/lookup/v2/topic/kafka/public/default/t", 400)


async def test_http_lookups_may_create_what_policy_says(rest: Rest) -> None:
    auto = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    await rest.call("POST", f"{V2}/namespaces/public/default/autoTopicCreation", 204, json=auto)
    assert (await rest.get(f"{T}/partitions?checkAllowAutoCreation=true"))["partitions"] == 3


async def test_schemas_are_versioned(rest: Rest) -> None:
    path = f"{V2}/schemas/public/default/t/schema"
    await rest.refused("GET", path, 404)
    for number in (0, 1):
        # A field with a default may come and go under every strategy.
        fields = [{"name": f"f{n}", "type": "int", "default": 0} for n in range(number + 1)]
        record = {"type": "record", "name": "R", "fields": fields}
        schema = {"type": "JSON", "schema": json.dumps(record), "properties": {"p": "q"}}
        assert (await rest.call("POST", path, json=schema)).json() == {"version": {"version": number}}
    assert (await rest.get(path))["version"] == 1
    first = await rest.get(f"{path}/0")
    assert (first["type"], first["properties"]) == ("JSON", {"p": "q"})
    assert [field["name"] for field in json.loads(first["data"])["fields"]] == ["f0"]
    assert len((await rest.get(f"{path}s"))["getSchemaResponses"]) == 2
    await rest.refused("GET", f"{path}/7", 404)
    await rest.refused("POST", path, 409, json={"type": "STRING"})
    await rest.refused("POST", path, 422, json={"type": "POETRY"})
    assert (await rest.call("DELETE", path)).json() == {"version": 2}
    await rest.refused("GET", path, 404)


async def test_metrics_have_pulsars_names_and_count_truly(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    await rest.publish("t", b"x" * 100, b"y" * 100)
    page = (await rest.call("GET", "/metrics")).text
    labels = 'cluster="standalone",namespace="public/default",topic="persistent://public/default/t"'
    assert f"pulsar_in_messages_total{{{labels}}} 2\n" in page
    assert f"pulsar_msg_backlog{{{labels}}} 2\n" in page
    assert f'pulsar_subscription_back_log{{{labels},subscription="s"}} 2\n' in page
    assert 'pulsar_topics_count{cluster="standalone",namespace="public/default"} 1\n' in page
    assert "# TYPE pulsar_in_messages_total counter\n" in page
    assert "anabranch_log_live_bytes" in page
    families = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for line in page.splitlines():
        # -1 is for no quota, and for no backlog.
        assert line.startswith(("#", "pulsar_storage_backlog_")) or not float(line.split()[-1]) < 0
