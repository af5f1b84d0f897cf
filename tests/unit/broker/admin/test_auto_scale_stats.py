"""What REST shows of automatic splits and merges, and how soon a changed policy counts. The clock is ours."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anabranch.autoscale.load import Load, UnstampedLoad
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.names import TopicName
from anabranch.model.scalable import load_path
from anabranch.model.segments import SegmentId
from unit.broker.admin.conftest import NOW_MS, Rest, serving

NS_POLICY = "/admin/v2/namespaces/public/default/scalableTopicAutoScalePolicy"
MINUTE_MS = 60_000
HOT = Load(12_000.0, 3e6, 100.0, 5e4)
WARM = Load(3_000.0, 1e6, 100.0, 5e4)
IDLE = Load()


class Scaling:
    """A broker whose store has a clock that the test moves, and loads that the test reports."""

    def __init__(self, rest: Rest, clock: list[int]) -> None:
        self.rest = rest
        self._clock = clock

    def path(self, name: str = "orders") -> str:
        return f"/admin/v2/scalable/public/default/{name}"

    async def make(self, segments: int = 1, name: str = "orders") -> None:
        await self.rest.call("PUT", f"{self.path(name)}?numInitialSegments={segments}", 204)
        await self.stats(name)  # From here on this broker leads it.

    async def report(self, load: Load, *segments: int, name: str = "orders") -> None:
        """As the segments' owners do; returns once the leader has heard of it."""
        topic = TopicName.parse(f"topic://public/default/{name}")
        for number in segments:
            await self.rest.broker.metadata.put(load_path(topic, SegmentId(number)), load.encode())
        while any(
            (segment["load"] or {}).get("msgRateIn") != load.msg_rate_in
            for number, segment in (await self.stats(name))["segments"].items()
            if int(number) in segments
        ):
            pass

    async def tick(self, minutes: float = 0.0) -> None:
        """A look at every topic, that much later, and all that follows from it."""
        self._clock[0] += round(minutes * MINUTE_MS)
        await self.rest.broker.autoscaler.tick()

    async def stats(self, name: str = "orders") -> dict[str, Any]:
        found: dict[str, Any] = await self.rest.get(f"{self.path(name)}/stats")
        return found

    async def explained(self, name: str = "orders") -> dict[str, Any]:
        found: dict[str, Any] = await self.rest.get(f"{self.path(name)}/explain")
        return found

    async def becomes(self, segments: int, name: str = "orders") -> None:
        """Waits for an operation that was begun; each request gives it a turn."""
        while (await self.rest.get(self.path(name)))["epoch"] == 0 or await self.active(name) != segments:
            pass

    async def active(self, name: str = "orders") -> int:
        count: int = (await self.stats(name))["activeSegments"]
        return count

    async def set(self, name: str = "orders", **policy: Any) -> None:
        await self.rest.call("POST", f"{self.path(name)}/autoScalePolicy", 204, json=policy)


@pytest.fixture
async def scaling() -> AsyncIterator[Scaling]:
    clock = [NOW_MS]
    async with serving(MemoryMetadata(lambda: clock[0])) as rest:
        yield Scaling(rest, clock)


# -- stats


async def test_stats_have_the_latest_load_record_of_each_segment(scaling: Scaling) -> None:
    await scaling.make(2)
    await scaling.report(WARM, 1)
    await scaling.report(HOT, 1)
    segments = (await scaling.stats())["segments"]
    assert segments["0"]["load"] is None
    assert segments["1"]["load"] == HOT.to_json() | {"modifiedAtMs": NOW_MS}


async def test_stats_have_the_policy_with_the_level_that_each_field_came_from(scaling: Scaling) -> None:
    await scaling.make()
    await scaling.rest.call("POST", NS_POLICY, 204, json={"maxSegments": 32, "minSegments": 4})
    await scaling.set(maxSegments=8)
    found = (await scaling.stats())["autoScale"]
    assert found["policy"]["maxSegments"] == {"value": 8, "from": "topic"}
    assert found["policy"]["minSegments"] == {"value": 4, "from": "namespace"}
    assert found["policy"]["splitCooldownSeconds"] == {"value": 60, "from": "broker"}
    assert found["problems"] == []


