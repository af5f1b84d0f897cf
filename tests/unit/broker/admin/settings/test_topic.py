"""REST of a topic's own settings, of what it holds, of bundles, of dynamic settings, and the page that describes it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from anabranch.broker.admin.settings import namespace as settings
from anabranch.broker.admin.settings import topic as topic_settings
from anabranch.broker.policy.namespace import NamespacePolicies, Persistence, encode_policies
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.metadata.memory import MemoryMetadata
from unit.broker.admin.conftest import NOW_MS, Rest, serving

V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default"
T = f"{V2}/persistent/public/default/t"
S = f"{T}/subscription/s"


@pytest.fixture
async def topic(rest: Rest) -> Rest:
    await rest.call("PUT", T, 204)
    return rest


@pytest.mark.parametrize(
    ("setting", "value", "bad"),
    [
        ("retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 1}, {"retentionTimeInMinutes": 5}),
        ("deduplicationEnabled", True, "maybe"),
        ("maxProducers", 3, -1),
        ("maxConsumers", 3, 2**31),
        ("compactionThreshold", 1000, -1),
        ("delayedDelivery", {"tickTime": 1, "active": False, "maxDeliveryDelayInMillis": 0}, {"active": 2}),
        (
            "publishRate",
            {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
            {"publishThrottlingRateInMsg": "x"},
        ),
        ("schemaCompatibilityStrategy", "BACKWARD", "HOPEFUL"),
    ],
)
async def test_a_topics_setting_is_kept_until_it_is_removed(
    topic: Rest, setting: str, value: Any, bad: Any
) -> None:
    path = f"{T}/{setting}"
    await topic.call("GET", path, 204)
    await topic.call("POST", path, 204, json=value)
    assert await topic.get(path) == value
    answer = await topic.http.post(path, json=bad)
    assert answer.status_code in (400, 412)
    assert await topic.get(path) == value
    await topic.call("DELETE", path, 204)
    await topic.call("GET", path, 204)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "NaN", "Infinity"])
async def test_what_could_not_be_read_again_is_not_stored(number: str) -> None:
    store = MemoryMetadata(lambda: NOW_MS)
    value = {"managedLedgerMaxMarkDeleteRate": number}
    async with serving(store) as rest:
        await rest.call("PUT", T, 204)
        await rest.refused("POST", f"{T}/persistence", 400, json=value)
        await rest.refused("POST", f"{NS}/persistence", 400, json=value)
        await rest.refused(
            "PUT",
            f"{V2}/namespaces/public/odd",
            400,
            json={"persistence": value, "bundles": {"numBundles": 1}},
        )
        await rest.call("POST", f"{T}/persistence", 204, json={"managedLedgerMaxMarkDeleteRate": 1.5})
    async with serving(store) as rest:
        assert (await rest.get(f"{T}/persistence"))["managedLedgerMaxMarkDeleteRate"] == 1.5


def test_a_value_that_cannot_be_read_again_is_refused_before_it_is_stored() -> None:
    odd = NamespacePolicies(persistence=Persistence(mark_delete_rate_max=math.nan))
    with pytest.raises(InvalidValue):
        encode_policies(odd)


async def test_what_is_in_force_is_asked_for_with_applied(topic: Rest) -> None:
    await topic.call("POST", f"{NS}/messageTTL", 204, json=100)
    await topic.call("GET", f"{T}/messageTTL", 204)
    assert await topic.get(f"{T}/messageTTL?applied=true") == 100
    await topic.call("POST", f"{T}/messageTTL?messageTTL=7", 204)
    assert await topic.get(f"{T}/messageTTL?applied=true") == 7
    await topic.call("DELETE", f"{T}/policies", 204)
    assert await topic.get(f"{T}/messageTTL?applied=true") == 100


async def test_partitions_share_their_topics_settings(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/partitions", 204, json=2)
    await rest.call("POST", f"{T}/maxProducers", 204, json=1)
    assert await rest.get(f"{T}-partition-1/maxProducers") == 1
    await rest.call("DELETE", f"{T}/partitions", 204)
    await rest.refused("GET", f"{T}/maxProducers", 404)
    await rest.call("PUT", f"{T}/partitions", 204, json=1)
    await rest.call("GET", f"{T}/maxProducers", 204)


async def test_a_topics_settings_outlive_the_broker() -> None:
    store = MemoryMetadata(lambda: NOW_MS)
    async with serving(store) as first:
        await first.call("PUT", T, 204)
        await first.call("POST", f"{T}/maxProducers", 204, json=4)
        await first.call("POST", f"{V2}/brokers/configuration/maxTopicsPerNamespace/9", 200)
    async with serving(store) as second:
        assert await second.get(f"{T}/maxProducers") == 4
        assert await second.get(f"{V2}/brokers/configuration/values") == {"maxTopicsPerNamespace": "9"}
        assert second.broker.config.max_topics_per_namespace == 9


async def test_settings_of_a_topic_that_is_not_there_are_refused(rest: Rest) -> None:
    await rest.refused("GET", f"{T}/retention", 404)
    await rest.refused("POST", f"{T}/maxProducers", 404, json=1)
    await rest.refused("GET", f"{V2}/persistent/public/nowhere/t/retention", 404)


async def test_what_nothing_would_obey_is_refused_with_the_reason(topic: Rest) -> None:
    for path, table in ((T, topic_settings.UNSERVED), (NS, settings.UNSERVED)):
        for one in table:
            await topic.call("GET", f"{path}/{one.path}", 204 if one.unset is None else 200)
            assert one.why in await topic.refused("POST", f"{path}/{one.path}", 405, json={})


async def test_dynamic_settings_act_at_once_and_can_be_taken_back(topic: Rest) -> None:
    configuration = f"{V2}/brokers/configuration"
    assert "allowAutoTopicCreation" in await topic.get(configuration)
    await topic.call("POST", f"{configuration}/allowAutoTopicCreation/false", 200)
    assert (await topic.get(f"{configuration}/runtime"))["allowAutoTopicCreation"] == "false"
    await topic.refused("PUT", f"{V2}/persistent/public/default/new/subscription/s", 404)
    await topic.call("DELETE", f"{configuration}/allowAutoTopicCreation", 200)
    await topic.call("PUT", f"{V2}/persistent/public/default/new/subscription/s", 204)
    assert "restart" in await topic.refused("POST", f"{configuration}/dataDir/x", 412)
    await topic.refused("POST", f"{configuration}/maxProducersPerTopic/many", 412)
    await topic.refused("DELETE", f"{configuration}/maxProducersPerTopic", 404)


async def test_a_backlog_is_counted_from_anywhere(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    ids = await rest.publish("t", b"1", b"2", b"3")
    found = (await rest.call("POST", f"{S}/analyzeBacklog")).json()
    assert (found["entries"], found["messages"], found["aborted"]) == (3, 3, False)
    assert found["firstMessageId"] == f"{ids[0][0]}:{ids[0][1]}"
    at = {"ledgerId": ids[2][0], "entryId": ids[2][1]}
    assert (await rest.call("POST", f"{S}/analyzeBacklog", json=at)).json()["entries"] == 1
    assert (await rest.call("PUT", f"{T}/backlogSize", json=at)).json() > 0
    await rest.refused("POST", f"{T}/subscription/nobody/analyzeBacklog", 404)


async def test_properties_of_topics_and_subscriptions_are_changed(rest: Rest) -> None:
    await rest.call("PUT", T, 204, json={"a": "1"})
    await rest.call("PUT", f"{T}/properties", 204, json={"b": "2"})
    assert await rest.get(f"{T}/properties") == {"a": "1", "b": "2"}
    await rest.call("DELETE", f"{T}/properties?key=a", 204)
    assert await rest.get(f"{T}/properties") == {"b": "2"}
    await rest.call("PUT", S, 204)
    await rest.call("PUT", f"{S}/properties", 204, json={"c": "3"})
    assert await rest.get(f"{S}/properties") == {"c": "3"}
    assert await rest.get(f"{S}/replicatedSubscriptionStatus") == {"persistent://public/default/t": False}
    await rest.refused("POST", f"{S}/replicatedSubscriptionStatus", 405, json=True)


async def test_a_bundle_is_unloaded_cleared_and_split(rest: Rest) -> None:
    await rest.call("PUT", S, 204)
    await rest.publish("t", b"1")
    bundle = (await rest.call("GET", "/lookup/v2/topic/persistent/public/default/t/bundle")).text
    assert (await rest.get(f"{NS}/{bundle}/topicHashPositions"))["topicHashPositions"].keys() == {
        "persistent://public/default/t"
    }
    await rest.call("PUT", f"{NS}/{bundle}/unload", 204)
    await rest.call("POST", f"{NS}/{bundle}/clearBacklog", 204)
    assert (await rest.get(f"{T}/stats"))["subscriptions"]["s"]["msgBacklog"] == 0
    before = (await rest.get(f"{NS}/bundles"))["numBundles"]
    await rest.call("PUT", f"{NS}/{bundle}/split", 204)
    assert (await rest.get(f"{NS}/bundles"))["numBundles"] == before + 1
    await rest.refused("PUT", f"{NS}/0x00000000_0x00000001/unload", 412)


async def test_broker_stats_are_those_tools_poll(topic: Rest) -> None:
    await topic.publish("t", b"1")
    by_bundle = (await topic.get(f"{V2}/broker-stats/topics"))["public/default"]
    assert [list(domains["persistent"]) for domains in by_bundle.values()] == [
        ["persistent://public/default/t"]
    ]
    assert (await topic.get(f"{V2}/broker-stats/metrics"))[0]["metrics"]["brk_no_of_topics"] == 1
    assert (await topic.get(f"{V2}/broker-stats/load-report"))["numTopics"] == 1


async def test_the_page_describes_every_operation_and_loads_nothing(rest: Rest) -> None:
    page = (await rest.call("GET", "/docs")).text
    described = await rest.get("/openapi.json")
    for path, operations in described["paths"].items():
        assert path in page
        for operation in operations.values():
            assert {one["name"] for one in operation["parameters"] if one["in"] == "path"} >= {
                part[1:-1] for part in path.replace(":path}", "}").split("/") if part.startswith("{")
            }
    for word in ("<script", "src=", "http://cdn", "https://"):
        assert word not in page
    assert "limitSize" in page, "bodies are described too"


async def test_key_value_schemas_are_sent_and_shown_with_both_parts_in_them(rest: Rest) -> None:
    path = f"{V2}/schemas/public/default/t"
    value = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    sent = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": "", "value": value}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
    }
    await rest.call("POST", f"{path}/schema", json=sent)
    assert json.loads((await rest.get(f"{path}/schema"))["data"]) == {"key": "", "value": value}
    assert (await rest.call("POST", f"{path}/version", json=sent)).json() == {"version": 0}
    value["fields"].append({"name": "b", "type": "string"})  # type: ignore[attr-defined]
    sent["schema"] = json.dumps({"key": "", "value": value})
    answer = (await rest.call("POST", f"{path}/compatibility", json=sent)).json()
    assert answer == {
        "compatibility": False,
        "schemaCompatibilityStrategy": "FULL",
        "reason": "field b is missing on one side and has no default",
    }
    await rest.refused("POST", f"{path}/schema", 422, json={**sent, "schema": "[]"})


@pytest.mark.parametrize(
    ("kind", "definition"),
    [("AVRO", "hello"), ("AVRO", '{"type": "record"}'), ("JSON", "[]"), ("PROTOBUF_NATIVE", "{}")],
)
async def test_what_is_no_schema_is_refused_as_such(rest: Rest, kind: str, definition: str) -> None:
    sent = {"type": kind, "schema": definition, "properties": {}}
    path = f"{V2}/schemas/public/default/t/schema"
    assert "Invalid schema definition" in await rest.refused("POST", path, 422, json=sent)
    await rest.refused("GET", path, 404)


async def test_what_is_in_force_is_the_configurations_where_nothing_is_set(topic: Rest) -> None:
    for setting, value in (
        ("retention", {"retentionTimeInMinutes": 10080, "retentionSizeInMB": -1}),
        ("messageTTL", 0),
        ("maxUnackedMessagesOnConsumer", 50_000),
        ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": True}),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30}),
    ):
        await topic.call("GET", f"{T}/{setting}", 204)
        assert await topic.get(f"{T}/{setting}?applied=true") == value
    quotas = await topic.get(f"{T}/backlogQuotaMap?applied=true")
    assert quotas["destination_storage"]["limitSize"] == -1
