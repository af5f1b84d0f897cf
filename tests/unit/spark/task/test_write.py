"""A task's rows become attempts that are complete, whatever happens to connections on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from anabranch.client.errors import BadArgument
from anabranch.client.producing import entries
from anabranch.spark.columns.sink_columns import BadColumn, SinkColumns
from anabranch.spark.options.sink import SinkOptions
from anabranch.spark.task.tally import RowTally
from anabranch.spark.task.write import TaskOutcome, WritePlan, write_rows
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from anabranch.wire.entry import parse_metadata
from anabranch.wire.extensions import WRITE_DECIDED
from unit.client.scripted_thread import SEGMENT, ScriptedThread

TOPIC = "topic://public/default/t"


@pytest.fixture
def broker() -> Iterator[ScriptedThread]:
    made = ScriptedThread()
    yield made
    made.close()


def batch(*values: str, topic: str | None = None) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": list(values)}
    if topic is not None:
        columns["topic"] = [topic] * len(values)
    return pa.RecordBatch.from_pydict(columns)


def write(broker: ScriptedThread, rows: Iterator[Any], show_s: float = 60.0, **more: Any) -> TaskOutcome:
    options = SinkOptions(broker.script.url, **{"topic": TOPIC, "timeout_s": 20.0, **more})
    columns = SinkColumns("value", topic=None if options.topic else "topic")
    numbers = count(1)
    return write_rows(
        WritePlan(options, columns), "w", 0, rows, lambda: UUID(int=next(numbers)), show_s=show_s
    )


def stored(broker: ScriptedThread, attempt: int) -> list[bytes]:
    return [
        bytes(payload)
        for entry in broker.script.entries
        if parse_metadata(entry).txnid_least_bits == attempt
        for _, payload in messages(entry)
    ]


def test_all_rows_of_a_task_are_one_attempt(broker: ScriptedThread) -> None:
    outcome = write(broker, iter([batch("a", "b"), batch(), batch("c")]))
    assert outcome == TaskOutcome((UUID(int=1),), frozenset({SEGMENT}), RowTally(3, 3, sum(b"abc")))
    assert stored(broker, 1) == [b"a", b"b", b"c"]


def test_a_task_without_rows_attaches_nothing(broker: ScriptedThread) -> None:
    assert write(broker, iter([batch()])) == TaskOutcome((), frozenset(), RowTally())
    assert not broker.script.asked


def test_a_task_has_a_producer_before_its_first_row(broker: ScriptedThread) -> None:
    def rows() -> Iterator[Any]:
        broker.until(lambda: SEGMENT in broker.script.producers)
        yield batch("a")

    outcome = write(broker, rows(), show_s=0.01)
    # The first one is of the producer that only shows that the task runs.
    assert outcome == TaskOutcome((UUID(int=2),), frozenset({SEGMENT}), RowTally(1, 1, ord("a")))
    assert stored(broker, 2) == [b"a"]


def test_a_task_without_rows_that_takes_its_time_has_a_producer_and_names_no_attempt(
    broker: ScriptedThread,
) -> None:
    def rows() -> Iterator[Any]:
        broker.until(lambda: SEGMENT in broker.script.producers)
        yield batch()

    outcome = write(broker, rows(), show_s=0.01)
    assert (outcome.attempts, outcome.tally) == ((), RowTally())


def test_a_task_that_waits_for_its_first_row_hears_then_that_the_write_is_decided(
    broker: ScriptedThread,
) -> None:
    broker.script.refusals[SEGMENT] = [pb.UnknownError] * 3
    broker.script.refusal_text = f"{WRITE_DECIDED}: w/0"

    def rows() -> Iterator[Any]:
        broker.until(lambda: len(broker.script.refusals[SEGMENT]) < 3)
        yield batch("a")

    outcome = write(broker, rows(), show_s=0.01)
    assert (outcome.is_decided, outcome.tally.rows) == (True, 1)


def test_an_attempt_in_doubt_is_written_again_as_another(broker: ScriptedThread) -> None:
    script = broker.script
    script.receipts = False

    def rows() -> Iterator[Any]:
        yield batch(*["x" * (1 << 20)] * 5)
        broker.until(lambda: script.sent)
        script.receipts = True

        async def cut() -> None:
            script.links[-1].cut()

        broker.run(cut)
        yield batch("b")

    outcome = write(broker, rows())
    assert outcome.attempts == (UUID(int=2),)
    assert outcome.tally.rows == 6
    assert [len(value) for value in stored(broker, 2)] == [1 << 20] * 5 + [1]


def test_the_id_of_a_topic_is_told_as_it_was_when_the_attempts_that_are_complete_were_written(
    broker: ScriptedThread,
) -> None:
    script = broker.script
    script.layout = replace(script.layout, topic_id="former")
    script.receipts = False

    def rows() -> Iterator[Any]:
        yield batch(*["x" * (1 << 20)] * 5)
        broker.until(lambda: script.sent)
        # All of it is written again, to the topic as it is by then.
        script.receipts = True
        script.layout = replace(script.layout, topic_id="present")

        async def cut() -> None:
            script.links[-1].cut()

        broker.run(cut)
        yield batch("b")

    outcome = write(broker, rows())
    assert outcome.topics == {SEGMENT}
    assert outcome.written == {(SEGMENT, "present")}


def test_a_decided_write_is_read_to_its_end_and_not_written(broker: ScriptedThread) -> None:
    broker.script.refusals[SEGMENT] = [pb.UnknownError]
    broker.script.refusal_text = f"{WRITE_DECIDED}: w/0"
    left = iter([batch("a" * (5 << 20)), batch("b"), batch("c")])
    outcome = write(broker, left)
    assert outcome.is_decided
    assert outcome.attempts == ()
    assert list(left) == []
    assert not broker.script.sent
    assert outcome.tally == RowTally(3, (5 << 20) + 2, (5 << 20) * ord("a") + ord("b") + ord("c"))


def test_rows_go_to_the_topics_they_name(broker: ScriptedThread) -> None:
    other = "topic://public/default/u"
    rows = [batch("a", topic=TOPIC), batch("b", topic=other), batch("c", topic=TOPIC)]
    outcome = write(broker, iter(rows), topic=None)
    assert outcome.tally.rows == 3
    assert sorted(stored(broker, 1)) == [b"a", b"b", b"c"]


def test_a_row_without_a_topic_fails_the_task(broker: ScriptedThread) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["a"], "topic": pa.array([None], pa.string())})
    with pytest.raises(BadColumn, match="'topic' is null in a row"):
        write(broker, iter([rows]), topic=None)


def test_a_row_that_no_reader_would_unpack_fails_the_task(
    broker: ScriptedThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered here, as a quarter of a gigabyte takes its time."""
    monkeypatch.setattr(entries, "UNPACKED_BYTES_MAX", 10_000)
    with pytest.raises(BadArgument, match="readers unpack 10000 at most"):
        write(broker, iter([batch("a", "x" * 10_001)]), compression="zstd")


