"""The stored records of a scalable topic: where they lie, how they read, and what owners may do by them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.metadata.paths import check_path
from anabranch.metadata.port import VALUE_BYTES_MAX
from anabranch.model.buckets import BucketBudget
from anabranch.model.layout import SegmentLayout
from anabranch.model.names import Domain, NamespaceName, TopicName, decode_local
from anabranch.model.scalable import (
    BadRecord,
    ConsumerRecord,
    InitialPosition,
    PlanKind,
    ReshapePlan,
    ScalableTopic,
    SubscriptionKind,
    SubscriptionRecord,
    consumer_path,
    controller_path,
    namespace_path,
    scalable_name,
    segment_json,
    subscription_path,
    topic_of_path,
    topic_path,
)
from anabranch.model.segments import HASH_MAX, WHOLE, HashRange, SegmentId
from unit.model.layouts import histories, layouts

TOPIC = TopicName.parse("topic://acme/sales/orders")
names = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=30)
topics = names.filter(lambda s: s.strip() and s[-1] > " ").map(
    lambda local: TopicName(Domain.TOPIC, NamespaceName("acme", "sales"), local)
)
properties = st.dictionaries(names, names, max_size=3)
policies = st.none() | st.dictionaries(names, st.booleans() | st.integers() | names, max_size=3)
segment_ids = st.integers(0, 2**40).map(SegmentId)

NOW_MS = 1_700_000_000_000


def split_plan(layout: SegmentLayout, number: SegmentId) -> ReshapePlan:
    return ReshapePlan(PlanKind.SPLIT, (number,), layout.split(number, 77))


@st.composite
def records(draw: st.DrawFn) -> ScalableTopic:
    layout = draw(layouts())
    marked = draw(st.lists(st.sampled_from([s.id for s in layout.sealed]))) if layout.sealed else []
    layout = layout.mark_deleting(marked)
    plan = None
    if draw(st.booleans()) and len(layout.active) > 1:
        one, other = layout.active[0].id, layout.active[1].id
        if draw(st.booleans()):
            plan = ReshapePlan(PlanKind.MERGE, (one, other), layout.merge(one, other, 77))
        elif len(layout.active[0].range) > 1:
            plan = split_plan(layout, one)
    return ScalableTopic(
        layout,
        generation=draw(st.integers(0, 2**40)),
        properties=draw(properties),
        plan=plan,
        auto_scale=draw(policies),
        routing=draw(st.sampled_from(["", "high", "low"])),
        is_deleting=draw(st.booleans()),
    )


# -- paths


@given(topics, names, names)
def test_names_with_slashes_and_other_scripts_survive_their_path(
    topic: TopicName, one: str, other: str
) -> None:
    path = consumer_path(topic, one, other)
    check_path(path)
    parts = path.split("/")
    assert parts[:4] == ["", "topics", "acme", "sales"]
    assert [decode_local(parts[n]) for n in (4, 6, 8)] == [topic.local, one, other]
    assert (parts[5], parts[7], len(parts)) == ("subscriptions", "consumers", 9)


@given(topics, names)
def test_every_path_of_a_topic_leads_back_to_it(topic: TopicName, name: str) -> None:
    for path in (
        topic_path(topic),
        controller_path(topic),
        subscription_path(topic, name),
        consumer_path(topic, name, name),
    ):
        assert path.startswith(topic_path(topic))
        assert topic_of_path(path) == topic


@pytest.mark.parametrize(
    "path",
    [
        "/topics",
        "/topics/a",
        "/topics/a/b",
        "/counters/a/b/c",
        "/topics/a b/c/d",
        "/topics/a/b/%FF",
        "/topics/a/b/",
    ],
)
def test_a_path_that_belongs_to_no_topic_is_about_none(path: str) -> None:
    assert topic_of_path(path) is None


def test_all_forms_of_a_name_share_one_record() -> None:
    for text in ("topic://acme/sales/orders", "persistent://acme/sales/orders", "acme/sales/orders"):
        assert topic_path(TopicName.parse(text)) == "/topics/acme/sales/orders"
        assert str(scalable_name(TopicName.parse(text))) == "topic://acme/sales/orders"
    assert namespace_path(TOPIC.namespace) == "/topics/acme/sales"


def test_paths_are_those_of_the_specification() -> None:
    topic = TopicName.parse("topic://acme/sales/orders/eu")
    assert topic_path(topic) == "/topics/acme/sales/orders%2Feu"
    assert controller_path(topic) == "/topics/acme/sales/orders%2Feu/controller"
    assert subscription_path(topic, "a/b") == "/topics/acme/sales/orders%2Feu/subscriptions/a%2Fb"
    assert (
        consumer_path(topic, "s", "c/1") == "/topics/acme/sales/orders%2Feu/subscriptions/s/consumers/c%2F1"
    )


# -- the topic's record


@given(records())
def test_a_record_reads_back_as_it_was_written_plan_and_all(topic: ScalableTopic) -> None:
    assert ScalableTopic.decode(topic.encode()) == topic
    assert ScalableTopic.decode(topic.encode()).encode() == topic.encode()


@given(layouts())
def test_the_json_has_the_names_of_the_specification(layout: SegmentLayout) -> None:
    topic = ScalableTopic(layout, generation=3, properties={"owner": "ana"})
    value = topic.metadata()
    assert (value["epoch"], value["nextSegmentId"]) == (layout.epoch, layout.next_id)
    assert value["properties"] == {"owner": "ana"}
    assert value["autoScalePolicy"] is None
    assert value["segments"].keys() == {str(number) for number in layout.segments}
    for key, segment in value["segments"].items():
        known = layout.segment(int(key))
        assert segment["segmentId"] == known.id
        assert segment["hashRange"] == {"start": known.range.start, "end": known.range.end}
        assert segment["state"] == ("ACTIVE" if known.is_active else "SEALED")
        assert segment["parentIds"] == list(known.parents)
        assert segment["childIds"] == list(known.children)
        assert segment["createdAtEpoch"] == known.created_epoch
        assert segment["sealedAtEpoch"] == known.sealed_epoch
        assert segment["createdAtMs"] == known.created_ms
        assert segment["sealedAtMs"] == known.sealed_ms
        assert (segment["active"], segment["sealed"]) == (known.is_active, known.is_sealed)
        assert (segment["root"], segment["leaf"]) == (not known.parents, not known.children)
        assert segment["legacy"] is False


def test_the_topics_id_is_stored_once_and_is_that_of_layout_and_plan() -> None:
    layout = SegmentLayout.initial(1, 5, "7f3a0c5e")
    plan = ReshapePlan(PlanKind.SPLIT, (SegmentId(0),), layout.split(0, 9))
    stored = ScalableTopic(layout, 17, plan=plan).encode()
    assert stored.count(b"7f3a0c5e") == 1
    found = ScalableTopic.decode(stored)
    assert found.plan is not None
    assert found.layout.topic_id == found.plan.result.topic_id == "7f3a0c5e"
    assert found.published().layout.topic_id == "7f3a0c5e"


def test_a_record_of_before_there_were_ids_is_told_from_others_by_its_generation() -> None:
    value = json.loads(ScalableTopic(SegmentLayout.initial(1, 5, "7f3a0c5e"), 17).encode())
    del value["topicId"]
    old = json.dumps(value, separators=(",", ":")).encode()
    assert ScalableTopic.decode(old).layout.topic_id == "generation-17"
    assert ScalableTopic.decode(old).encode() == old
    assert ScalableTopic.decode(json.dumps({**value, "generation": 18}).encode()).layout.topic_id != (
        "generation-17"
    )
    # One that Pulsar wrote has neither.
    del value["generation"]
    assert ScalableTopic.decode(json.dumps(value).encode()).layout.topic_id == ""


def test_a_segment_of_a_migrated_topic_names_the_classic_one() -> None:
    layout = SegmentLayout.migrated(["persistent://a/b/t"], 5)
    value = ScalableTopic(layout, generation=1).metadata()["segments"]["0"]
    assert (value["legacy"], value["legacyTopicName"]) == (True, "persistent://a/b/t")


def test_thousands_of_segments_and_a_plan_fit_into_one_stored_record() -> None:
    layout = SegmentLayout.initial(1, NOW_MS)
    for n in range(2000):
        widest = max(layout.active, key=lambda s: (len(s.range), -s.id))
        layout = layout.split(widest.id, NOW_MS + n)
    topic = ScalableTopic(layout, generation=1).planned(split_plan(layout, layout.active[0].id))
    assert len(topic.encode()) < VALUE_BYTES_MAX
    assert ScalableTopic.decode(topic.encode()) == topic


def test_a_record_with_pulsars_fields_alone_can_be_read() -> None:
    bare: dict[str, Any] = {
        "epoch": 0,
        "nextSegmentId": 1,
        "segments": {
            "0": {
                "segmentId": 0,
                "hashRange": {"start": 0, "end": HASH_MAX},
                "state": "ACTIVE",
                "parentIds": [],
                "childIds": [],
                "createdAtEpoch": 0,
                "sealedAtEpoch": 0,
            }
        },
        "properties": None,
        "somethingNew": 1,
    }
    topic = ScalableTopic.decode(json.dumps(bare).encode())
    assert topic == ScalableTopic(SegmentLayout.initial(1, 0), generation=0)


def damaged(change: str, to: Any) -> bytes:
    value: Any = json.loads(ScalableTopic(SegmentLayout.initial(2, 0).split(0, 1), generation=1).encode())
    *way, last = change.split(".")
    at = value
    for key in way:
        at = at[key]
    at[last] = to
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("segments.2.hashRange", {"start": 0, "end": 5}),
        ("segments.1.state", "SEALED"),
        ("segments.0.state", "ACTIVE"),
        ("segments.0.hashRange", {"start": 9, "end": 5}),
        ("segments.2.parentIds", []),
        ("segments.2.parentIds", [17]),
        ("segments.0.childIds", [2]),
        ("segments.1.childIds", [3]),
        ("segments.2.segmentId", 1),
        ("segments.1.deleting", True),
        ("nextSegmentId", 3),
        ("segments", {}),
        ("segments", None),
        ("plan", {"kind": "divide", "parentIds": [1], "result": {}}),
        ("plan", {"kind": "split", "parentIds": [1], "result": {}}),
    ],
)
def test_a_damaged_record_is_refused_not_guessed_at(change: str, to: Any) -> None:
    with pytest.raises(BadRecord):
        ScalableTopic.decode(damaged(change, to))


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"{}", b"\xff\xfe", b'"x"'])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    for decode in (ScalableTopic.decode, SubscriptionRecord.decode, ConsumerRecord.decode):
        with pytest.raises(BadRecord):
            decode(data)


def test_a_broken_layout_is_not_written() -> None:
    half = SegmentLayout(0, SegmentId(1), {SegmentId(0): SegmentLayout.initial(2, 0).segment(0)})
    with pytest.raises(AssertionError):
        ScalableTopic(half, generation=1).encode()


@given(histories(), properties, policies)
def test_properties_and_policy_stay_through_every_change_of_the_layout(
    history: list[SegmentLayout], kept: dict[str, str], policy: dict[str, Any] | None
) -> None:
    topic = ScalableTopic(history[0], generation=4, properties=kept, auto_scale=policy, routing="high")
    for layout in history[1:]:
        grown = [n for n in layout.segments if n not in topic.layout.segments]
        if not grown:
            # A prune is no plan.
            topic = replace(topic, layout=layout)
            continue
        parents = layout.segments[grown[0]].parents
        planned = topic.planned(ReshapePlan(PlanKind.SPLIT, parents, layout))
        topic = ScalableTopic.decode(ScalableTopic.decode(planned.encode()).published().encode())
        assert topic.layout == layout
        assert topic.plan is None
    assert (topic.properties, topic.auto_scale, topic.generation, topic.routing) == (kept, policy, 4, "high")


def test_a_change_of_properties_made_while_a_plan_was_pending_is_in_what_is_published() -> None:
    topic = ScalableTopic(SegmentLayout.initial(1, 0), generation=1, properties={"a": "1"})
    topic = topic.planned(split_plan(topic.layout, SegmentId(0)))
    renamed = ScalableTopic(topic.layout, topic.generation, {"a": "2"}, topic.plan)
    assert renamed.published().properties == {"a": "2"}


def test_a_plan_names_its_children_and_is_named_by_its_epoch() -> None:
    layout = SegmentLayout.initial(2, 0)
    split = split_plan(layout, SegmentId(1))
    assert (split.id, [c.id for c in split.children]) == (1, [2, 3])
    merge = ReshapePlan(PlanKind.MERGE, (SegmentId(0), SegmentId(1)), layout.merge(0, 1, 5))
    assert (merge.id, [c.id for c in merge.children]) == (1, [2])


def test_a_second_plan_is_never_stored_over_a_pending_one() -> None:
    topic = ScalableTopic(SegmentLayout.initial(2, 0), generation=1)
    topic = topic.planned(split_plan(topic.layout, SegmentId(0)))
    with pytest.raises(AssertionError):
        topic.planned(split_plan(topic.layout, SegmentId(1)))


# -- what owners may do by it


@given(records())
def test_without_a_reason_in_the_record_nothing_is_made_sealed_or_deleted(topic: ScalableTopic) -> None:
    now = topic.layout.segments
    planned = topic.plan.result.segments if topic.plan else now
    for number in map(SegmentId, range(max(planned) + 3)):
        there, then = now.get(number), planned.get(number)
        span = then.range if then else WHOLE
        alive = not topic.is_deleting
        assert topic.may_create(number, span) == (alive and then is not None and then.is_active)
        assert topic.may_seal(number) == (alive and then is not None and then.is_sealed)
        is_leftover = then is None and there is None and number < topic.layout.next_id
        is_marked = there is not None and there.is_deleting
        assert topic.may_delete(number) == (topic.is_deleting or is_leftover or is_marked)


def test_a_plan_allows_its_children_to_be_made_and_its_parent_to_be_sealed() -> None:
    calm = ScalableTopic(SegmentLayout.initial(2, 0), generation=1)
    topic = calm.planned(split_plan(calm.layout, SegmentId(0)))
    parent, left = SegmentId(0), SegmentId(2)
    assert topic.may_create(left, HashRange(0, 0x3FFF))
    assert topic.may_seal(parent)
    # Made again, a parent about to be sealed would come back empty and writable.
    assert not topic.may_create(parent, HashRange(0, 0x7FFF))
    assert not topic.may_delete(left)
    assert not topic.may_delete(parent)
    assert not calm.may_create(left, HashRange(0, 0x3FFF))
    assert not calm.may_seal(parent)


def test_a_segment_is_not_made_with_another_range_than_the_records() -> None:
    topic = ScalableTopic(SegmentLayout.initial(2, 0), generation=1)
    assert topic.may_create(SegmentId(0), HashRange(0, 0x7FFF))
    assert not topic.may_create(SegmentId(0), HashRange(0, 0x7FFE))


@given(records())
def test_no_segment_may_be_both_made_and_deleted_or_made_and_sealed(topic: ScalableTopic) -> None:
    layout = topic.plan.result if topic.plan else topic.layout
    for number, segment in layout.segments.items():
        if topic.may_create(number, segment.range):
            assert not topic.may_seal(number)
            assert not topic.may_delete(number)


# -- subscriptions and sessions


@given(
    names,
    st.sampled_from(SubscriptionKind),
    st.integers(0, 2**40),
    st.none() | st.sampled_from(InitialPosition),
    st.booleans(),
)
def test_a_subscription_reads_back_as_it_was_written(
    name: str, kind: SubscriptionKind, generation: int, initial: InitialPosition | None, deleting: bool
) -> None:
    record = SubscriptionRecord(name, kind, generation, initial, deleting)
    assert SubscriptionRecord.decode(record.encode()) == record
    assert json.loads(record.encode())["type"] == kind.value


shares = st.dictionaries(segment_ids, st.lists(st.integers(0, 1023), unique=True).map(tuple), max_size=3)


@given(
    names,
    st.sampled_from(SubscriptionKind),
    st.lists(segment_ids),
    st.lists(segment_ids),
    shares,
    st.booleans(),
)
def test_a_session_reads_back_as_it_was_written(
    name: str,
    kind: SubscriptionKind,
    assigned: list[SegmentId],
    finished: list[SegmentId],
    shared: dict[SegmentId, tuple[int, ...]],
    knows_buckets: bool,
) -> None:
    record = ConsumerRecord(name, kind, tuple(assigned), tuple(finished), shared, knows_buckets)
    assert ConsumerRecord.decode(record.encode()) == record


def test_a_session_is_stored_as_a_name_a_kind_and_an_assignment_and_nothing_about_being_alive() -> None:
    record = ConsumerRecord("c1", SubscriptionKind.STREAM, (SegmentId(3), SegmentId(1)))
    assert json.loads(record.encode()) == {
        "consumerName": "c1",
        "consumerType": "STREAM",
        "assignedSegments": [3, 1],
    }


@pytest.mark.parametrize(
    "data", [b'{"consumerName":"c","consumerType":"BATCH"}', b'{"consumerType":"STREAM"}']
)
def test_a_session_of_an_unknown_kind_or_without_a_name_is_refused(data: bytes) -> None:
    with pytest.raises(BadRecord):
        ConsumerRecord.decode(data)


def test_lopsided_splits_are_stored_under_a_name_of_our_own_and_only_if_there_were_any() -> None:
    layout = SegmentLayout.initial(1, 1).split(0, 2, lopsided=4)
    assert [segment_json(s).get("lopsidedSplits") for s in layout.segments.values()] == [None, 4, 4]
    topic = ScalableTopic(layout, generation=1)
    assert ScalableTopic.decode(topic.encode()) == topic


# -- entry buckets


def test_even_buckets_are_stored_by_their_number_and_any_others_by_their_starts() -> None:
    layout = SegmentLayout.initial(1, 5, budget=BucketBudget(1024))
    value = json.loads(ScalableTopic(layout, 17).encode())
    segment = value["segments"]["0"]
    assert (segment["entryBuckets"], "entryBucketSplits" in segment) == (1024, False)
    assert ScalableTopic.decode(json.dumps(value).encode()).layout == layout
    del segment["entryBuckets"]
    segment["entryBucketSplits"] = [5, 70]
    read = ScalableTopic.decode(json.dumps(value).encode())
    assert read.layout.segment(0).bucket_splits == (5, 70)
    assert ScalableTopic.decode(read.encode()) == read


def test_a_thousand_buckets_cost_a_few_bytes_a_segment() -> None:
    """Sealed predecessors carry theirs, too."""

    def size(budget: BucketBudget) -> int:
        layout = SegmentLayout.initial(64, 5, budget=budget)
        for segment in layout.active:
            layout = layout.split(segment.id, 7)
        return len(ScalableTopic(layout, 17).encode())

    assert 0 < size(BucketBudget(64 * 1024)) - size(BucketBudget(1)) < 25 * 3 * 64


def test_a_segment_in_json_lists_the_starts_of_its_buckets() -> None:
    segment = SegmentLayout.initial(1, 5, budget=BucketBudget()).segment(0)
    assert segment_json(segment)["entryBucketSplits"] == [16384, 32768, 49152]


def test_a_record_without_buckets_has_one_a_segment() -> None:
    value = json.loads(ScalableTopic(SegmentLayout.initial(2, 5, budget=BucketBudget()), 17).encode())
    for segment in value["segments"].values():
        del segment["entryBuckets"]
    read = ScalableTopic.decode(json.dumps(value).encode())
    assert [one.bucket_count for one in read.layout.active] == [1, 1]


@pytest.mark.parametrize(
    "bad", [{"entryBucketSplits": [9, 3]}, {"entryBucketSplits": [0]}, {"entryBuckets": 0}]
)
def test_a_record_whose_buckets_make_no_sense_is_refused(bad: dict[str, object]) -> None:
    value = json.loads(ScalableTopic(SegmentLayout.initial(1, 5), 17).encode())
    value["segments"]["0"] |= bad
    with pytest.raises(BadRecord):
        ScalableTopic.decode(json.dumps(value).encode())