async def test_stats_have_the_last_decision_with_its_reason(scaling: Scaling) -> None:
    await scaling.make()
    assert (await scaling.stats())["autoScale"]["lastDecision"] is None
    await scaling.report(WARM, 0)
    await scaling.tick()
    await scaling.tick(minutes=1)
    found = (await scaling.stats())["autoScale"]["lastDecision"]
    assert (found["kind"], found["atMs"], found["untilMs"], found["times"]) == (
        "stay",
        NOW_MS,
        NOW_MS + MINUTE_MS,
        2,
    )
    assert "30 %" in found["because"]
    await scaling.report(HOT, 0)
    await scaling.tick(minutes=1)
    await scaling.becomes(2)
    decisions = (await scaling.explained())["decisions"]
    assert [d["kind"] for d in decisions][:2] == ["stay", "split"]
    assert "120 %" in decisions[1]["because"]


async def test_a_classic_topic_has_nothing_of_it(scaling: Scaling) -> None:
    await scaling.rest.call("PUT", "/admin/v2/persistent/public/default/plain", 204)
    assert (await scaling.stats("plain"))["autoScale"] is None
    assert "scalable" in await scaling.rest.refused("GET", f"{scaling.path('plain')}/explain", 404)


# -- when a policy counts


async def test_a_changed_policy_counts_from_the_next_look(scaling: Scaling) -> None:
    await scaling.make()
    await scaling.report(WARM, 0)
    await scaling.tick()
    assert await scaling.active() == 1
    await scaling.set(splitMsgRateInThreshold=2000.0)
    await scaling.tick()
    await scaling.becomes(2)
    # The same of the namespace's.
    await scaling.make(name="other")
    await scaling.report(WARM, 0, name="other")
    await scaling.rest.call("POST", NS_POLICY, 204, json={"splitMsgRateInThreshold": 2500.0})
    await scaling.tick()
    await scaling.becomes(2, "other")


async def test_a_topic_or_namespace_that_opted_out_is_left_alone(scaling: Scaling) -> None:
    await scaling.rest.call("POST", NS_POLICY, 204, json={"enabled": False})
    for name in ("orders", "wants"):
        await scaling.make(name=name)
        await scaling.report(HOT, 0, name=name)
    await scaling.set("wants", enabled=True)
    await scaling.tick()
    await scaling.becomes(2, "wants")
    assert await scaling.active() == 1
    assert "switched off" in (await scaling.stats())["autoScale"]["lastDecision"]["because"]
    await scaling.rest.call("DELETE", NS_POLICY, 204)
    await scaling.set(enabled=False)
    await scaling.tick(minutes=1)
    assert await scaling.active() == 1


async def test_lowering_the_maximum_forces_no_merge_and_raising_the_minimum_no_split(
    scaling: Scaling,
) -> None:
    await scaling.make(4)
    await scaling.report(WARM, 0, 1, 2, 3)
    await scaling.set(maxSegments=2)
    await scaling.tick(minutes=10)
    await scaling.tick(minutes=10)
    assert (await scaling.rest.get(scaling.path()))["epoch"] == 0
    await scaling.set(minSegments=16)
    await scaling.tick(minutes=10)
    await scaling.tick(minutes=10)
    assert (await scaling.rest.get(scaling.path()))["epoch"] == 0


async def test_the_limits_on_segments_bind_automation_only(scaling: Scaling) -> None:
    """A manual split beyond maxSegments and a manual merge below minSegments are done."""
    await scaling.make(2)
    await scaling.set(minSegments=2, maxSegments=2)
    await scaling.report(HOT, 0, 1)
    await scaling.tick()
    assert await scaling.active() == 2
    await scaling.rest.call("POST", f"{scaling.path()}/split/0", 204)
    assert await scaling.active() == 3
    await scaling.rest.call("POST", f"{scaling.path()}/merge/2/3", 204)
    await scaling.rest.call("POST", f"{scaling.path()}/merge/4/1", 204)
    assert await scaling.active() == 1


