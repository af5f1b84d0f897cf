"""`/ui` and what it asks for, on a real broker over the memory adapters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.ui import api
from anabranch.client.client import Client
from anabranch.metadata.memory import MemoryMetadata
from unit.broker.admin.conftest import NOW_MS, Rest, serving
from unit.broker.admin.scalable.test_topics import OneOwner, Refusing

STATIC = Path(api.__file__).parent / "static"
TOPICS = "/ui/api/topics/public/default"
ADMIN = "/admin/v2/scalable/public/default"


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    async with serving(MemoryMetadata(lambda: NOW_MS)) as made:
        yield made


# -- files


async def test_the_front_door_leads_to_the_page(rest: Rest) -> None:
    answer = await rest.http.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/ui")
    page = await rest.call("GET", "/ui")
    assert page.headers["content-type"].startswith("text/html")
    assert (await rest.call("GET", "/ui/")).content == page.content


async def test_every_file_is_served_and_may_load_nothing_from_elsewhere(rest: Rest) -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        answer = await rest.call("GET", f"/ui/{path.relative_to(STATIC)}")
        assert answer.content == path.read_bytes()
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert set(re.findall(r"'[a-z]+'", policy)) == {"'none'", "'self'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"""(src|href|url|from|fetch)\s*[(=]?\s*["'(]https?://""", path.read_text())


async def test_a_file_that_the_browser_has_is_not_sent_again(rest: Rest) -> None:
    first = await rest.call("GET", "/ui/app.js")
    again = await rest.call("GET", "/ui/app.js", 304, headers={"If-None-Match": first.headers["etag"]})
    assert again.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "../api.py",
        "%2e%2e/api.py",
        "..%2fapi.py",
        "nothing.js",
        "api.py",
        "river",
        ".hidden",
        "api/nothing",
        "a" * 300 + ".js",
        "a/" * 3000 + "b.js",
    ],
)
async def test_nothing_but_the_files_of_the_page_is_served(rest: Rest, path: str) -> None:
    await rest.refused("GET", f"/ui/{path}", 404)


# -- all topics


async def test_an_empty_broker_has_no_topics_and_itself(rest: Rest) -> None:
    found = await rest.get("/ui/api/overview")
    assert (found["topics"], found["topicCount"], found["now"]) == ([], 0, NOW_MS)
    assert [broker["isThis"] for broker in found["brokers"]] == [True]


