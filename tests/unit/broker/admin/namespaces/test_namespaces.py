"""REST of clusters, tenants, namespaces and their settings."""

from __future__ import annotations

from typing import Any

import pytest

from unit.broker.admin.conftest import Rest

V2 = "/admin/v2"
SALES = f"{V2}/namespaces/acme/sales"


@pytest.fixture
async def sales(rest: Rest) -> Rest:
    await rest.call("PUT", f"{V2}/tenants/acme", 204, json={"allowedClusters": ["standalone"]})
    await rest.call("PUT", SALES, 204)
    return rest


async def test_a_new_broker_shows_what_clients_take_for_granted(rest: Rest) -> None:
    assert await rest.get(f"{V2}/clusters") == ["standalone"]
    assert (await rest.get(f"{V2}/clusters/standalone"))["serviceUrl"] == "http://localhost:8080"
    assert await rest.get(f"{V2}/tenants") == ["public", "pulsar"]
    assert await rest.get(f"{V2}/namespaces/public") == ["public/default"]
    assert await rest.get(f"{V2}/brokers/standalone") == ["localhost:8080"]
    for path in ("brokers/health", "brokers/ready"):
        answer = await rest.call("GET", f"{V2}/{path}")
        assert (answer.text, answer.headers["content-type"].partition(";")[0]) == ("ok", "text/plain")
    assert (await rest.call("GET", "/status.html")).text == "OK"
    assert (await rest.call("GET", f"{V2}/brokers/version")).text.startswith("Anabranch ")
    assert (await rest.get(f"{V2}/brokers/configuration/runtime"))["maxMessageSize"] == "5242880"


