"""The policy of automatic splits and merges over REST: what may be set where, what then applies, and who may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.security.rights import AllowAll
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import NamespaceName, TopicName
from anabranch.model.scalable import topic_path
from unit.broker.admin.conftest import NOW_MS, Rest, serving

T = "/admin/v2/scalable/public/default/orders"
TOPIC = TopicName.parse("topic://public/default/orders")
POLICY = f"{T}/autoScalePolicy"
NS_POLICY = "/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"

# As the Java class AutoScalePolicyOverride is sent with everything set: rates in messages are doubles, the rest whole.
EVERYTHING: dict[str, Any] = {
    "enabled": True,
    "maxSegments": 8,
    "minSegments": 2,
    "maxDagDepth": 3,
    "splitCooldownSeconds": 30,
    "mergeCooldownSeconds": 120,
    "mergeWindowSeconds": 90,
    "splitMsgRateInThreshold": 2000.5,
    "splitBytesRateInThreshold": 20_000_000,
    "splitMsgRateOutThreshold": 4000.0,
    "splitBytesRateOutThreshold": 40_000_000_000,
    "mergeMsgRateInThreshold": 200.0,
    "mergeBytesRateInThreshold": 2_000_000,
    "mergeMsgRateOutThreshold": 400.0,
    "mergeBytesRateOutThreshold": 4_000_000,
    "rebucketCooldownSeconds": 45,
    "rebucketIdleWindowSeconds": 600,
}
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "maxSegments": 64,
    "minSegments": 1,
    "maxDagDepth": 10,
    "splitCooldownSeconds": 60,
    "mergeCooldownSeconds": 300,
    "mergeWindowSeconds": 300,
    "splitMsgRateInThreshold": 10_000.0,
    "splitBytesRateInThreshold": 50_000_000,
    "splitMsgRateOutThreshold": 50_000.0,
    "splitBytesRateOutThreshold": 250_000_000,
    "mergeMsgRateInThreshold": 1000.0,
    "mergeBytesRateInThreshold": 5_000_000,
    "mergeMsgRateOutThreshold": 5000.0,
    "mergeBytesRateOutThreshold": 25_000_000,
    "rebucketCooldownSeconds": 60,
    "rebucketIdleWindowSeconds": 1800,
}
EITHER = pytest.mark.parametrize("path", [POLICY, NS_POLICY])


@pytest.fixture(autouse=True)
async def topic(rest: Rest) -> None:
    await rest.call("PUT", T, 204)


async def applied(rest: Rest, path: str = POLICY) -> tuple[dict[str, Any], dict[str, str]]:
    """The values and the level of each."""
    found = (await rest.get(f"{path}?applied=true"))["policy"]
    assert found.pop("mergeDepthWindowSeconds") == {"value": 86400, "from": "broker"}
    return {k: v["value"] for k, v in found.items()}, {k: v["from"] for k, v in found.items()}


# -- setting, getting, removing


@EITHER
async def test_without_an_override_get_answers_204(rest: Rest, path: str) -> None:
    assert (await rest.call("GET", path, 204)).content == b""


@EITHER
async def test_an_override_comes_back_as_it_was_set_until_it_is_removed(rest: Rest, path: str) -> None:
    for override in ({"maxSegments": 8}, {"enabled": False}, EVERYTHING):
        await rest.call("POST", path, 204, json=override)
        found = await rest.get(path)
        assert found == override
        assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in override.items()}
        for _ in range(2):
            await rest.call("DELETE", path, 204)
            await rest.call("GET", path, 204)


@EITHER
async def test_setting_replaces_the_whole_override(rest: Rest, path: str) -> None:
    await rest.call("POST", path, 204, json={"maxSegments": 8, "minSegments": 2})
    await rest.call("POST", path, 204, json={"maxSegments": 9})
    assert await rest.get(path) == {"maxSegments": 9}


@EITHER
async def test_fields_sent_as_null_are_not_set(rest: Rest, path: str) -> None:
    await rest.call("POST", path, 204, json=dict.fromkeys(EVERYTHING) | {"enabled": False})
    assert await rest.get(path) == {"enabled": False}


async def test_an_unknown_topic_or_namespace_is_not_found(rest: Rest) -> None:
    for path in (
        "/admin/v2/scalable/public/default/none/autoScalePolicy",
        "/admin/v2/namespaces/public/none/scalableTopicAutoScalePolicy",
    ):
        for method in ("GET", "POST", "DELETE"):
            await rest.refused(method, path, 404, json={"maxSegments": 8})
    assert await rest.get("/admin/v2/scalable/public/default") == [str(TOPIC)]


async def test_names_with_slashes_have_policies_too(rest: Rest) -> None:
    path = "/admin/v2/scalable/public/default/a/b%2Fc"
    await rest.call("PUT", path, 204)
    await rest.call("POST", f"{path}/autoScalePolicy", 204, json={"maxSegments": 5})
    assert await rest.get(f"{path}/autoScalePolicy") == {"maxSegments": 5}
    await rest.call("GET", POLICY, 204)


# -- where it is stored


async def test_the_topics_override_is_a_field_of_its_metadata(rest: Rest) -> None:
    await rest.call("POST", POLICY, 204, json={"maxSegments": 8})
    assert (await rest.get(T))["autoScalePolicy"] == {"maxSegments": 8}
    stored = await rest.broker.metadata.get(topic_path(TOPIC))
    assert stored is not None
    assert json.loads(stored.value)["autoScalePolicy"] == {"maxSegments": 8}
    await rest.call("DELETE", POLICY, 204)
    assert (await rest.get(T))["autoScalePolicy"] is None


async def test_the_namespaces_override_is_a_field_of_its_policies(rest: Rest) -> None:
    await rest.call("POST", NS_POLICY, 204, json={"maxSegments": 8})
    policies = "/admin/v2/namespaces/public/default"
    assert (await rest.get(policies))["scalableTopicAutoScalePolicy"] == {"maxSegments": 8}
    # Other settings and this one do not touch each other.
    await rest.call("POST", f"{policies}/messageTTL", 204, json=60)
    assert await rest.get(NS_POLICY) == {"maxSegments": 8}
    await rest.call("DELETE", NS_POLICY, 204)
    assert "scalableTopicAutoScalePolicy" not in await rest.get(policies)
    assert await rest.get(f"{policies}/messageTTL") == 60


@EITHER
async def test_a_policy_is_stored_in_one_record_and_nowhere_else(rest: Rest, path: str) -> None:
    async def stored() -> dict[str, bytes]:
        return {at: found.value for at, found in await rest.broker.metadata.scan("/")}

    before = await stored()
    assert topic_path(TOPIC) in before
    await rest.call("POST", path, 204, json={"maxSegments": 8})
    after = await stored()
    (changed,) = [at for at in before.keys() | after.keys() if before.get(at) != after.get(at)]
    if path == POLICY:
        assert changed == topic_path(TOPIC)
    else:
        assert json.loads(after[changed])["scalableTopicAutoScalePolicy"] == {"maxSegments": 8}
        assert json.loads(before[changed])
    await rest.call("DELETE", path, 204)
    assert (await stored()).keys() == before.keys()


async def test_a_namespace_may_be_made_with_an_override(rest: Rest) -> None:
    path = "/admin/v2/namespaces/public/made"
    bad = {"scalableTopicAutoScalePolicy": {"minSegments": 100}}
    assert "minSegments" in await rest.refused("PUT", path, 412, json=bad)
    await rest.refused("GET", path, 404)
    await rest.call("PUT", path, 204, json={"scalableTopicAutoScalePolicy": {"maxSegments": 8}})
    assert await rest.get(f"{path}/scalableTopicAutoScalePolicy") == {"maxSegments": 8}


# -- what applies


async def test_with_nothing_set_the_brokers_settings_apply(rest: Rest) -> None:
    policy, origin = await applied(rest)
    assert policy == DEFAULTS
    assert set(origin.values()) == {"broker"}
    assert origin.keys() == policy.keys()


async def test_each_field_comes_from_the_topic_else_the_namespace_else_the_broker(rest: Rest) -> None:
    await rest.call("POST", NS_POLICY, 204, json={"maxSegments": 32, "minSegments": 4, "maxDagDepth": 5})
    await rest.call("POST", POLICY, 204, json={"maxSegments": 8})
    policy, origin = await applied(rest)
    assert policy == DEFAULTS | {"maxSegments": 8, "minSegments": 4, "maxDagDepth": 5}
    assert {k: v for k, v in origin.items() if v != "broker"} == {
        "maxSegments": "topic",
        "minSegments": "namespace",
        "maxDagDepth": "namespace",
    }
    assert (await applied(rest, NS_POLICY))[0] == DEFAULTS | {
        "maxSegments": 32,
        "minSegments": 4,
        "maxDagDepth": 5,
    }
    await rest.call("DELETE", POLICY, 204)
    policy, origin = await applied(rest)
    assert (policy["maxSegments"], origin["maxSegments"]) == (32, "namespace")


async def test_the_brokers_level_is_its_configuration() -> None:
    config = BrokerConfig(
        scalable_topic_max_segments=12,
        scalable_topic_auto_scale_enabled=False,
        scalable_topic_split_cooldown=5.0,
        scalable_topic_merge_bytes_rate_out_threshold=7e6,
    )
    async with serving(MemoryMetadata(lambda: NOW_MS), config) as rest:
        policy, origin = await applied(rest, NS_POLICY)
        assert policy == DEFAULTS | {
            "maxSegments": 12,
            "enabled": False,
            "splitCooldownSeconds": 5,
            "mergeBytesRateOutThreshold": 7_000_000,
        }
        assert set(origin.values()) == {"broker"}


# -- what is refused


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    *[
        ({f"split{rate}Threshold": DEFAULTS[f"merge{rate}Threshold"]}, f"merge{rate}")
        for rate in (
            "MsgRateIn",
            "BytesRateIn",
            "MsgRateOut",
            "BytesRateOut",
        )
    ],
    ({"mergeMsgRateInThreshold": 10_000.0}, "splitMsgRateIn"),
    ({"minSegments": 65}, "maxSegments"),
    ({"minSegments": 9, "maxSegments": 8}, "maxSegments"),
    ({"minSegments": 0}, "minSegments"),
    ({"splitCooldownSeconds": -1}, "splitCooldown"),
    ({"mergeCooldownSeconds": -1}, "mergeCooldown"),
    ({"mergeWindowSeconds": -1}, "mergeWindow"),
    ({"splitMsgRateInThreshold": 0.0, "mergeMsgRateInThreshold": -1.0}, "splitMsgRateIn"),
    ({"splitBytesRateOutThreshold": -5, "mergeBytesRateOutThreshold": -6}, "splitBytesRateOut"),
]


@EITHER
async def test_what_would_contradict_itself_is_refused_and_not_stored(rest: Rest, path: str) -> None:
    await rest.call("POST", path, 204, json={"maxDagDepth": 7})
    for override, named in CONTRADICTIONS:
        assert named in await rest.refused("POST", path, 412, json=override)
    assert await rest.get(path) == {"maxDagDepth": 7}


@EITHER
async def test_values_of_another_type_are_refused_with_the_fields_name(rest: Rest, path: str) -> None:
    for name, value in (
        ("maxSegments", "many"),
        ("enabled", 3),
        ("splitCooldownSeconds", [1]),
        ("minSegments", 1.5),
    ):
        assert name in await rest.refused("POST", path, 412, json={name: value})
    await rest.call("GET", path, 204)


@EITHER
async def test_a_body_that_is_no_override_is_refused(rest: Rest, path: str) -> None:
    for content in (b"", b"[]", b"3", b"{"):
        await rest.refused("POST", path, 400, content=content)


async def test_a_topic_is_checked_together_with_its_namespace(rest: Rest) -> None:
    await rest.call("POST", NS_POLICY, 204, json={"mergeMsgRateInThreshold": 5000.0})
    low = {"splitMsgRateInThreshold": 2000.0}
    assert "mergeMsgRateIn" in await rest.refused("POST", POLICY, 412, json=low)
    await rest.call("DELETE", NS_POLICY, 204)
    await rest.call("POST", POLICY, 204, json=low)


async def test_a_namespace_changed_later_may_contradict_a_topic_which_then_says_so(rest: Rest) -> None:
    await rest.call("POST", POLICY, 204, json={"splitMsgRateInThreshold": 2000.0})
    await rest.call("POST", NS_POLICY, 204, json={"mergeMsgRateInThreshold": 5000.0})
    found = await rest.get(f"{POLICY}?applied=true")
    assert len(found["problems"]) == 1
    assert "splitMsgRateIn" in found["problems"][0]
    # Nothing else breaks: it can be looked at, changed by hand, and put right.
    await rest.call("POST", f"{T}/split/0", 204)
    await rest.get(f"{T}/stats")
    await rest.call("DELETE", POLICY, 204)
    assert (await rest.get(f"{POLICY}?applied=true"))["problems"] == []


# -- races


async def test_policy_writes_and_splits_lose_nothing_of_each_other(rest: Rest) -> None:
    async def reshape() -> None:
        for number in range(0, 20, 2):
            await rest.call("POST", f"{T}/split/{number}", 204)

    async def set_policies() -> None:
        for count in range(10, 30):
            await rest.call("POST", POLICY, 204, json={"maxSegments": count})
            assert await rest.get(POLICY) == {"maxSegments": count}

    await asyncio.gather(reshape(), set_policies())
    found = await rest.get(T)
    assert found["autoScalePolicy"] == {"maxSegments": 29}
    assert (found["epoch"], len(found["segments"])) == (10, 21)


# -- rights


class NotAdministering(AllowAll):
    """Refuses to let anybody administer anything, and notes what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def may_administer(self, role: str, where: NamespaceName | TopicName) -> bool:
        self.asked.append(str(where))
        return False


async def test_policies_are_for_those_who_administer_the_topic_or_namespace() -> None:
    authorizer = NotAdministering()
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=authorizer) as rest:
        for method in ("GET", "POST", "DELETE"):
            await rest.refused(method, POLICY, 403, json={"maxSegments": 8})
            await rest.refused(method, NS_POLICY, 403, json={"maxSegments": 8})
    assert authorizer.asked == [str(TOPIC), "public/default"] * 3


async def test_with_scalable_topics_turned_off_a_topics_policy_says_how_to_turn_them_on() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), BrokerConfig(scalable_topic_enabled=False)) as rest:
        for path in (POLICY, f"{T}/explain"):
            assert "scalableTopicEnabled" in await rest.refused("GET", path, 405)