async def test_the_overview_has_each_topic_with_its_cross_section(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/orders?numInitialSegments=2", 204)
    await rest.call("POST", f"{ADMIN}/orders/split/0", 204)
    await rest.call("PUT", "/admin/v2/persistent/public/default/old/partitions", 204, json=3)
    await rest.publish("topic-of-old-kind", b"x")
    await rest.broker.recorder.sample()
    found = {topic["name"]: topic for topic in (await rest.get("/ui/api/overview"))["topics"]}
    assert list(found) == [
        "persistent://public/default/topic-of-old-kind",
        "persistent://public/default/old",
        "topic://public/default/orders",
    ]
    orders = found["topic://public/default/orders"]
    assert (orders["kind"], orders["segmentCount"]) == ("scalable", 3)
    assert orders["section"] == [[0.25, 0.0], [0.25, 0.0], [0.5, 0.0]]
    assert found["persistent://public/default/old"]["segmentCount"] == 3
    assert found["persistent://public/default/topic-of-old-kind"]["msgRateIn"] > 0


async def test_the_overview_is_searched_by_part_of_a_name(rest: Rest) -> None:
    for name in ("orders", "payments"):
        await rest.call("PUT", f"{ADMIN}/{name}", 204)
    found = await rest.get("/ui/api/overview?q=PAY")
    assert [topic["name"] for topic in found["topics"]] == ["topic://public/default/payments"]
    assert (found["topicCount"], found["matching"]) == (2, 1)


async def test_samples_that_the_page_has_are_not_sent_again(rest: Rest) -> None:
    await rest.publish("t", b"x")
    await rest.broker.recorder.sample()
    found = await rest.get("/ui/api/overview")
    assert (len(found["totals"]), len(found["topics"][0]["spark"])) == (1, 1)
    found = await rest.get(f"/ui/api/overview?since={NOW_MS}")
    assert (found["totals"], found["topics"][0]["spark"]) == ([], [])


# -- one topic


async def test_a_topic_has_its_segments_links_limits_policy_and_decisions(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/orders", 204)
    await rest.call("POST", f"{ADMIN}/orders/split/0", 204)
    found = await rest.get(f"{TOPICS}/orders")
    segments = {s["id"]: s for s in found["layout"]["segments"]}
    assert {n: (s["parents"], s["children"], s["sealed"]) for n, s in segments.items()} == {
        0: ([], [1, 2], NOW_MS),
        1: ([0], [], 0),
        2: ([0], [], 0),
    }
    assert found["limits"]["split"]["msgRateIn"] == 10_000
    assert found["policy"]["maxSegments"] == {"value": 64, "from": "broker"}
    assert found["may"]["change"] is True
    assert set(found["segments"]) == {"0", "1", "2"}


async def test_a_layout_that_the_page_has_is_not_sent_again(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/orders", 204)
    layout = (await rest.get(f"{TOPICS}/orders"))["layout"]["id"]
    assert (await rest.get(f"{TOPICS}/orders?layout={layout}"))["layout"] is None
    await rest.call("POST", f"{ADMIN}/orders/split/0", 204)
    assert (await rest.get(f"{TOPICS}/orders?layout={layout}"))["layout"]["id"] != layout


async def test_consumers_stand_at_the_mouths_with_what_they_read(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/orders?numInitialSegments=2", 204)
    client = Client(rest.broker.service_url)
    await client.stream_consumer("topic://public/default/orders", "billing", consumer_name="eu-1")
    await client.queue_consumer("topic://public/default/orders", "audit")
    found = {s["name"]: s for s in (await rest.get(f"{TOPICS}/orders"))["subscriptions"]}
    assert found["billing"]["consumers"] == [{"name": "eu-1", "connected": True, "segments": [0, 1]}]
    assert (found["audit"]["kind"], found["audit"]["consumers"], found["audit"]["consumerCount"]) == (
        "QUEUE",
        [],
        1,
    )
    overview = (await rest.get("/ui/api/overview"))["topics"]
    assert [topic["consumers"] for topic in overview] == [2]
    await client.close()


async def test_what_flows_through_a_segment_is_sampled_for_the_page(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/orders", 204)
    async with (
        Client(rest.broker.service_url) as client,
        client.producer("topic://public/default/orders") as producer,
    ):
        for number in range(5):
            await producer.send(b"hello", key=f"k{number}")
    assert rest.broker.scaling is not None
    await rest.broker.scaling.reporter.sample()
    samples = (await rest.get(f"{TOPICS}/orders"))["samples"]
    assert set(samples) == {"0"}
    assert samples["0"][-1][0] == NOW_MS
    assert samples["0"][-1][1] > 0
    assert (await rest.get(f"{TOPICS}/orders?since={NOW_MS}"))["samples"] == {}


async def test_partitions_of_a_migrated_topic_share_the_picture(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/old/partitions", 204, json=2)
    await rest.call("POST", f"{ADMIN}/old/migrate", 204)
    segments = (await rest.get(f"{TOPICS}/old"))["layout"]["segments"]
    assert [(s["start"], s["end"]) for s in segments] == [(0, 0x7FFF), (0x8000, 0xFFFF)] * 2


async def test_a_classic_topic_has_totals_and_no_segments(rest: Rest) -> None:
    await rest.publish("old", b"x")
    await rest.broker.recorder.sample()
    found = await rest.get(f"{TOPICS}/old")
    assert (found["kind"], found["topic"], len(found["totals"])) == (
        "classic",
        "persistent://public/default/old",
        1,
    )
    assert "layout" not in found


async def test_a_classic_topic_has_its_partitions_and_how_far_each_subscription_is(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/parted/partitions", 204, json=2)
    await rest.call("PUT", "/admin/v2/persistent/public/default/parted/subscription/slow", 204)
    await rest.publish("parted-partition-0", b"one", b"two")
    await rest.publish("parted-partition-1", b"three")
    await rest.client.consumer("parted-partition-0", "quick")
    found = await rest.get(f"{TOPICS}/parted")
    assert [(part["partition"], part["backlog"], part["storage"] > 0) for part in found["parts"]] == [
        (0, 2, True),
        (1, 1, True),
    ]
    quick, slow = found["subscriptions"]
    assert (slow["name"], slow["kind"], slow["backlog"], slow["consumers"]) == ("slow", "", 3, [])
    assert (quick["name"], quick["kind"], quick["backlog"], quick["consumerCount"]) == (
        "quick",
        "exclusive",
        0,
        1,
    )


async def test_what_waits_in_partitions_that_are_not_open_is_shown_as_it_was(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/persistent/public/default/parted/partitions", 204, json=2)
    name = "persistent://public/default/parted-partition-1"
    rest.broker.recorder.restore([], {}, {name: {"slow": 7}}, NOW_MS, NOW_MS)
    found = await rest.get(f"{TOPICS}/parted")
    assert [(part["partition"], part["storage"], part["backlog"]) for part in found["parts"]] == [
        (1, None, 7)
    ]
    assert [(one["name"], one["backlog"]) for one in found["subscriptions"]] == [("slow", 7)]


async def test_a_topic_that_is_not_there_says_how_to_make_it(rest: Rest) -> None:
    assert "anabranch topics create" in await rest.refused("GET", f"{TOPICS}/none", 404)


async def test_a_name_with_a_slash_is_one_name(rest: Rest) -> None:
    await rest.call("PUT", f"{ADMIN}/a%2Fb", 204)
    assert (await rest.get(f"{TOPICS}/a%2Fb"))["topic"] == "topic://public/default/a/b"


async def test_a_topic_that_another_broker_leads_is_shown_as_that_one_knows_it() -> None:
    store = MemoryMetadata(lambda: NOW_MS)
    one, other = OneOwner(True), OneOwner(False)
    async with (
        serving(store, http_url="http://one:8080", owners=one) as first,
        serving(store, http_url="http://other:8080", owners=other, remote_segments=other.segments) as second,
    ):
        one.first = other.first = first.broker
        await first.call("PUT", f"{ADMIN}/orders", 204)
        await first.call("POST", f"{ADMIN}/orders/split/0", 204)
        found = await second.get(f"{TOPICS}/orders")
        assert (found["kind"], found["controller"]) == ("scalable", first.broker.service_url)
        rows = (await second.get("/ui/api/overview"))["topics"]
        assert [(row["segmentCount"], row["heat"]) for row in rows] == [(2, 0.0)]


# -- rights


async def test_a_topic_is_shown_only_to_those_who_may_administer_it() -> None:
    authorizer = Refusing("administer")
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=authorizer) as rest:
        assert "administer" in await rest.refused("GET", f"{TOPICS}/orders", 403)
        assert authorizer.asked == ["administer topic://public/default/orders"]


async def test_topics_of_others_are_neither_listed_nor_counted() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=Refusing("administer")) as rest:
        await rest.publish("t", b"x")
        found = await rest.get("/ui/api/overview")
        assert (found["topics"], found["topicCount"]) == ([], 0)


async def test_sums_over_all_topics_are_for_super_users() -> None:
    async with serving(MemoryMetadata(lambda: NOW_MS), authorizer=Refusing("super user")) as rest:
        await rest.publish("t", b"x")
        await rest.broker.recorder.sample()
        found = await rest.get("/ui/api/overview")
        assert (found["totals"], found["brokers"], len(found["topics"])) == ([], None, 1)


async def test_the_files_say_nothing_about_topics_and_are_for_everybody() -> None:
    async with serving(
        MemoryMetadata(lambda: NOW_MS), authorizer=Refusing("administer", "super user", "look up")
    ) as rest:
        await rest.call("GET", "/ui", 200)
