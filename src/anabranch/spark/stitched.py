"""A topic's history at the speed of Parquet and its tail from the log, as one DataFrame: `anabranch.spark.table`.

    clicks = anabranch.spark.table(spark, "topic://public/default/clicks", serviceUrl="pulsar://localhost:6650")

Spark reads the table's files itself, with all that it can do to Parquet (only the columns and row groups that a query
needs), and `format("anabranch")` reads from the table's cut on. A cut divides a topic exactly, so each row comes once.
A source in Python cannot put Spark's own scan of files into its plan; therefore this is a function, and not an option
of the format.

Where both end is decided when the function is called. The frame has the same rows at each use, and `end` is where a
stream goes on: `stitched(…).follow()`.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anabranch.client.tables.asked import AsOf, TableAsked, TablePart, asked
from anabranch.client.tables.opening import check_is_of, check_name, found_in, snapshot_of_topic
from anabranch.model.cut import Cut
from anabranch.model.resuming import epoch_of
from anabranch.model.rows_before import RowsBefore, rows_before
from anabranch.spark.driver.loop_thread import LoopThread
from anabranch.spark.driver.topic import InTime
from anabranch.spark.options.source import COLUMNS, BadOption, Options, parse
from anabranch.spark.plan.limit import UNLIMITED
from anabranch.spark.plan.offsets import Offset
from anabranch.spark.plan.ranges import Ranges
from anabranch.tables.core import condition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from anabranch.tables.snapshot import DataFile, TableSnapshot

T = TypeVar("T")

# How the columns of a message are made of a table's.
_MADE_OF: Final[Mapping[str, str]] = {
    "message_id": "struct(ledger, entry, index)",
    "position": "struct(segment, ledger, entry, index)",
}
# What stands before decoded columns of the tail until they have the names of the table's.
_ASIDE: Final = "anabranch_decoded_"
_DECODES: Final = "a table has decoded columns if it is written with them"
_NOT_HERE: Final[Mapping[str, str]] = {
    "start": "the rows begin with the topic; startTime leaves out older ones",
    "end": "asOf says where rows end",
    "decode": _DECODES,
    "decodeErrors": _DECODES,
    "decodePrefix": _DECODES,
}
# Hadoop's name for what `deltalake` calls s3.
_SCHEMES: Final = {"s3": "s3a", "gcs": "gs"}


@dataclass(frozen=True)
class StitchedTable:
    """The rows of a topic up to `end`, each once: `frame` is `history` and `tail` together."""

    frame: DataFrame
    history: DataFrame | None
    tail: DataFrame | None
    """None where nothing was published beyond the history, or it is not wanted."""
    version: int | None
    """The version of the table; None without history."""
    seam: str
    """The cut at which the history ends, as the text of a checkpoint."""
    end: str
    """The cut at which the rows end."""
    _spark: SparkSession = field(repr=False)
    _options: Mapping[str, str] = field(repr=False)

    def follow(self) -> DataFrame:
        """A stream of what comes after: it starts at `end`, with the columns of `format("anabranch")`."""
        return self._spark.readStream.format("anabranch").options(**self._options, start=self.end).load()


def table(
    spark: SparkSession,
    topic: str,
    *,
    asOf: AsOf | str | None = None,
    part: TablePart = "all",
    tableUrl: str | None = None,
    storageOptions: Mapping[str, str] | None = None,
    **options: object,
) -> DataFrame:
    """The topic's rows as of now: its table's files, and from the cut at which they end what the log has.

    The columns are those of `format("anabranch")`. A table of decoded rows has the fields of the topic's schema too,
    and `value` is null where they are set.

    - `asOf`: a version of the table, the version that was newest at a time, or a checkpoint: the rows before it.
    - `part`: "history" or "tail" alone.
    - `tableUrl`: where the table is; brokers know it of the tables that they write.
    - `storageOptions`: how the driver reaches an object store, as `deltalake` has them. Executors read with Spark's own
      settings.
    - `options`: those of `format("anabranch")` for batches: `serviceUrl` at least.
    """
    return stitched(
        spark,
        topic,
        asOf=asOf,
        part=part,
        tableUrl=tableUrl,
        storageOptions=storageOptions,
        **options,
    ).frame


def stitched(
    spark: SparkSession,
    topic: str,
    *,
    asOf: AsOf | str | None = None,
    part: TablePart = "all",
    tableUrl: str | None = None,
    storageOptions: Mapping[str, str] | None = None,
    **options: object,
) -> StitchedTable:
    """The same as `table`, with its two parts, and the cut at which it ends."""
    wanted = asked(part, asOf.encode() if isinstance(asOf, str) else asOf, tableUrl, storageOptions)
    given, parsed = _parsed(topic, options)
    if wanted.url is None:
        wanted = _found(parsed, wanted)
    snapshot = snapshot_of_topic(wanted, topic)
    if not wanted.needs_log:
        assert snapshot is not None
        check_name(snapshot, topic)
        alone = _history(spark, snapshot, parsed, None)
        return StitchedTable(alone, alone, None, snapshot.version, snapshot.cut, snapshot.cut, spark, given)
    look = _looked(parsed, wanted, snapshot)
    history: DataFrame | None = None
    if part == "all" and snapshot is not None:
        history = _history(spark, snapshot, parsed, look.before)
    tail = None
    if look.end != look.seam or history is None:
        tail = _tail(spark, given, parsed, look, snapshot)
    frames = [one for one in (history, tail) if one is not None]
    return StitchedTable(
        reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames),
        history,
        tail,
        None if history is None or snapshot is None else snapshot.version,
        look.seam.encode().decode(),
        look.end.encode().decode(),
        spark,
        given,
    )


def _parsed(topic: str, options: Mapping[str, object]) -> tuple[dict[str, str], Options]:
    lowered = {name.lower(): name for name in options}
    for name, instead in _NOT_HERE.items():
        if name.lower() in lowered:
            raise BadOption(f"option {name} is not for tables: {instead}")
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
    given["topic"] = topic
    return given, parse(given, "batch")


def _found(options: Options, wanted: TableAsked) -> TableAsked:
    """What is wanted, at the place that a broker tells."""
    from anabranch.client.tables.finding import table_of
    from anabranch.client.transport.attachment import Backoff
    from anabranch.client.transport.layout_watch import LayoutWatch
    from anabranch.client.transport.pool import Connections

    async def ask() -> TableAsked:
        connections = Connections(options.service_url, options.security)
        watch = LayoutWatch(connections, options.choice.names[0], Backoff(random.Random()))
        try:
            async with InTime(options, "where its table is"):
                await watch.open(create=False)
                found = await table_of(connections, watch, options.admin_url, options.timeout_s)
                return found_in(wanted, watch.shown_topic, found)
        finally:
            await watch.close()
            await connections.close()

    return _called(ask())


def _called(work: Coroutine[Any, Any, T]) -> T:
    loop = LoopThread()
    try:
        return loop.call(work)
    finally:
        loop.stop()


# -- the topic as it is now


@dataclass(frozen=True, slots=True)
class _Look:
    seam: Cut
    end: Cut
    before: RowsBefore | None


def _looked(options: Options, wanted: TableAsked, snapshot: TableSnapshot | None) -> _Look:
    seam = Cut() if snapshot is None else Cut.decode(snapshot.cut)

    async def look() -> _Look:
        from anabranch.spark.driver.driver import Driver

        # With "none" a single step reaches every segment's end, whichever generations lie between.
        driver = Driver(replace(options, ordering="none"))
        try:
            await driver.open()
            name = options.choice.names[0]
            feed = driver.feeds.current[name]
            if snapshot is not None:
                check_is_of(snapshot, feed.topic, feed.layout.topic_id)
            if wanted.until is not None:
                layout = await feed.layout_of(max(epoch_of(seam), epoch_of(wanted.until)))
                await feed.check(wanted.until)
                return _Look(seam, wanted.until, rows_before(wanted.until, layout, feed.topic))
            end = await driver.next_end(Offset({name: seam}), UNLIMITED)
            return _Look(seam, end.cuts[name], None)
        finally:
            await driver.close()

    return _called(look())


# -- frames


def _history(
    spark: SparkSession, snapshot: TableSnapshot, options: Options, before: RowsBefore | None
) -> DataFrame:
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    from anabranch.tables.core.schema import DAY

    files = [file for file in snapshot.files if _may_have(file, options.ranges)]
    schema: Any = from_arrow_schema(_without(snapshot.schema, DAY))
    if files:
        uris = [_for_spark(snapshot.url, file.path) for file in files]
        # Files named one by one, with their columns: Spark looks into none of them, and at no names of folders.
        rows = spark.read.schema(schema).parquet(*uris)
    else:
        rows = spark.createDataFrame([], schema)
    if before is not None:
        rows = rows.where(condition.sql(before, "`"))
    for one in _wanted(options.ranges):
        rows = rows.where(one)
    names = tuple(COLUMNS) if options.columns is None else options.columns
    made: list[Column] = [
        F.expr(_MADE_OF[name]).alias(name) if name in _MADE_OF else F.col(name) for name in names
    ]
    if "value" in names:
        made += [F.col(_quoted(name)) for name in _decoded_names(snapshot)]
    return rows.select(*made)


def _decoded_names(snapshot: TableSnapshot) -> list[str]:
    """The table's decoded columns; none if it has bytes."""
    from anabranch.tables.core.schema import DAY, RAW, UNDECODED

    if snapshot.mode == "raw":
        return []
    return [name for name in snapshot.schema.names if name not in (*RAW.names, DAY)] + [UNDECODED]


