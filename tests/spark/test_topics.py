"""Queries over several topics, and over namespaces in which topics come and go."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator

import pytest

from anabranch import blocking
from anabranch.client import DataLost
from anabranch.client.errors import TopicDeleted
from harness.broker_process import BrokerProcess, until
from spark.conftest import River
from spark.dry import DryQuery, values

_numbers = itertools.count(1)
WITHIN_S = 60.0

Make = Callable[..., River]
Ask = Callable[..., DryQuery]


@pytest.fixture
def namespace(broker: BrokerProcess) -> str:
    name = f"public/topics-{next(_numbers)}"
    broker.put(f"namespaces/{name}")
    broker.post(f"namespaces/{name}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    return name


@pytest.fixture
def make(broker: BrokerProcess, namespace: str) -> Iterator[Make]:
    """A topic of the namespace, with some messages."""
    made: list[River] = []

    def make_one(name: str, count: int = 0, **properties: str) -> River:
        made.append(River(broker, name, namespace=namespace, properties=properties))
        made[-1].publish(count)
        return made[-1]

    yield make_one
    for river in made:
        river.close()


@pytest.fixture
def ask(broker: BrokerProcess, namespace: str) -> Iterator[Ask]:
    """A query of the namespace, unless it names topics."""
    made: list[DryQuery] = []

    def ask_one(**options: object) -> DryQuery:
        given = {"serviceUrl": broker.url, "readMode": "broker", **options}
        if not {"topics", "topicsPattern"} & options.keys():
            given["namespace"] = namespace
        made.append(DryQuery(**given))
        return made[-1]

    yield ask_one
    for query in made:
        query.stop()


def test_topics_that_join_are_read_from_their_beginning_and_those_that_leave_are_dropped(
    make: Make, ask: Ask
) -> None:
    a, b = make("a", 3), make("b", 4)
    query = ask(start="earliest")
    rows = query.catch_up()
    assert values(rows) == [0, 0, 1, 1, 2, 2, 3]
    assert {row["topic"] for row in rows} == {a.topic, b.topic}
    make("c", 2)
    until(lambda: query.trigger() and "c" in query.topics, WITHIN_S)
    query.catch_up()
    assert values(query.batches[-1]) == [0, 1]
    b.delete()
    until(lambda: query.trigger() is not None, WITHIN_S)
    assert query.topics == {"a", "c"}
    a.publish(1)
    assert values(query.catch_up()) == [3]
    assert query.lags.keys() == {a.topic, a.topic[:-1] + "c"}


def test_a_topic_that_was_made_again_is_another_one(make: Make, ask: Ask) -> None:
    make("a", 1)
    b = make("b", 5)
    query = ask(start="earliest")
    assert len(query.catch_up()) == 6
    b.delete()
    make("b", 3)

    def has_other() -> bool:
        query.catch_up()
        return len(query.batches[-1]) == 3

    until(has_other, WITHIN_S)
    assert sum(map(len, query.batches)) == 9


def test_a_start_at_the_latest_is_that_of_all_topics_known_in_batch_0(make: Make, ask: Ask) -> None:
    a, b = make("a", 3), make("b", 3)
    query = ask()
    assert query.trigger() == []
    a.publish(1)
    b.split(0)
    b.publish(1)
    make("c", 2)
    until(lambda: query.catch_up() is not None and "c" in query.topics, WITHIN_S)
    query.catch_up()
    assert values([row for rows in query.batches for row in rows]) == [0, 1, 3, 3]


def test_a_deleted_topic_with_messages_that_were_not_read_fails_the_query_unless_told_otherwise(
    make: Make, ask: Ask
) -> None:
    a, b = make("a", 3), make("b", 3)
    query = ask(start="earliest", maxRowsPerTrigger=4)
    assert len(query.trigger() or ()) == 4
    late = a if query.lags[a.topic]["segments"]["0"]["entriesBehind"] else b
    late.delete()

    def fails() -> bool:
        try:
            query.trigger()
        except DataLost as error:
            return late.topic in str(error) and "failOnDataLoss=false" in str(error)
        return False

    until(fails, WITHIN_S)
    query.restart(failOnDataLoss="false")
    until(lambda: query.catch_up() is not None and len(query.topics) == 1, WITHIN_S)


def test_patterns_and_properties_say_which_topics_of_a_namespace_are_read(
    make: Make, ask: Ask, namespace: str, broker: BrokerProcess
) -> None:
    make("sales-eu", 1, tier="gold")
    make("sales-us", 2, tier="tin")
    make("stock", 3, tier="gold")
    by_name = ask(topicsPattern=f"{namespace}/sales-.*", start="earliest")
    assert len(by_name.catch_up()) == 3
    by_property = ask(propertyFilters="tier=gold", start="earliest")
    assert len(by_property.catch_up()) == 4
    # One that fits no more is let go without a word.
    broker.put(f"scalable/{namespace}/stock/properties", {"tier": "tin"})
    until(lambda: by_property.trigger() is not None, WITHIN_S)
    assert by_property.topics == {"sales-eu"}


def test_named_topics_may_start_at_different_places_and_be_changed_between_runs(make: Make, ask: Ask) -> None:
    a, b, c = make("a", 3), make("b", 4), make("c", 5)
    query = ask(topics=f"{a.topic},{b.topic}", start=json.dumps({a.topic: "latest", b.topic: "earliest"}))
    assert query.trigger() == []
    assert values(query.catch_up()) == [0, 1, 2, 3]
    query.restart(topics=f"{c.topic},{a.topic}", start="earliest")
    a.publish(1)
    assert values(query.catch_up()) == [0, 1, 2, 3, 3, 4]
    assert query.topics == {"a", "c"}


def test_a_named_topic_that_is_not_there_is_told(make: Make, ask: Ask, namespace: str) -> None:
    query = ask(topics=f"{make('a').topic},topic://{namespace}/typo")
    with pytest.raises(TopicDeleted, match="typo: there is no such topic"):
        query.trigger()


def test_a_named_topic_that_was_deleted_once_it_was_read_is_let_go(make: Make, ask: Ask) -> None:
    a, b = make("a", 3), make("b", 4)
    query = ask(topics=f"{a.topic},{b.topic}", start="earliest")
    assert len(query.catch_up()) == 7
    b.delete()
    until(lambda: query.trigger() is not None, WITHIN_S)
    assert query.topics == {"a"}
    query.restart()
    a.publish(1)
    query.until_now()
    assert values(query.catch_up()) == [3]


def test_a_named_topic_that_was_made_again_is_read_by_the_running_query(make: Make, ask: Ask) -> None:
    a, b = make("a", 3), make("b", 4)
    b.split(0)
    b.publish(2)
    query = ask(topics=f"{a.topic},{b.topic}", start="earliest")
    assert len(query.catch_up()) == 9
    b.delete()
    other = make("b", 5)
    other.split(0)
    other.publish(3)
    until(lambda: query.catch_up() is not None and sum(map(len, query.batches)) == 17, WITHIN_S)
    a.publish(1)
    assert values(query.catch_up()) == [3]
    query.restart()
    other.publish(1)
    assert values(query.catch_up()) == [8]


def test_a_named_topic_that_is_made_only_after_the_query_was_resumed_is_read(
    make: Make, ask: Ask, namespace: str
) -> None:
    a = make("a", 3)
    query = ask(topics=a.topic, start="earliest")
    assert len(query.catch_up()) == 3
    query.restart(topics=f"{a.topic},topic://{namespace}/b")
    a.publish(1)
    assert values(query.catch_up()) == [3]
    make("b", 2)
    until(lambda: query.catch_up() is not None and "b" in query.topics, WITHIN_S)
    assert values([row for rows in query.batches for row in rows]) == [0, 0, 1, 1, 2, 3]


def test_unread_messages_of_a_topic_that_was_made_again_are_told(make: Make, ask: Ask) -> None:
    a, b = make("a", 3), make("b", 3)
    query = ask(topics=f"{a.topic},{b.topic}", start="earliest", maxRowsPerTrigger=4)
    assert len(query.trigger() or ()) == 4
    late = a if query.lags[a.topic]["segments"]["0"]["entriesBehind"] else b
    late.delete()
    make(late.topic[-1], 2)

    def fails() -> bool:
        try:
            query.trigger()
        except DataLost as error:
            return late.topic in str(error)
        return False

    until(fails, WITHIN_S)


def test_what_is_available_now_has_no_topic_that_joins_later(make: Make, ask: Ask) -> None:
    a = make("a", 3)
    query = ask(start="earliest")
    query.until_now()
    a.publish(2)
    make("b", 2)
    assert values(query.catch_up()) == [0, 1, 2]
    assert query.topics == {"a"}


def test_a_batch_runs_again_though_one_of_its_topics_is_read_no_more(
    make: Make, ask: Ask, namespace: str
) -> None:
    a, b = make("a", 3), make("b", 3)
    query = ask(topics=f"{a.topic},{b.topic}", start="earliest")
    start = query.offset
    rows = query.trigger()
    query.restart(topics=a.topic)
    assert rows
    assert query.rows(start, query.offset) == rows


def test_a_limit_is_spent_on_the_oldest_messages_of_all_topics(make: Make, ask: Ask) -> None:
    a, b = make("a"), make("b")
    for _ in range(3):
        a.publish(2)
        b.publish(2)
    query = ask(start="earliest", maxRowsPerTrigger=6)
    first, second = query.trigger(), query.trigger()
    assert first is not None
    assert second is not None
    assert len(first) == len(second) == 6
    assert max(row["publish_time"] for row in first) <= min(row["publish_time"] for row in second)


def test_what_joined_while_the_query_was_down_is_held_from_its_beginning(make: Make, ask: Ask) -> None:
    make("a", 1)
    query = ask(subscription="table")
    assert query.trigger() == []
    query.restart(minRowsPerTrigger=1000)
    c = make("c", 2)
    until(lambda: query.trigger() == [] and "c" in query.topics, WITHIN_S)
    stats = c.broker.get(f"{c.path}/stats")
    assert int(stats["subscriptions"]["table"]["msgBacklog"]) > 0


def test_the_cursors_of_all_topics_move_when_nothing_is_new(make: Make, ask: Ask) -> None:
    a, b = make("a", 3), make("b", 3)
    query = ask(start="earliest", subscription="table")
    query.catch_up()

    def backlog() -> int:
        assert query.trigger() is None
        found = [river.broker.get(f"{river.path}/stats")["subscriptions"]["table"] for river in (a, b)]
        return sum(int(one["msgBacklog"]) for one in found)

    until(lambda: backlog() == 0, WITHIN_S)


def test_classic_topics_are_read_beside_scalable_ones(
    make: Make, ask: Ask, namespace: str, broker: BrokerProcess
) -> None:
    broker.put(f"persistent/{namespace}/old/partitions", 2)
    old = f"persistent://{namespace}/old"
    with blocking.connect(broker.url) as client, client.producer(old) as producer:
        for number in range(10):
            producer.post(b"%d" % number, key=f"key-{number}")
    query = ask(topics=f"{old},{make('new', 3).topic}", start="earliest", keyRange="0000-ffff")
    rows = query.catch_up()
    assert values([row for row in rows if row["topic"] == old]) == list(range(10))
    assert len(rows) == 13
