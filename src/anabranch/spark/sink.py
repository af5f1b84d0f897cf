"""The sink `anabranch`: passes Spark's calls on.

Spark makes a writer on the driver when it plans a write, copies it into every task to `write`, and on the driver calls
`commit` or `abort` with the tasks' results, on a copy or, for each micro-batch, on a new writer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from anabranch.errors import AnabranchError
from anabranch.spark.columns.sink_columns import SinkColumns, columns_of
from anabranch.spark.driver.commit import FinishedBatch, abort, commit, records_of, stream_write_id
from anabranch.spark.options.sink import SinkOptions, parse
from anabranch.spark.options.source import BadOption, Kind
from anabranch.spark.task.tally import RowTally
from anabranch.spark.task.write import TaskOutcome, WritePlan, write_rows

log = logging.getLogger(__name__)

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The longest wait of a failing task or job before it reports the failure.
GIVE_UP_S: Final = 5.0


@dataclass(frozen=True)
class Name:
    """The name of a write. Tasks know it, and send it to the driver."""

    write: str
    batch: int = 0
    # The run of the query, where several writes of one run may have the same name.
    run: str | None = None


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    name: Name
    outcome: TaskOutcome


def plan_of(given: Mapping[str, str], schema: Any, overwrite: bool, kind: Kind) -> WritePlan:
    """The plan of a write. Raises BadOption or BadColumn for what cannot be written."""
    if overwrite:
        raise BadOption(
            "a topic cannot be overwritten: messages are only added to it. "
            + (
                'Output mode complete is refused: .outputMode("append"), or "update" for the rows that changed'
                if kind == "stream"
                else '.mode("append") adds to it'
            )
        )
    options = parse(given, kind)
    columns = columns_of([(one.name, one.dataType.simpleString()) for one in schema.fields], options)
    return WritePlan(options, columns, _encoder(options, columns, schema) if options.encode else None)


def _encoder(options: SinkOptions, columns: SinkColumns, schema: Any) -> Any:
    """The encoder for the topic's present schema."""
    from pyspark.sql.pandas.types import to_arrow_type

    from anabranch.spark.values.analysed_schema import fetched
    from anabranch.spark.values.encode import encoder_of

    assert options.topic is not None
    info, _ = fetched(options.service_url, options.topic, None, options.timeout_s, options.security)
    if info is None:
        raise BadOption(
            f"option encode=true: {options.topic} has no schema: give it one first, or write bytes in a column 'value'"
        )
    types = {one.name: to_arrow_type(one.dataType, timezone="UTC") for one in schema.fields}
    return encoder_of(info, [(column, field, types[column]) for column, field in columns.fields])


def _of_query(topic: str | None) -> Name | None:
    """The name by this task's streaming query and batch, also within foreachBatch; None outside a streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    query, batch = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
    if not query or not batch:
        return None
    # Spark makes the run's id the group of its jobs. Users may set another group, which is ignored.
    group = context.getLocalProperty("spark.jobGroup.id") or ""
    run = group if _UUID.fullmatch(group) else None
    return Name(stream_write_id(query, topic), int(batch), run)


def _write(plan: WritePlan, name: Name, rows: Iterator[Any]) -> TaskMessage:
    tried: list[UUID] = []

    def new_attempt() -> UUID:
        tried.append(uuid4())
        return tried[-1]

    try:
        return TaskMessage(name, write_rows(plan, name.write, name.batch, rows, new_attempt))
    except BaseException:
        _give_up(plan.options, name, tried)
        raise


def _give_up(options: SinkOptions, name: Name, attempts: Sequence[UUID]) -> None:
    """Drops the attempts, so that readers need not wait for them. Otherwise brokers drop them after a while."""
    if attempts:
        try:
            records_of(options, min(options.timeout_s, GIVE_UP_S)).drop(name.write, name.batch, attempts)
        except AnabranchError as error:
            log.warning(
                "dropping attempts of %s/%d failed, brokers drop them later: %s",
                name.write,
                name.batch,
                error,
            )


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[TaskMessage]:
    return [cast(TaskMessage, message) for message in messages if message is not None]


def _attempts(told: Sequence[TaskMessage]) -> list[UUID]:
    return [attempt for one in told for attempt in one.outcome.attempts]


def _topics(told: Sequence[TaskMessage]) -> set[str]:
    return {topic for one in told for topic in one.outcome.topics}


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. The same one is pickled for tasks and commit, so all of them know the write by the same
    name.

    In foreachBatch the write is named by the query and the batch, which Spark gives only to tasks, and to all tasks of
    a job."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._is_given = plan.options.write_id is not None
        self._name = Name(plan.options.write_id or f"spark-batch/{uuid4()}")

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        name = None if self._is_given else _of_query(self._plan.options.topic)
        return _write(self._plan, name or self._name, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        told = _told(messages)
        _commit(self._plan.options, told[0].name if told else self._name, told)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        told = _told(messages)
        name = told[0].name if told else self._name
        if name == self._name and not self._is_given:
            # It is never run again, so it is decided now: none of its rows becomes visible.
            abort(records_of(self._plan.options), name.write, name.batch, _topics(told))
        else:
            _give_up(self._plan.options, name, _attempts(told))


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. Tasks learn their query and batch from Spark, and send them to the driver."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        name = _of_query(self._plan.options.topic)
        if name is None:
            raise RuntimeError("Spark does not say which query and batch this task is of")
        # A query has one sink, which writes a batch once in each run.
        return _write(self._plan, replace(name, run=None), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        if told:
            _commit(self._plan.options, replace(told[0].name, batch=batchId), told)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        if told:
            _give_up(self._plan.options, replace(told[0].name, batch=batchId), _attempts(told))


def _commit(options: SinkOptions, name: Name, told: Sequence[TaskMessage]) -> None:
    tally = RowTally()
    for one in told:
        tally = tally.plus(one.outcome.tally)
    attempts, topics = frozenset(_attempts(told)), frozenset(_topics(told))
    written = frozenset(place for one in told for place in one.outcome.written)
    job = FinishedBatch(name.write, name.batch, attempts, topics, tally.contents, name.run, written)
    commit(records_of(options), job, fail_on_other_rows=options.fail_on_other_rows)