def test_a_broker_that_cannot_be_reached_fails_the_task_in_time() -> None:
    options = SinkOptions("pulsar://127.0.0.1:1", topic=TOPIC, timeout_s=0.3)
    with pytest.raises(TimeoutError, match=r"not opened within 0\.3 s"):
        write_rows(WritePlan(options, SinkColumns("value")), "w", 0, iter([batch("a")]), lambda: UUID(int=1))


def test_a_broker_that_refuses_the_producer_for_too_long_is_quoted(broker: ScriptedThread) -> None:
    broker.script.refusals[SEGMENT] = [pb.ServiceNotReady] * 10_000
    broker.script.refusal_text = "the disk is full: nothing can be published"
    with pytest.raises(TimeoutError, match="the disk is full"):
        write(broker, iter([batch("a")]), timeout_s=0.5)


def test_what_was_written_before_the_write_was_decided_is_told(broker: ScriptedThread) -> None:
    script = broker.script

    def rows() -> Iterator[Any]:
        yield batch(*["x" * (1 << 20)] * 5)
        broker.until(lambda: script.sent)

        async def decided() -> None:
            script.refusals[SEGMENT] = [pb.NotAllowedError]
            script.refusal_text = f"{WRITE_DECIDED}: w/0"
            link, number = script.producers[SEGMENT]
            link.send(pb.BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=number, request_id=1)

        broker.until(lambda: len(script.sent) == 5)
        broker.run(decided)
        yield batch("b")

    outcome = write(broker, rows())
    assert (outcome.attempts, outcome.is_decided) == ((), True)
    assert outcome.topics == {SEGMENT}
