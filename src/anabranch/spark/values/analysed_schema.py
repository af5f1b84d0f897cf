"""A topic's schema at the time when a query was analysed, and rows with its columns.

The driver asks a broker for the schema once, and the reader carries it to the tasks: the query keeps its columns,
whatever producers do to the schema later. Tasks ask for other versions when they meet rows of them. Several topics must
have the same columns, or there are none; tasks check topics that join later, as topics of a namespace do.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from anabranch.client.errors import TimedOut
from anabranch.client.security import NOBODY, Security
from anabranch.client.transport.attachment import Backoff, keep_trying, unless_lost
from anabranch.client.transport.namespace_watch import NamespaceWatch, watch_backoff
from anabranch.client.transport.pool import Connections, ask
from anabranch.columns.decode import SCHEMA_VERSION
from anabranch.errors import AnabranchError
from anabranch.spark.columns.rows import COLUMNS
from anabranch.spark.options.source import DecodeErrors, Options
from anabranch.spark.values.decode import BadSchemaValue
from anabranch.spark.values.errors import NoColumns
from anabranch.spark.values.key_values import AnyDecoder, decoder_of
from anabranch.spark.values.types import VALUE, ValueSchema, value_schema
from anabranch.wire import pulsar_pb2 as pb

# The column for the bytes of rows that cannot be decoded, with decodeErrors=null.
UNDECODED: Final = "undecoded"
KEY: Final = "key"
_ANOTHER: Final = -2  # No version of a topic has this number.
_APART: Final = "read them in two queries, or without decode=true"
# How many topics' schemas are asked for at once.
ASKING_MAX: Final = 50

Fetch = Callable[[int | None], pb.Schema | None]  # Gets a version of a topic's schema, None for the latest.


@dataclass(frozen=True, slots=True)
class Declared:
    """Picklable: the reader carries it to its tasks."""

    topic: str
    schema: ValueSchema
    prefix: str = ""
    errors: DecodeErrors = "fail"
    names: tuple[str, ...] = tuple(COLUMNS.names)  # The wanted columns of messages; `value` is one.
    others_join: bool = False  # Whether topics may join later.

    @property
    def needs_versions(self) -> bool:
        return self.schema.needs_versions

    def columns(self) -> Any:
        """The columns of messages, with those of the schema instead of `value`. Raises NoColumns for names in use."""
        others = [COLUMNS.field(name) for name in self.names if name != VALUE]
        if self.errors == "null":
            others.append(pa.field(UNDECODED, pa.binary()))
        made = self.schema.columns(self.prefix, [field.name for field in others])
        return pa.schema(self._in_place(others, made))

    def _in_place(self, others: list[Any], made: list[Any]) -> list[Any]:
        at = self.names.index(VALUE)
        return [*others[:at], *made, *others[at:]]

    def decoded(self, batches: Iterator[Any], topic: str, fetch: Fetch) -> Iterator[Any]:
        """Turns record batches of the wanted columns (and a version for each row, if it `needs_versions`) into
        `columns`."""
        # Each topic numbers its own versions.
        own = self.schema if topic == self.topic else replace(self.schema, version=_ANOTHER)
        decoder, schema = decoder_of(own, fetch, self._why_not(topic, fetch)), self.columns()
        for batch in batches:
            yield self._one(batch, decoder, schema)

    def _why_not(self, topic: str, fetch: Fetch) -> str:
        """Why a topic that joined cannot have these columns; "" if it can."""
        if not self.others_join or topic == self.topic:
            return ""
        found = fetch(None)
        if found is not None and found.type == self.schema.kind:
            return ""
        why = _differ(topic, found, self.topic, self.schema.kind)
        if self.errors == "fail":
            raise NoColumns(f"{why}: {_APART}")
        return why

    def _one(self, batch: Any, decoder: AnyDecoder, schema: Any) -> Any:
        values = batch.column(VALUE)
        versions = None
        if SCHEMA_VERSION in batch.schema.names:
            versions = batch.column(SCHEMA_VERSION).to_numpy(zero_copy_only=False)
        keys = batch.column(KEY) if self.schema.is_separated else None
        found, bad = decoder.decode(values, versions, keys)
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


def _told(batch: Any, row: int, why: str) -> BadSchemaValue:
    where = {
        name: batch.column(name)[row].as_py() for name in ("topic", "position") if name in batch.schema.names
    }
    return BadSchemaValue(
        f"a message ({where or 'select topic and position to see which'}) does not fit the topic's schema: {why}. "
        'To get nulls for such rows, and their bytes in the column "undecoded", set decodeErrors=null'
    )


# -- asking a broker


def declared(options: Options) -> Declared:
    """The present schema of the topics. Raises NoColumns if they have none, or not the same columns."""
    return asyncio.run(_declared(options))


async def _declared(options: Options) -> Declared:
    connections = Connections(options.service_url, options.security)
    try:
        topics = await _topics(options, connections)
        asking = asyncio.Semaphore(ASKING_MAX)

        async def ask_for(topic: str) -> tuple[pb.Schema | None, int]:
            async with asking:
                return await _fetched(connections, topic, None, options.timeout_s)

        found = await asyncio.gather(*map(ask_for, topics))
    finally:
        await connections.close()
    return _together(options, topics, found)


def _together(
    options: Options, topics: Sequence[str], found: Sequence[tuple[pb.Schema | None, int]]
) -> Declared:
    """The one schema of all these topics."""
    first, (schema, version) = topics[0], found[0]
    if schema is None:
        raise NoColumns(f"{first} has no schema: publish with one first, or read it without decode=true")
    own = value_schema(schema, version)
    for topic, (other, _) in zip(topics[1:], found[1:], strict=True):
        if other is None or other.type != own.kind:
            raise NoColumns(f"{_differ(topic, other, first, own.kind)}: {_APART}")
        if value_schema(other).type != own.type:
            raise NoColumns(f"{topic} has other columns than {first}: {_APART}")
    names = tuple(COLUMNS.names) if options.columns is None else options.columns
    if own.is_separated and KEY not in names:
        raise NoColumns(f"option columns: the schema of {first} keeps keys in the column `key`: name it too")
    made = Declared(
        first, own, options.decode_prefix, options.decode_errors, names, not options.choice.is_named
    )
    made.columns()  # Raises now if a name is in use.
    return made


def _differ(topic: str, its: pb.Schema | None, other: str, kind: int) -> str:
    names = {number: name for name, number in pb.Schema.Type.items()}
    own = "no schema" if its is None else f"the schema {names[its.type]}"
    return f"{topic} has {own}, and {other} has the schema {names[kind]}"


async def _topics(options: Options, connections: Connections) -> tuple[str, ...]:
    """The existing topics."""
    choice = options.choice
    if choice.is_named:
        return choice.names
    try:
        async with asyncio.timeout(options.timeout_s):
            found = await _names_in(choice.namespace, dict(choice.filters), connections)
    except TimeoutError:
        raise TimedOut(
            f"no broker sent the topics of {choice.namespace} within {options.timeout_s:g} s; timeoutSeconds allows "
            "more time"
        ) from None
    if topics := tuple(sorted(choice.of_those(found))):
        return topics
    raise NoColumns(
        f"option decode: there are none yet of {choice}, and the columns are those of their schema when the query "
        "starts: publish to one first, or read without decode=true"
    )


async def _names_in(namespace: str, filters: dict[str, str], connections: Connections) -> frozenset[str]:
    watch = NamespaceWatch(
        connections,
        namespace,
        filters,
        changed=lambda _: None,
        ended=lambda _: None,
        backoff=watch_backoff(random.Random()),
    )
    try:
        return await keep_trying(
            watch.start, watch_backoff(random.Random()), f"the topics of {namespace}", unless_lost
        )
    finally:
        await watch.close()


def fetched(
    service_url: str, topic: str, version: int | None, timeout_s: float, security: Security = NOBODY
) -> tuple[pb.Schema | None, int]:
    """A version of a topic's schema, None for the latest; and its number. Not for an event loop's thread."""

    async def ask_one() -> tuple[pb.Schema | None, int]:
        connections = Connections(service_url, security)
        try:
            return await _fetched(connections, topic, version, timeout_s)
        finally:
            await connections.close()

    return asyncio.run(ask_one())


async def _fetched(
    connections: Connections, topic: str, version: int | None, timeout_s: float
) -> tuple[pb.Schema | None, int]:
    wanted = {} if version is None else {"schema_version": version.to_bytes(8, "big", signed=True)}
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _answer(connections, topic=topic, **wanted)
    except TimeoutError:
        raise TimedOut(
            f"{topic}: no broker sent its schema within {timeout_s:g} s; timeoutSeconds allows more time"
        ) from None
    if not answer.HasField("error_code"):
        return answer.schema, int.from_bytes(answer.schema_version, "big", signed=True)
    if answer.error_code != pb.TopicNotFound:
        raise AnabranchError(f"{topic}: its schema cannot be read: {answer.error_message}")
    return None, -1


async def _answer(connections: Connections, **question: Any) -> Any:
    async def ask_once() -> Any:
        return await ask(await connections.service(), pb.BaseCommand.GET_SCHEMA, "getSchema", **question)

    return await keep_trying(ask_once, Backoff(random.Random()), "the schema of a topic", unless_lost)
