"""Grants over REST: Pulsar's paths and JSON."""

from __future__ import annotations

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.metadata.memory import MemoryMetadata
from unit.broker.admin.conftest import NOW_MS, Rest, serving

V2 = "/admin/v2"
NS = f"{V2}/namespaces/public/default/permissions"
T = f"{V2}/persistent/public/default/t"


async def test_grants_on_a_namespace_come_and_go(rest: Rest) -> None:
    assert await rest.get(NS) == {}
    await rest.call("POST", f"{NS}/ann", 204, json=["produce", "consume"])
    await rest.call("POST", f"{NS}/bob%40acme.com", 204, json=["functions", "sources", "sinks", "packages"])
    assert await rest.get(NS) == {
        "ann": ["consume", "produce"],
        "bob@acme.com": ["functions", "packages", "sinks", "sources"],
    }
    policies = await rest.get(f"{V2}/namespaces/public/default")
    assert policies["auth_policies"]["namespace_auth"]["ann"] == ["consume", "produce"]
    await rest.call("DELETE", f"{NS}/ann", 204)
    await rest.call("DELETE", f"{NS}/never", 204)
    assert list(await rest.get(NS)) == ["bob@acme.com"]


async def test_grants_on_a_topic_come_on_top_of_the_namespaces(rest: Rest) -> None:
    await rest.call("PUT", T, 204)
    await rest.call("POST", f"{NS}/ann", 204, json=["produce"])
    await rest.call("POST", f"{T}/permissions/ann", 204, json=["consume"])
    assert await rest.get(f"{T}/permissions") == {"ann": ["consume", "produce"]}
    await rest.call("DELETE", f"{T}/permissions/ann", 204)
    assert await rest.get(f"{T}/permissions") == {"ann": ["produce"]}


async def test_grants_on_a_partitioned_topic_go_with_those_on_its_partitions(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/partitions", 204, json=2)
    await rest.call("POST", f"{T}/permissions/ann", 204, json=["consume"])
    await rest.call("POST", f"{T}-partition-1/permissions/ann", 204, json=["produce"])
    assert await rest.get(f"{T}-partition-1/permissions") == {"ann": ["consume", "produce"]}
    await rest.call("DELETE", f"{T}/permissions/ann", 204)
    assert await rest.get(f"{T}-partition-1/permissions") == {}


async def test_grants_on_a_scalable_topic_have_paths_of_their_own(rest: Rest) -> None:
    river = f"{V2}/scalable/public/default/a/river"
    await rest.call("PUT", river, 204)
    await rest.call("POST", f"{river}/permissions/ann", 204, json=["consume"])
    assert await rest.get(f"{river}/permissions") == {"ann": ["consume"]}
    await rest.call("DELETE", f"{river}/permissions/ann", 204)
    assert await rest.get(f"{river}/permissions") == {}


async def test_grants_on_a_topic_that_is_not_persistent_do_not_wait_for_it(rest: Rest) -> None:
    fleeting = f"{V2}/non-persistent/public/default/t"
    await rest.call("POST", f"{fleeting}/permissions/ann", 204, json=["consume"])
    assert await rest.get(f"{fleeting}/permissions") == {"ann": ["consume"]}
    await rest.call("PUT", T, 204)
    assert await rest.get(f"{T}/permissions") == {}
    await rest.call("DELETE", f"{fleeting}/permissions/ann", 204)
    assert await rest.get(f"{fleeting}/permissions") == {}


async def test_grants_on_several_topics_are_one_change(rest: Rest) -> None:
    topics = [f"persistent://public/default/{name}" for name in "ab"]
    for name in "ab":
        await rest.call("PUT", f"{V2}/persistent/public/default/{name}", 204)
    body = [{"topic": topic, "role": "ann", "actions": ["produce"]} for topic in topics]
    await rest.call("POST", f"{V2}/namespaces/grantPermissionsOnTopics", 204, json=body)
    assert await rest.get(f"{V2}/persistent/public/default/b/permissions") == {"ann": ["produce"]}
    gone = [{"topic": topic, "role": "ann"} for topic in topics]
    await rest.call("POST", f"{V2}/namespaces/revokePermissionsOnTopics", 204, json=gone)
    assert await rest.get(f"{V2}/persistent/public/default/b/permissions") == {}
    elsewhere = [*body, {"topic": "persistent://pulsar/system/t", "role": "ann", "actions": []}]
    for wrong in (elsewhere, []):
        await rest.refused("POST", f"{V2}/namespaces/grantPermissionsOnTopics", 400, json=wrong)


async def test_a_subscription_is_kept_for_some_roles(rest: Rest) -> None:
    await rest.call("POST", f"{NS}/subscription/s", 204, json=["ann", "bob"])
    assert await rest.get(f"{NS}/subscription") == {"s": ["ann", "bob"]}
    await rest.call("DELETE", f"{NS}/s/bob", 204)
    assert await rest.get(f"{NS}/subscription") == {"s": ["ann"]}
    assert "never" in await rest.refused("DELETE", f"{NS}/never/bob", 404)


async def test_the_mode_of_subscriptions_is_a_setting(rest: Rest) -> None:
    path = f"{V2}/namespaces/public/default/subscriptionAuthMode"
    assert await rest.get(path) == "None"
    await rest.call("POST", path, 204, json="Prefix")
    assert await rest.get(path) == "Prefix"
    await rest.refused("POST", path, 400, json="Suffix")


@pytest.mark.parametrize("body", [["write"], "produce", [1], {"a": 1}])
async def test_what_is_no_list_of_actions_is_refused(rest: Rest, body: object) -> None:
    reason = await rest.refused("POST", f"{NS}/ann", 412 if body == ["write"] else 400, json=body)
    assert reason
    assert await rest.get(NS) == {}


async def test_nothing_is_granted_on_a_topic_that_is_not_there_unless_that_is_allowed(rest: Rest) -> None:
    await rest.refused("POST", f"{T}/permissions/ann", 404, json=["consume"])
    await rest.refused("POST", f"{V2}/namespaces/public/none/permissions/ann", 404, json=["consume"])
    config = BrokerConfig(allow_acl_changes_on_non_existent_topics=True)
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as free:
        await free.call("POST", f"{T}/permissions/ann", 204, json=["consume"])
        assert await free.get(f"{T}/permissions") == {"ann": ["consume"]}
