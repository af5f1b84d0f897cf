"""A topic that was deleted and made again is another one: no row of it is skipped for what was read of the former."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anabranch import blocking
from anabranch.client.errors import TopicDeleted, TopicMadeAgain
from harness.broker_process import BrokerProcess
from spark.conftest import River
from spark.dry import DryQuery, values

_numbers = itertools.count(1)

Make = Callable[..., River]
Ask = Callable[..., DryQuery]


@pytest.fixture
def make(broker: BrokerProcess) -> Iterator[Make]:
    made: list[River] = []

    def make_one(name: str, count: int, *, first: int = 0) -> River:
        made.append(River(broker, name))
        made[-1].published = first
        made[-1].publish(count)
        return made[-1]

    yield make_one
    for river in made:
        river.close()


@pytest.fixture
def ask(broker: BrokerProcess) -> Iterator[Ask]:
    made: list[DryQuery] = []

    def ask_one(topic: str, **options: object) -> DryQuery:
        # Short, so that a wait for what never comes fails the test by its error.
        given = {"serviceUrl": broker.url, "start": "earliest", "timeoutSeconds": 30, **options}
        made.append(DryQuery(topic=topic, **given))
        return made[-1]

    yield ask_one
    for query in made:
        query.stop()


def name() -> str:
    return f"made-again-{next(_numbers)}"


def assert_refused_then_read_from_its_beginning(query: DryQuery, expected: list[int]) -> None:
    """What a query that was down does: fails, and says why; or, if it may lose data, reads the new topic."""
    before = query.offset
    query.restart()
    with pytest.raises(TopicMadeAgain, match=r"deleted and made again.*failOnDataLoss=false"):
        query.trigger()
    assert query.offset == before
    query.restart(failOnDataLoss="false")
    assert values(query.catch_up()) == expected
    query.restart(failOnDataLoss="true")
    assert query.catch_up() == []


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_of_a_topic_with_the_same_segments_every_row_is_read(make: Make, ask: Ask, mode: str) -> None:
    former = make(name(), 5)
    former.split(0)
    former.publish(5)
    query = ask(former.topic, readMode=mode)
    assert values(query.catch_up()) == list(range(10))
    former.delete()
    other = make(former.topic.rpartition("/")[2], 15, first=100)
    other.split(0)
    other.publish(5)
    assert_refused_then_read_from_its_beginning(query, list(range(100, 120)))


@pytest.mark.parametrize("mode", ["direct", "broker"])
def test_also_where_nothing_was_read_behind_the_former_split(make: Make, ask: Ask, mode: str) -> None:
    former = make(name(), 5)
    former.split(0)
    query = ask(former.topic, readMode=mode)
    assert values(query.catch_up()) == list(range(5))
    former.delete()
    other = make(former.topic.rpartition("/")[2], 15, first=100)
    other.split(0)
    other.publish(5)
    assert_refused_then_read_from_its_beginning(query, list(range(100, 120)))


def test_rows_that_went_with_the_former_topic_are_told(make: Make, ask: Ask) -> None:
    former = make(name(), 5)
    query = ask(former.topic)
    assert values(query.catch_up()) == list(range(5))
    former.publish(5)
    former.delete()
    make(former.topic.rpartition("/")[2], 4, first=100)
    assert_refused_then_read_from_its_beginning(query, list(range(100, 104)))


def test_a_topic_with_fewer_splits_is_refused_at_once(make: Make, ask: Ask) -> None:
    former = make(name(), 5)
    former.split(0)
    former.publish(5)
    query = ask(former.topic)
    query.catch_up()
    former.delete()
    make(former.topic.rpartition("/")[2], 4, first=100)
    assert_refused_then_read_from_its_beginning(query, list(range(100, 104)))


def test_a_running_query_fails_and_so_does_its_next_run(make: Make, ask: Ask) -> None:
    former = make(name(), 5)
    former.split(0)
    former.publish(5)
    query = ask(former.topic)
    query.catch_up()
    former.delete()
    other = make(former.topic.rpartition("/")[2], 5, first=100)
    other.split(0)
    other.publish(5)

    def goes_on() -> None:
        while True:
            assert not query.trigger(), "rows of another topic"

    with pytest.raises(TopicDeleted):
        goes_on()
    assert_refused_then_read_from_its_beginning(query, list(range(100, 110)))


@pytest.mark.parametrize("mode", ["direct", "auto", "broker"])
def test_a_batch_that_was_planned_reads_no_row_of_another_topic(make: Make, ask: Ask, mode: str) -> None:
    former = make(name(), 5)
    query = ask(former.topic, readMode=mode)
    start = query.offset
    query.catch_up()
    planned = query.tasks(start, query.offset)
    lenient = ask(former.topic, readMode=mode, failOnDataLoss="false").tasks(start, query.offset)
    former.delete()
    make(former.topic.rpartition("/")[2], 5, first=100)
    with pytest.raises(Exception, match="deleted and made again"):
        query.read(planned)
    if mode != "direct":
        assert query.read(lenient) == []


def without_ids(query: DryQuery) -> None:
    """As an earlier release wrote its offsets."""
    value = query.offset
    value["topics"] = {
        topic: {"places": cut["places"], "version": 1} for topic, cut in value["topics"].items()
    }
    query.log.append(json.dumps(value))


def ids(query: DryQuery) -> list[str | None]:
    return [cut.get("topic") for cut in query.offset["topics"].values()]


def test_an_offset_without_an_id_goes_on_and_gets_one(make: Make, ask: Ask) -> None:
    river = make(name(), 5)
    river.split(0)
    river.publish(5)
    query = ask(river.topic)
    query.catch_up()
    (topic_id,) = ids(query)
    without_ids(query)
    query.restart()
    assert query.catch_up() == []
    assert ids(query) == [topic_id]
    river.publish(5)
    assert values(query.catch_up()) == list(range(10, 15))


@pytest.mark.parametrize("behind", [0, 5])
def test_an_offset_without_an_id_is_not_taken_for_one_of_another_topic(
    make: Make, ask: Ask, behind: int
) -> None:
    former = make(name(), 5)
    former.split(0)
    former.publish(behind)
    query = ask(former.topic)
    query.catch_up()
    without_ids(query)
    former.delete()
    other = make(former.topic.rpartition("/")[2], 5, first=100)
    other.split(0)
    other.publish(5)
    query.restart()
    with pytest.raises(TopicMadeAgain):
        query.trigger()
    query.restart(failOnDataLoss="false")
    assert values(query.catch_up()) == list(range(100, 110))


# -- classic topics


class Classic:
    """A classic topic, with partitions or without."""

    def __init__(self, broker: BrokerProcess, name: str, partitions: int) -> None:
        self.topic = f"persistent://public/default/{name}"
        self.path = f"persistent/public/default/{name}" + ("/partitions" if partitions else "")
        self.broker = broker
        broker.put(self.path, partitions or None)

    def publish(self, numbers: range) -> None:
        with blocking.connect(self.broker.url) as client, client.producer(self.topic) as producer:
            for number in numbers:
                producer.post(b"%d" % number, key=f"key-{number % 7}")

    def delete(self) -> None:
        self.broker.rest("DELETE", f"{self.path}?force=true")


@pytest.mark.parametrize("partitions", [0, 2])
def test_classic_topics_have_ids_too(broker: BrokerProcess, ask: Ask, partitions: int) -> None:
    former = Classic(broker, name(), partitions)
    former.publish(range(10))
    query = ask(former.topic)
    assert values(query.catch_up()) == list(range(10))
    former.delete()
    other = Classic(broker, former.topic.rpartition("/")[2], partitions)
    other.publish(range(100, 105))
    assert_refused_then_read_from_its_beginning(query, list(range(100, 105)))


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_classic_topic_keeps_its_id_when_it_is_migrated(
    broker: BrokerProcess, ask: Ask, partitions: int
) -> None:
    classic = Classic(broker, name(), partitions)
    classic.publish(range(10))
    query = ask(classic.topic)
    query.catch_up()
    (topic_id,) = ids(query)
    assert topic_id
    if partitions:
        broker.post(classic.path, partitions + 1)
        classic.publish(range(10, 20))
        assert len(query.catch_up()) == 10
        assert ids(query) == [topic_id]
    local = classic.topic.rpartition("/")[2]
    broker.post(f"scalable/public/default/{local}/migrate?force=true")
    with (
        blocking.connect(broker.url) as client,
        client.producer(f"topic://public/default/{local}") as producer,
    ):
        producer.send(b"1000")
    query.restart()
    assert values(query.catch_up()) == [1000]
    assert ids(query) == [topic_id]


def test_a_plan_of_files_is_refused_to_who_comes_with_another_topics_position_or_id(
    broker: BrokerProcess, make: Make
) -> None:
    former = make(name(), 5)
    record = broker.get(former.path)
    segment = f"segment/public/default/{former.topic.rpartition('/')[2]}/0000-ffff-0"

    def plan(**query: Any) -> Any:
        return broker.get(f"anabranch/read-plan/{segment}?" + "&".join(f"{k}={v}" for k, v in query.items()))

    end = plan(topicId=record["topicId"])["end"]
    assert plan(start=end, topicId=record["topicId"])["runs"] == []
    former.delete()
    other = make(former.topic.rpartition("/")[2], 5)
    assert plan(topicId=broker.get(other.path)["topicId"])["runs"]
    for asked in ({"start": end}, {"end": end}, {"topicId": record["topicId"]}):
        with pytest.raises(Exception, match="412"):
            plan(**asked)