def _tail(
    spark: SparkSession,
    given: Mapping[str, str],
    options: Options,
    look: _Look,
    snapshot: TableSnapshot | None,
) -> DataFrame:
    more = {"end": look.end.encode().decode()}
    if look.seam.places:
        more["start"] = look.seam.encode().decode()
    is_decoded = snapshot is not None and snapshot.mode == "decoded"
    names = tuple(COLUMNS) if options.columns is None else options.columns
    if is_decoded and "value" in names:
        more |= {"decode": "true", "decodeErrors": "null", "decodePrefix": _ASIDE}
    rows = spark.read.format("anabranch").options(**given, **more).load()
    return rows if not is_decoded or "value" not in names else _named(rows, names, snapshot)


def _named(rows: DataFrame, names: tuple[str, ...], snapshot: TableSnapshot | None) -> DataFrame:
    """Decoded rows with the names that a table's columns have."""
    from pyspark.sql import functions as F

    from anabranch.tables.core.schema import DAY, DECODED, PREFIX, RAW, UNDECODED

    assert snapshot is not None
    taken = {name.lower() for name in (*RAW.names, DAY)}
    known = {name.lower(): name for name in snapshot.schema.names}
    made: list[Column] = [
        F.lit(None).cast("binary").alias(name) if name == "value" else F.col(name) for name in names
    ]
    for name in rows.columns:
        if not name.startswith(_ASIDE):
            continue
        field_name = name.removeprefix(_ASIDE)
        if field_name == "value" and DECODED in known and f"{PREFIX}value" not in known:
            field_name = DECODED
        elif field_name.lower() in taken:
            field_name = f"{PREFIX}{field_name}"
        made.append(F.col(_quoted(name)).alias(known.get(field_name.lower(), field_name)))
    return rows.select(*made, F.col(UNDECODED))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _without(schema: Any, name: str) -> Any:
    import pyarrow as pa

    return pa.schema([one for one in schema if one.name != name])


