"""A topic's schema as it was when a query was analysed, and rows with its columns.

It is asked of a broker once, on the driver, and travels with the reader: whatever producers do to the schema later, the
query keeps its columns. Tasks ask for other versions when they meet rows of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from anabranch.client.connections import Backoff, Connections, ask
from anabranch.client.errors import ConnectionLost, TimedOut
from anabranch.client.security import NOBODY, Security
from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.errors import AnabranchError
from anabranch.spark.decoding import BadValue, Decoder
from anabranch.spark.options import DecodeErrors, Options
from anabranch.spark.rows import COLUMNS
from anabranch.spark.value_types import VALUE, NoColumns, ValueSchema, value_schema
from anabranch.wire import pulsar_pb2 as pb

# Where rows that cannot be decoded keep their bytes, with decodeErrors=null.
UNDECODED: Final = "undecoded"
_ANOTHER: Final = -2  # No version of a topic has this number.


@dataclass(frozen=True, slots=True)
class Declared:
    """Picklable: the reader takes it to its tasks."""

    topic: str
    schema: ValueSchema
    prefix: str = ""
    errors: DecodeErrors = "fail"
    names: tuple[str, ...] = tuple(COLUMNS.names)  # Of the messages' columns that are wanted; `value` is one.

    @property
    def needs_versions(self) -> bool:
        return self.schema.kind == pb.Schema.Avro

    def columns(self) -> Any:
        """The columns of messages, with those of the schema instead of `value`. NoColumns for names that are taken."""
        others = [COLUMNS.field(name) for name in self.names if name != VALUE]
        if self.errors == "null":
            others.append(pa.field(UNDECODED, pa.binary()))
        made = self.schema.columns(self.prefix, [field.name for field in others])
        return pa.schema(self._in_place(others, made))

    def _in_place(self, others: list[Any], made: list[Any]) -> list[Any]:
        at = self.names.index(VALUE)
        return [*others[:at], *made, *others[at:]]

    def decoded(
        self, batches: Iterator[Any], topic: str, fetch: Callable[[int], pb.Schema | None]
    ) -> Iterator[Any]:
        """Record batches of the wanted columns (and a version for each row, if it `needs_versions`) as `columns`."""
        # Versions are numbered topic by topic.
        own = self.schema if topic == self.topic else replace(self.schema, version=_ANOTHER)
        decoder, schema = Decoder(own, fetch), self.columns()
        for batch in batches:
            yield self._one(batch, decoder, schema)

    def _one(self, batch: Any, decoder: Decoder, schema: Any) -> Any:
        values = batch.column(VALUE)
        versions = None
        if SCHEMA_VERSION in batch.schema.names:
            versions = batch.column(SCHEMA_VERSION).to_numpy(zero_copy_only=False)
        found, bad = decoder.decode(values, versions)
        if bad and self.errors == "fail":
            raise _told(batch, *bad[0])
        made = found.flatten() if self.schema.is_record else [found]
        others = [batch.column(name) for name in self.names if name != VALUE]
        if self.errors == "null":
            others.append(_only(values, [row for row, _ in bad]))
        return pa.RecordBatch.from_arrays(self._in_place(others, made), schema=schema)


def _only(values: Any, rows: list[int]) -> Any:
    """The values of those rows, null elsewhere."""
    if not rows:
        return pa.nulls(len(values), pa.binary())
    taken: list[int | None] = [None] * len(values)
    for row in rows:
        taken[row] = row
    return values.take(pa.array(taken, pa.int64()))


def _told(batch: Any, row: int, why: str) -> BadValue:
    where = {
        name: batch.column(name)[row].as_py() for name in ("topic", "position") if name in batch.schema.names
    }
    return BadValue(
        f"a message ({where or 'select topic and position to see which'}) does not fit the topic's schema: {why}. "
        'To get nulls for such rows, and their bytes in the column "undecoded", set decodeErrors=null'
    )


# -- asking a broker


def declared(options: Options) -> Declared:
    """What the schema of the topics is now. NoColumns if they have none, or not the same columns."""
    names = tuple(COLUMNS.names) if options.columns is None else options.columns
    found = [_schema_of(options, topic) for topic in options.choice.names]
    for topic, other in zip(options.choice.names, found, strict=True):
        if (other.kind, other.type) != (found[0].kind, found[0].type):
            raise NoColumns(
                f"{topic} has other columns than {options.choice.names[0]}: read them in two queries, or without "
                "decode=true"
            )
    made = Declared(options.choice.names[0], found[0], options.decode_prefix, options.decode_errors, names)
    made.columns()  # Complains now if a name is taken.
    return made


def _schema_of(options: Options, topic: str) -> ValueSchema:
    found, version = fetched(options.service_url, topic, None, options.timeout_s, options.security)
    if found is None:
        raise NoColumns(f"{topic} has no schema: publish with one first, or read it without decode=true")
    return value_schema(found, version)


def fetched(
    service_url: str, topic: str, version: int | None, timeout_s: float, security: Security = NOBODY
) -> tuple[pb.Schema | None, int]:
    """A version of a topic's schema, None for the latest; and its number. Not for an event loop's thread."""
    return asyncio.run(_fetched(Connections(service_url, security), topic, version, timeout_s))


async def _fetched(
    connections: Connections, topic: str, version: int | None, timeout_s: float
) -> tuple[pb.Schema | None, int]:
    wanted = {} if version is None else {"schema_version": version.to_bytes(8, "big", signed=True)}
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _answer(connections, topic=topic, **wanted)
    except TimeoutError:
        raise TimedOut(
            f"{topic}: no broker told its schema within {timeout_s:g} s; timeoutSeconds allows more time"
        ) from None
    finally:
        await connections.close()
    if not answer.HasField("error_code"):
        return answer.schema, int.from_bytes(answer.schema_version, "big", signed=True)
    if answer.error_code != pb.TopicNotFound:
        raise AnabranchError(f"{topic}: its schema cannot be read: {answer.error_message}")
    return None, -1


async def _answer(connections: Connections, **question: Any) -> Any:
    backoff = Backoff(random.Random())
    while True:
        try:
            connection = await connections.service()
            return await ask(connection, pb.BaseCommand.GET_SCHEMA, "getSchema", **question)
        except ConnectionLost:
            await backoff.wait()