async def test_a_combination_that_turns_invalid_later_switches_that_topic_off_loudly_and_nothing_else(
    scaling: Scaling, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders", "sound"):
        await scaling.make(name=name)
        await scaling.report(HOT, 0, name=name)
    await scaling.set(splitMsgRateInThreshold=2000.0)
    await scaling.rest.call("POST", NS_POLICY, 204, json={"mergeMsgRateInThreshold": 5000.0})
    with caplog.at_level(logging.WARNING):
        await scaling.tick()
    assert [r.levelno for r in caplog.records if "orders" in r.getMessage()] == [logging.ERROR]
    await scaling.becomes(2, "sound")
    found = (await scaling.stats())["autoScale"]
    assert await scaling.active() == 1
    assert "splitMsgRateInThreshold is 2,000" in found["problems"][0]
    assert "invalid" in found["lastDecision"]["because"]
    assert (await scaling.explained())["problems"] == found["problems"]
    # By hand everything works, and once it is put right so does automation.
    await scaling.rest.call("POST", f"{scaling.path()}/split/0", 204)
    await scaling.report(HOT, 1, 2)
    await scaling.rest.call("DELETE", NS_POLICY, 204)
    await scaling.tick(minutes=5)
    await scaling.becomes(3)


# -- explain


async def test_explain_tells_what_would_be_decided_now_and_what_was(scaling: Scaling) -> None:
    await scaling.make()
    found = await scaling.explained()
    assert found["decisions"] == []
    assert (found["now"]["kind"], found["activeSegments"]) == ("stay", 1)
    assert "no segment has a load record yet" in found["now"]["because"]
    await scaling.report(HOT, 0)
    assert (await scaling.explained())["now"] == {
        "kind": "split",
        "segments": [0],
        "because": "segment 0 has msgRateIn 12,000/s, 120 % of its split limit of 10,000/s",
    }
    await scaling.tick()
    await scaling.becomes(2)
    found = await scaling.explained()
    assert found["nowMs"] == NOW_MS
    assert found["segments"]["0"]["childIds"] == [1, 2]
    split = next(d for d in found["decisions"] if d["kind"] == "split")
    assert (split["segments"], split["rule"], split["atMs"]) == ([0], "load", NOW_MS)
    await scaling.report(WARM, 1)
    found = await scaling.explained()
    assert found["segments"]["1"]["load"] == WARM.to_json() | {"modifiedAtMs": NOW_MS}
    assert found["segments"]["1"]["heat"] == pytest.approx(0.3)
    assert (found["segments"]["2"]["load"], found["segments"]["2"]["heat"]) == (None, None)


async def test_a_load_tells_that_entries_are_in_no_single_bucket(scaling: Scaling) -> None:
    await scaling.make()
    await scaling.report(UnstampedLoad(*WARM.rates), 0)
    expected = WARM.to_json() | {"unstamped": True, "modifiedAtMs": NOW_MS}
    assert (await scaling.explained())["segments"]["0"]["load"] == expected
    assert (await scaling.stats())["segments"]["0"]["load"] == expected


async def test_explain_tells_of_operations_by_hand_once(scaling: Scaling) -> None:
    await scaling.make(2)
    await scaling.rest.call("POST", f"{scaling.path()}/split/0", 204)
    await scaling.rest.call("POST", f"{scaling.path()}/merge/3/1", 204)
    told = [
        (d["kind"], sorted(d["segments"]), d["rule"])
        for d in (await scaling.explained())["decisions"]
        if d["kind"] != "stay"
    ]
    assert told == [("split", [0], "manual"), ("merge", [1, 3], "manual")]


async def test_asking_changes_nothing(scaling: Scaling) -> None:
    await scaling.make()
    await scaling.report(HOT, 0)
    before = await scaling.rest.get(scaling.path())
    for _ in range(3):
        await scaling.explained()
        await scaling.stats()
    assert await scaling.rest.get(scaling.path()) == before
    assert (await scaling.explained())["decisions"] == []


async def test_another_broker_sends_those_who_ask_to_the_leader() -> None:
    store = MemoryMetadata(lambda: NOW_MS)
    async with (
        serving(store, http_url="http://one:8080") as one,
        serving(store, http_url="http://b:80") as other,
    ):
        await Scaling(one, [NOW_MS]).make()
        answer = await other.call("GET", "/admin/v2/scalable/public/default/orders/explain", 307)
        assert answer.headers["Location"] == (
            "http://one:8080/admin/v2/scalable/public/default/orders/explain"
        )


async def test_the_next_leader_still_knows_what_the_last_one_decided() -> None:
    clock = [NOW_MS]
    store = MemoryMetadata(lambda: clock[0])
    async with serving(store) as rest:
        scaling = Scaling(rest, clock)
        await scaling.make()
        await scaling.report(HOT, 0)
        await scaling.tick()
        await scaling.becomes(2)
        told = [d for d in (await scaling.explained())["decisions"] if d["kind"] == "split"]
        assert len(told) == 1
    async with serving(store) as rest:
        found = await Scaling(rest, clock).explained()
        assert [d for d in found["decisions"] if d["kind"] == "split"] == told