def _for_spark(url: str, path: str) -> str:
    scheme, sign, rest = url.partition("://")
    if not sign:
        scheme, rest = "file", url
    return f"{_SCHEMES.get(scheme, scheme)}://{rest.rstrip('/')}/{path}"


# -- ranges


def _may_have(file: DataFile, ranges: Ranges) -> bool:
    """Whether a file may have rows of the times that are wanted."""
    day = file.day
    if day is None:
        return ranges.since_ms is None and ranges.until_ms is None
    since, until = _day(ranges.since_ms), _day(ranges.until_ms)
    return (since is None or day >= since) and (until is None or day <= until)


def _day(ms: int | None) -> date | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).date()


def _wanted(ranges: Ranges) -> list[Column]:
    """The same conditions that the source's tasks apply to rows of the log."""
    from pyspark.sql import functions as F

    found: list[Column] = []
    if ranges.since_ms is not None:
        found.append(F.col("publish_time") >= F.timestamp_millis(F.lit(ranges.since_ms)))
    if ranges.until_ms is not None:
        found.append(F.col("publish_time") < F.timestamp_millis(F.lit(ranges.until_ms)))
    if ranges.keys is not None:
        found.append(F.col("key").isin([F.lit(bytearray(key)) for key in sorted(ranges.keys)]))
    if ranges.hashes is not None:
        spans = [F.col("key_hash").between(span.start, span.end) for span in ranges.hashes]
        found.append(reduce(lambda one, other: one | other, spans))
    if ranges.segments is not None:
        found.append(F.col("segment").isin(sorted(ranges.segments)))
    return found