async def test_tenants_are_made_changed_and_deleted(sales: Rest) -> None:
    await sales.refused("PUT", f"{V2}/tenants/acme", 409)
    await sales.call(
        "POST", f"{V2}/tenants/acme", 204, json={"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    )
    assert (await sales.get(f"{V2}/tenants/acme"))["adminRoles"] == ["boss"]
    await sales.refused("POST", f"{V2}/tenants/acme", 412, json={"allowedClusters": ["mars"]})
    await sales.refused("POST", f"{V2}/tenants/nobody", 404, json={"allowedClusters": ["standalone"]})
    await sales.refused("POST", f"{V2}/tenants/acme", 412, json={"adminRoles": []})
    await sales.refused("PUT", f"{V2}/tenants/a%20b", 412)
    await sales.refused("DELETE", f"{V2}/tenants/acme", 409)
    await sales.call("DELETE", SALES, 204)
    await sales.call("DELETE", f"{V2}/tenants/acme", 204)
    await sales.refused("GET", f"{V2}/tenants/acme", 404)


async def test_force_deletes_a_tenant_with_all_it_has(sales: Rest) -> None:
    await sales.publish("acme/sales/orders", b"1")
    await sales.call("PUT", f"{V2}/persistent/acme/sales/parted/partitions", 204, json=2)
    await sales.refused("DELETE", SALES, 409)
    await sales.call("DELETE", f"{V2}/tenants/acme?force=true", 204)
    assert await sales.get(f"{V2}/tenants") == ["public", "pulsar"]
    await sales.refused("GET", SALES, 404)


async def test_namespaces_show_their_policies_under_pulsars_names(sales: Rest) -> None:
    await sales.refused("PUT", SALES, 409)
    await sales.refused("PUT", f"{V2}/namespaces/nobody/ns", 404)
    policies = {
        "bundles": {"numBundles": 16, "boundaries": None},
        "message_ttl_in_seconds": 9,
        "persistence": None,
    }
    await sales.call("PUT", f"{V2}/namespaces/acme/other", 204, json=policies)
    shown = await sales.get(f"{V2}/namespaces/acme/other")
    assert shown["message_ttl_in_seconds"] == 9
    assert shown["replication_clusters"] == ["standalone"]
    bundles = await sales.get(f"{V2}/namespaces/acme/other/bundles")
    assert bundles["numBundles"] == 16
    assert bundles["boundaries"][:2] == ["0x00000000", "0x10000000"]
    assert await sales.get(f"{V2}/namespaces/acme") == ["acme/other", "acme/sales"]


@pytest.mark.parametrize(
    ("setting", "value", "bad"),
    [
        ("retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}, {"retentionTimeInMinutes": 1}),
        ("messageTTL", 60, -1),
        ("deduplication", True, "perhaps"),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
            {"allowAutoTopicCreation": True, "topicType": "partitioned"},
        ),
        (
            "persistence",
            {
                "bookkeeperEnsemble": 1,
                "bookkeeperWriteQuorum": 1,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 0.5,
            },
            "x",
        ),
    ],
)
async def test_a_setting_is_unset_set_refused_when_bad_and_unset_again(
    sales: Rest, setting: str, value: Any, bad: Any
) -> None:
    path = f"{SALES}/{setting}"
    await sales.call("GET", path, 204)
    await sales.call("POST", path, 204, json=value)
    assert await sales.get(path) == value
    answer = await sales.http.post(path, json=bad)
    assert answer.status_code in (400, 412)
    assert answer.json().keys() == {"reason"}
    assert await sales.get(path) == value
    await sales.call("DELETE", path, 204)
    await sales.call("GET", path, 204)


@pytest.mark.parametrize(
    ("setting", "unset", "value"), [("isAllowAutoUpdateSchema", True, False), ("maxTopicsPerNamespace", 0, 7)]
)
async def test_some_settings_have_a_value_where_nothing_is_set(
    sales: Rest, setting: str, unset: Any, value: Any
) -> None:
    path = f"{SALES}/{setting}"
    assert await sales.get(path) == unset
    await sales.call("POST", path, 204, json=value)
    assert await sales.get(path) == value
    await sales.call("DELETE", path, 204)
    assert await sales.get(path) == unset


async def test_a_number_out_of_its_range_is_refused_as_pulsar_does(sales: Rest) -> None:
    await sales.refused("POST", f"{SALES}/maxProducersPerTopic", 412, json=-1)
    await sales.refused("POST", f"{SALES}/maxProducersPerTopic", 400, json="x")
    await sales.refused("POST", f"{SALES}/retention", 400, json={"retentionTimeInMinutes": 1})
    quorums = {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}
    await sales.refused("POST", f"{SALES}/persistence", 400, json=quorums)


async def test_sending_nothing_removes_what_clients_cannot_remove_otherwise(sales: Rest) -> None:
    path = f"{SALES}/deduplicationSnapshotInterval"
    await sales.call("POST", path, 204, json=30)
    await sales.call("POST", path, 204)
    await sales.call("GET", path, 204)
    await sales.refused("POST", f"{SALES}/messageTTL", 400)


async def test_a_clusters_addresses_are_those_of_their_kind(sales: Rest) -> None:
    assert "http://" in await sales.refused("PUT", f"{V2}/clusters/odd", 400, json={"serviceUrl": "river"})
    await sales.refused("POST", f"{V2}/clusters/standalone/peers", 405, json=["west"])
    await sales.refused("GET", f"{V2}/clusters/standalone/namespaceIsolationPolicies", 404)


async def test_quotas_are_shown_with_every_field(sales: Rest) -> None:
    await sales.call("POST", f"{SALES}/backlogQuota", 204, json={"limit": 9, "policy": "producer_exception"})
    shown = {"limit": 9, "limitSize": 9, "limitTime": -1, "policy": "producer_exception"}
    assert await sales.get(f"{SALES}/backlogQuotaMap") == {"destination_storage": shown}
    assert (await sales.get(SALES))["backlog_quota_map"] == {"destination_storage": shown}


@pytest.mark.parametrize(
    ("path", "status"), [("/admin/v3/sinks/acme/sales", 409), ("/admin/v3/transactions/coordinators", 503)]
)
async def test_services_that_are_not_there_say_so(sales: Rest, path: str, status: int) -> None:
    assert "here" in await sales.refused("GET", path, status)


@pytest.mark.parametrize("setting", ["offloadPolicies", "replicatorDispatchRate", "entryFilters"])
async def test_a_setting_that_would_not_be_obeyed_is_not_taken(sales: Rest, setting: str) -> None:
    await sales.call("GET", f"{SALES}/{setting}", 204)
    assert "is not supported" in await sales.refused("POST", f"{SALES}/{setting}", 405, json=3)
    await sales.call("DELETE", f"{SALES}/{setting}", 204)


async def test_schema_strategies_are_those_pulsar_knows(sales: Rest) -> None:
    path = f"{SALES}/schemaCompatibilityStrategy"
    assert await sales.get(path) == "UNDEFINED"
    await sales.call("PUT", path, 204, json="BACKWARD")
    assert await sales.get(path) == "BACKWARD"
    await sales.refused("PUT", path, 400, json="HOPEFUL")


async def test_the_application_describes_itself(rest: Rest) -> None:
    described = await rest.get("/openapi.json")
    assert "/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats" in described["paths"]


async def test_values_may_be_sent_as_text_and_without_a_content_type(sales: Rest) -> None:
    await sales.call("POST", f"{SALES}/messageTTL", 204, content=b"60")
    await sales.call(
        "POST", f"{SALES}/deduplication", 204, content=b'"true"', headers={"Content-Type": "text/plain"}
    )
    assert await sales.get(f"{SALES}/messageTTL") == 60
    assert await sales.get(f"{SALES}/deduplication") is True


async def test_backlog_quotas_are_kept_by_kind(sales: Rest) -> None:
    assert await sales.get(f"{SALES}/backlogQuotaMap") == {}
    quota = {"limitSize": 10, "policy": "producer_exception"}
    await sales.call("POST", f"{SALES}/backlogQuota?backlogQuotaType=message_age", 204, json=quota)
    await sales.call("POST", f"{SALES}/backlogQuota", 204, json=quota)
    assert set(await sales.get(f"{SALES}/backlogQuotaMap")) == {"message_age", "destination_storage"}
    await sales.call("DELETE", f"{SALES}/backlogQuota", 204)
    assert set(await sales.get(f"{SALES}/backlogQuotaMap")) == {"message_age"}
    await sales.refused("POST", f"{SALES}/backlogQuota", 400, json={"policy": "hope"})


async def test_clusters_other_than_our_own_come_and_go(rest: Rest) -> None:
    await rest.call("PUT", f"{V2}/clusters/west", 204, json={"serviceUrl": "http://west:8080"})
    await rest.refused("PUT", f"{V2}/clusters/west", 409, json={})
    await rest.call("POST", f"{V2}/clusters/west", 204, json={"serviceUrl": "http://far:8080"})
    assert (await rest.get(f"{V2}/clusters/west"))["serviceUrl"] == "http://far:8080"
    await rest.call("DELETE", f"{V2}/clusters/west", 204)
    await rest.refused("GET", f"{V2}/clusters/west", 404)
    await rest.refused("DELETE", f"{V2}/clusters/standalone", 412)


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/nowhere", 404, None),
        ("PATCH", "/admin/v2/tenants/public", 405, None),
        ("PUT", "/admin/v2/tenants/x", 400, b"{not json"),
        ("PUT", "/admin/v2/tenants/x", 400, b"\xff\xfe"),
        ("PUT", "/admin/v2/tenants/x", 400, b"[]"),
        ("PUT", "/admin/v2/tenants/x", 413, b" " * (1 << 21)),
        ("POST", "/admin/v2/tenants/public", 400, b""),
        ("DELETE", "/admin/v2/namespaces/public/default?force=perhaps", 400, None),
        ("PUT", "/admin/v2/namespaces/public/..", 412, None),
        ("PUT", "/admin/v2/namespaces/public/x", 412, b'{"bundles": {"numBundles": 100000}}'),
    ],
)
async def test_every_mistake_gets_a_reason_and_a_4xx(
    rest: Rest, method: str, path: str, status: int, body: bytes | None
) -> None:
    request = rest.http.build_request(method, path, content=body)
    # httpx resolves dots in paths; a peer need not.
    if path.endswith(".."):
        request = rest.http.build_request(method, path.replace("..", "%2E%2E"), content=body)
    answer = await rest.http.send(request)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"reason"}


async def test_doubled_and_trailing_slashes_do_no_harm(rest: Rest) -> None:
    assert await rest.get("/admin/v2//tenants/") == ["public", "pulsar"]


@pytest.mark.parametrize("text", ['{"a":' * 100_000 + "1" + "}" * 100_000, "[" * 400_000])
async def test_a_body_that_is_nested_too_deeply_is_refused(rest: Rest, text: str) -> None:
    reason = await rest.refused("PUT", "/admin/v2/namespaces/public/default/properties", 400, content=text)
    assert "Invalid request body" in reason
