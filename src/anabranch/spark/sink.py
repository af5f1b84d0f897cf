"""The sink `anabranch`: what Spark calls of it, handed on.

Spark makes a writer on the driver when it plans a write, copies it into every task to `write`, and back on the driver
has a copy, or for each micro-batch a new one, `commit` or `abort` what the tasks returned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from uuid import UUID, uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from anabranch.errors import AnabranchError
from anabranch.spark.deciding import abort, commit, records_of, stream_write_id
from anabranch.spark.options import BadOption, Kind
from anabranch.spark.sink_columns import Columns, columns_of
from anabranch.spark.sink_options import SinkOptions, parse
from anabranch.spark.task_writer import Outcome, Plan, write_rows

log = logging.getLogger(__name__)

# A task or job that fails does not wait longer than this to say so.
GIVE_UP_S: Final = 5.0


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    write: str
    outcome: Outcome


def plan_of(given: Mapping[str, str], schema: Any, overwrite: bool, kind: Kind) -> Plan:
    """BadOption or BadColumn for what cannot be written."""
    if overwrite:
        raise BadOption(
            "a topic cannot be written anew: messages are only added to it. "
            + (
                'Output mode complete is refused: .outputMode("append"), or "update" for the rows that changed'
                if kind == "stream"
                else '.mode("append") adds to it'
            )
        )
    options = parse(given, kind)
    columns = columns_of([(one.name, one.dataType.simpleString()) for one in schema.fields], options)
    return Plan(options, columns, _encoder(options, columns, schema) if options.encode else None)


def _encoder(options: SinkOptions, columns: Columns, schema: Any) -> Any:
    """By the schema that the topic has now."""
    from pyspark.sql.pandas.types import to_arrow_type

    from anabranch.spark.declared import fetched
    from anabranch.spark.encoding import encoder_of

    assert options.topic is not None
    info, _ = fetched(options.service_url, options.topic, None, options.timeout_s, options.security)
    if info is None:
        raise BadOption(
            f"option encode=true: {options.topic} has no schema: give it one first, or write bytes in a column 'value'"
        )
    types = {one.name: to_arrow_type(one.dataType, timezone="UTC") for one in schema.fields}
    return encoder_of(info, [(column, field, types[column]) for column, field in columns.fields])


def _write(plan: Plan, write: str, batch: int, rows: Iterator[Any]) -> Written:
    tried: list[UUID] = []

    def new_attempt() -> UUID:
        tried.append(uuid4())
        return tried[-1]

    try:
        return Written(write, write_rows(plan, write, batch, rows, new_attempt))
    except BaseException:
        _give_up(plan.options, write, batch, tried)
        raise


def _give_up(options: SinkOptions, write: str, batch: int, attempts: Sequence[UUID]) -> None:
    """So that readers need not wait for them. Without it, brokers give them up after a while."""
    if attempts:
        try:
            records_of(options, min(options.timeout_s, GIVE_UP_S)).drop(write, batch, attempts)
        except AnabranchError as error:
            log.warning("attempts of %s/%d are given up later: %s", write, batch, error)


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [cast(Written, message) for message in messages if message is not None]


def _attempts(told: Sequence[Written]) -> list[UUID]:
    return [attempt for one in told for attempt in one.outcome.attempts]


def _topics(told: Sequence[Written]) -> set[str]:
    return {topic for one in told for topic in one.outcome.topics}


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. One is pickled for tasks and commit alike, so all of them know the write by the same name."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._write_id = plan.options.write_id or f"spark-batch/{uuid4()}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(self._plan, self._write_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        told = _told(messages)
        _commit(self._plan.options, self._write_id, 0, told)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        told = _told(messages)
        if self._plan.options.write_id is None:
            # Nobody will run it again, so it is decided: nothing of it ever shows.
            abort(records_of(self._plan.options), self._write_id, 0, _topics(told))
        else:
            _abort(self._plan.options, self._write_id, 0, told)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. Tasks learn from Spark which query and batch they are of, and tell the driver."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        batch = context and context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise RuntimeError("Spark does not say which query and batch this task is of")
        write = stream_write_id(query, self._plan.options.topic)
        return _write(self._plan, write, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        if told:
            _commit(self._plan.options, told[0].write, batchId, told)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = _told(messages)
        if told:
            _abort(self._plan.options, told[0].write, batchId, told)


def _commit(options: SinkOptions, write: str, batch: int, told: Sequence[Written]) -> None:
    # A task that found the batch decided had rows to write when it found out.
    has_rows = any(one.outcome.rows or one.outcome.is_decided for one in told)
    commit(records_of(options), write, batch, _attempts(told), _topics(told), has_rows=has_rows)


def _abort(options: SinkOptions, write: str, batch: int, told: Sequence[Written]) -> None:
    _give_up(options, write, batch, _attempts(told))
