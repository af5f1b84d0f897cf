"""Which publishes count as seen before where each entry bucket's ids rise on their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.state import bucket_dedup, topic_state
from anabranch.broker.state.bucket_dedup import BucketDeduplication, StoredLanes, lane_of, noted
from anabranch.broker.state.dedup import WHOLE, LaneIds
from anabranch.model.buckets import even, ranges
from anabranch.model.position import Position
from anabranch.wire import pulsar_pb2 as pb

FOUR = even(4)


def metadata(name: str, last: int, stamp: tuple[int, int] | None) -> pb.MessageMetadata:
    made = pb.MessageMetadata(producer_name=name, sequence_id=last, publish_time=1)
    if stamp is not None:
        made.entry_hash_min, made.entry_hash_max = stamp
    return made


def in_bucket(bucket: int) -> tuple[int, int]:
    span = ranges(FOUR)[bucket]
    return span.start + 3, span.end - 3


# -- lanes


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(1, 64))
def test_an_entry_is_in_the_one_bucket_that_contains_its_range(one: int, other: int, count: int) -> None:
    low, high = sorted((one, other))
    splits = even(count)
    found = lane_of(splits, metadata("p", 0, (low, high)))
    holding = [n for n, span in enumerate(ranges(splits)) if low in span and high in span]
    assert found == (holding[0] if holding else WHOLE)


@pytest.mark.parametrize("splits", [FOUR, (5,), (1, 2, 3, 0xFFFF)])
def test_the_bounds_of_buckets_belong_to_them(splits: tuple[int, ...]) -> None:
    for number, span in enumerate(ranges(splits)):
        assert lane_of(splits, metadata("p", 0, (span.start, span.end))) == number
        if span.end < 0xFFFF:
            assert lane_of(splits, metadata("p", 0, (span.end, span.end + 1))) == WHOLE


def broken(low: int | None, high: int | None) -> pb.MessageMetadata:
    made = metadata("p", 0, None)
    if low is not None:
        made.entry_hash_min = low
    if high is not None:
        made.entry_hash_max = high
    return made


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (None, None),
        (7, None),
        (None, 7),
        (0, None),
        (None, 0),
        (8, 7),
        (7, 0x10000),
        (0x10000, 0x10000),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0),
    ],
)
def test_a_range_that_no_producer_can_mean_counts_as_none(low: int | None, high: int | None) -> None:
    assert lane_of(FOUR, broken(low, high)) == WHOLE


# -- the rule


def test_buckets_do_not_judge_each_other() -> None:
    table = BucketDeduplication(FOUR)
    table.push("p", 2, lane=1)
    table.push("p", 4, lane=1)
    assert not table.is_duplicate("p", 1, 0)
    assert not table.is_duplicate("p", 3, 0)
    assert table.is_duplicate("p", 4, 1)
    assert not table.is_duplicate("q", 1, 1)


def test_an_entry_in_no_single_bucket_is_judged_by_all_and_judges_all() -> None:
    table = BucketDeduplication(FOUR)
    table.push("p", 4, lane=1)
    assert table.is_duplicate("p", 3, WHOLE)
    table.push("p", 6, lane=WHOLE)
    assert table.is_duplicate("p", 6, 0)
    assert table.is_duplicate("p", 5, 3)
    assert not table.is_duplicate("p", 7, 0)


def test_a_producer_is_told_what_is_confirmed_of_each_bucket() -> None:
    table = BucketDeduplication(FOUR)
    table.push("p", 4, lane=1)
    table.push("p", 3, lane=0)
    table.confirm("p", 4, 1)
    assert table.confirmed_by("p") == {1: 4}
    assert table.last_confirmed("p") == 4
    assert table.is_behind("p"), "the lower id is not confirmed"
    table.confirm("p", 3, 0)
    assert table.confirmed_by("p") == {1: 4, 0: 3}
    assert not table.is_behind("p")


def test_producers_are_counted_and_not_their_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.broker.state.dedup.PRODUCERS_MAX", 3)
    table = BucketDeduplication(FOUR)
    for name in ("a", "b", "c"):
        for lane in range(4):
            table.push(name, 9, lane=lane)
    assert all(table.is_duplicate(name, 9, 3) for name in ("a", "b", "c"))
    table.push("a", 10, lane=0)
    table.push("d", 1, lane=0)
    assert table.pushed_by("b") == {}
    assert table.confirmed_by("b") == {}
    assert table.is_duplicate("a", 9, 3)


def test_ids_of_very_many_buckets_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_dedup, "IDS_MAX", 6)
    table = BucketDeduplication(FOUR)
    for name in ("a", "b"):
        for lane in range(4):
            table.push(name, lane, lane=lane)
    assert table.pushed_by("a") == {}
    assert table.pushed_by("b") == {0: 0, 1: 1, 2: 2, 3: 3}
    for lane in (-1, *range(4)):
        table.push("b", 9, lane=lane)
    assert len(table.pushed_by("b")) == 5


def test_what_was_stored_without_being_judged_is_known_only_as_far_as_it_is_certain() -> None:
    # A producer that began again from 0 has not stored 2 in bucket 1, whatever was there before.
    assert noted({1: 91}, 91, 0, 0) == {0: 0}
    assert noted({0: 0, 1: 1}, 1, 0, 2) == {0: 2, 1: 1}
    table = BucketDeduplication(FOUR, {"p": 91}, stored=StoredLanes(pushed={"p": {1: 91}}))
    table.replay(metadata("p", 0, in_bucket(0)), b"")
    assert not table.is_duplicate("p", 2, 1)
    assert table.last_confirmed("p") == 0


def test_what_was_judged_is_known_whichever_order_its_buckets_came_in() -> None:
    table = BucketDeduplication(FOUR, stored=StoredLanes(are_judged=True))
    for last, bucket in ((4, 1), (3, 0), (6, 1), (1, 2)):
        table.replay(metadata("p", last, in_bucket(bucket)), b"")
    assert table.confirmed_by("p") == {1: 6, 0: 3, 2: 1}


def test_a_chunked_message_counts_in_its_bucket_at_its_last_chunk() -> None:
    table = BucketDeduplication(FOUR, stored=StoredLanes(are_judged=True))
    for chunk in range(3):
        assert not table.is_duplicate("p", 5, 2)
        made = metadata("p", 5, in_bucket(2))
        made.chunk_id, made.num_chunks_from_msg = chunk, 3
        table.replay(made, b"")
    assert table.confirmed_by("p") == {2: 5}
    assert not table.is_duplicate("p", 5, 1)


# -- the stored state

LANES = st.dictionaries(st.integers(-1, 1023), st.integers(0, 2**63 - 1), min_size=1, max_size=6)
TABLES = st.dictionaries(st.text(max_size=5), LANES, max_size=4)
AS_OF: Position = (7, 40)


@given(TABLES, TABLES, st.booleans())
def test_the_stored_state_says_what_the_tables_knew(
    pushed: dict[str, LaneIds], unjudged: dict[str, LaneIds], are_judged: bool
) -> None:
    highest = {name: max(ids.values()) for name, ids in pushed.items()}
    image = StoredLanes(are_judged, pushed, unjudged).image(AS_OF)
    encoded = topic_state.encode_snapshot(
        {}, producers=highest, producers_as_of=AS_OF, is_sealed=False, extra={"b": image}
    )
    read = topic_state.decode_snapshot(encoded)
    stored = StoredLanes.of_image(read.extra["b"], read.producers_as_of)
    assert stored == StoredLanes(are_judged, pushed, unjudged)
    table = BucketDeduplication(FOUR, read.producers, stored=stored)
    assert {name: table.pushed_by(name) for name in pushed} == pushed
    assert {name: table.confirmed_by(name) for name in pushed} == pushed
    assert table.pushed == highest


def test_a_state_of_old_has_one_id_for_all_buckets_of_a_producer() -> None:
    stored = StoredLanes.of_image(None, AS_OF)
    table = BucketDeduplication(FOUR, {"p": 9}, stored=stored)
    assert table.confirmed_by("p") == {WHOLE: 9}
    assert table.is_duplicate("p", 9, 2)
    assert not table.is_duplicate("p", 10, 2)


def test_what_an_earlier_version_stored_since_makes_the_lanes_old() -> None:
    # It knows nothing of them, and stores them again as they were.
    image = StoredLanes(True, {"p": {0: 3, 1: 4}}, {"q": {2: 8}}).image(AS_OF)
    assert StoredLanes.of_image(image, (7, 41)) == StoredLanes()
    table = BucketDeduplication(FOUR, {"p": 6}, stored=StoredLanes.of_image(image, (7, 41)))
    assert table.confirmed_by("p") == {WHOLE: 6}


# -- any history


@dataclass(frozen=True)
class Batch:
    name: str
    lane: int
    last: int

    def metadata(self) -> pb.MessageMetadata:
        stamp = None if self.lane == WHOLE else in_bucket(self.lane)
        return metadata(self.name, self.last, stamp)


@dataclass
class Client:
    """A producer: what it has cut and not sent, and what it has sent and has no receipt of."""

    name: str
    next_id: int = 0
    unsent: deque[Batch] = field(default_factory=deque)
    unanswered: deque[tuple[Batch, int]] = field(default_factory=deque)
    cut: list[Batch] = field(default_factory=list)

    def post(self, how: str, random: Random) -> None:
        """Cuts some messages into batches, as clients do it in three ways."""
        ids: dict[int, int] = {}
        for _ in range(random.randint(1, 6)):
            lane = WHOLE if how == "unstamped" else random.randrange(4)
            ids[lane] = self.next_id
            self.next_id += random.randint(1, 2)
        batches = [Batch(self.name, lane, last) for lane, last in ids.items()]
        if how == "collapsed":
            batches.sort(key=lambda batch: batch.last)
        else:
            random.shuffle(batches)
        self.unsent.extend(batches)
        self.cut.extend(batches)


class Broker:
    """The table of a topic with its log, of which a crash leaves what is confirmed, or some more."""

    def __init__(self) -> None:
        self.log: list[Batch] = []
        self.confirmed = 0
        nothing: dict[str, int] = {}
        self.states = [(0, StoredLanes(are_judged=True), nothing)]
        self.table = BucketDeduplication(FOUR, stored=StoredLanes(are_judged=True))

    def publish(self, batch: Batch) -> int:
        """Returns how much of the log must be confirmed before the batch is receipted."""
        lane = lane_of(FOUR, batch.metadata())
        if not self.table.is_duplicate(batch.name, batch.last, lane):
            self.log.append(batch)
            self.table.push(batch.name, batch.last, -1, lane)
        return len(self.log)

    def confirm(self, end: int) -> None:
        for batch in self.log[self.confirmed : end]:
            self.table.confirm(batch.name, batch.last, batch.lane)
        self.confirmed = max(self.confirmed, end)

    def store_state(self) -> None:
        image = StoredLanes(True, dict(self.table.lanes_image())).image((1, len(self.log)))
        encoded = topic_state.encode_snapshot(
            {},
            producers=self.table.pushed,
            producers_as_of=(1, len(self.log)),
            is_sealed=False,
            extra={"b": image},
        )
        read = topic_state.decode_snapshot(encoded)
        stored = StoredLanes.of_image(read.extra["b"], read.producers_as_of)
        self.states.append((len(self.log), stored, read.producers))

    def crash(self, kept: int) -> None:
        del self.log[kept:]
        self.states = [one for one in self.states if one[0] <= kept]
        end, stored, producers = self.states[-1]
        self.table = BucketDeduplication(FOUR, producers, stored=stored)
        for batch in self.log[end:]:
            self.table.replay(batch.metadata(), b"")
        self.confirmed = kept


def check_told(broker: Broker, clients: list[Client]) -> None:
    stored = set(broker.log[: broker.confirmed])
    for client in clients:
        told = broker.table.confirmed_by(client.name)
        whole = told.get(WHOLE, -1)
        for batch in client.cut:
            upto = max(told.get(batch.lane, -1), whole) if batch.lane != WHOLE else whole
            assert batch.last > upto or batch in stored, f"{batch} was told as stored"
        assert broker.table.last_confirmed(client.name) == max(told.values(), default=-1)


STEPS = ["post", "post", "send", "send", "burst", "confirm", "receipts", "lose", "state", "crash"]


@given(st.integers(0, 2**32), st.integers(1, 100))
def test_whatever_comes_between_each_batch_is_stored_once_and_nobody_is_told_of_more(
    seed: int, steps: int
) -> None:
    random, broker, clients = Random(seed), Broker(), [Client("p"), Client("q")]

    def send(client: Client) -> None:
        if client.unsent:
            batch = client.unsent.popleft()
            client.unanswered.append((batch, broker.publish(batch)))

    def burst(client: Client) -> None:
        while client.unsent:
            send(client)

    def receipts(client: Client) -> None:
        while client.unanswered and client.unanswered[0][1] <= broker.confirmed:
            batch, _ = client.unanswered.popleft()
            assert batch in broker.log[: broker.confirmed], "receipted and not stored"

    def lose(client: Client) -> None:
        # It sends again what it has no receipt of, in the order in which it was sent.
        client.unsent.extendleft([batch for batch, _ in reversed(client.unanswered)])
        client.unanswered.clear()

    def crash(_: Client) -> None:
        broker.crash(random.randint(broker.confirmed, len(broker.log)))
        for client in clients:
            lose(client)

    acts: dict[str, Callable[[Client], None]] = {
        "post": lambda client: client.post(random.choice(["bucketed", "collapsed", "unstamped"]), random),
        "send": send,
        "burst": burst,
        "confirm": lambda _: broker.confirm(random.randint(broker.confirmed, len(broker.log))),
        "receipts": receipts,
        "lose": lose,
        "state": lambda _: broker.store_state(),
        "crash": crash,
    }
    for _ in range(steps):
        acts[random.choice(STEPS)](random.choice(clients))
        check_told(broker, clients)
    for client in clients:
        lose(client)
        burst(client)
    broker.confirm(len(broker.log))
    for client in clients:
        receipts(client)
        assert not client.unanswered
    sent = [batch for client in clients for batch in client.cut]
    assert sorted(map(repr, broker.log)) == sorted(map(repr, sent))
    check_told(broker, clients)
