"""Messages of a topic for the page: from either end, from a time or a position, by key, decoded by their schema.

A look reads a bounded number of entries of each part (segment or partition) at this broker, and acknowledges nothing.
Values are decoded in a thread: unpacking and decoding are work that publishing must not wait for. What a look unpacks
is bounded too, since a few bytes may unpack to very many, or to very many messages.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.catalog.schemas import StoredSchema
from anabranch.broker.errors import BrokerError, TopicNotFoundError
from anabranch.broker.security.rights import NotAuthorizedError
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError, MalformedFrame
from anabranch.model.names import Domain, TopicName
from anabranch.model.position import Position
from anabranch.model.scalable import ScalableTopic
from anabranch.storage.port import Buffer, LogError
from anabranch.storage.topic.topic_log import TopicLog
from anabranch.wire import entry as wire_entry
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.avro_bounds import AvroBounds, AvroLimits
from anabranch.wire.batch import decompress, split_batch

SHOWN_MAX: Final = 100
PARTS_MAX: Final = 64
# What a look reads of each part: with a key most of it is passed over.
ENTRIES_MAX: Final = 200
ENTRIES_WITH_KEY_MAX: Final = 2000
BYTES_MAX: Final = 4 << 20
UNPACKED_MAX: Final = 8 << 20
# What a whole look unpacks, and how many messages it takes from batches.
LOOK_UNPACKED_MAX: Final = 256 << 20
LOOK_MESSAGES_MAX: Final = 200_000
# Longer JSON is shown as it was sent.
JSON_BYTES_MAX: Final = 64 * 1024
AVRO_LIMITS: Final = AvroLimits(schema_bytes=256 * 1024, body_bytes=64 * 1024, values=20_000, depth=60)
TEXT_MAX: Final = 4000
# A batch may unpack to megabytes of keys and properties for each message: the answer has as much as people read.
KEY_MAX: Final = 1000
PROPERTIES_MAX: Final = 100
MORE: Final = "…"


@dataclass(frozen=True, slots=True)
class Look:
    """What was asked for: "earliest", "latest", milliseconds, or a position as LEDGER:ENTRY."""

    start: str
    key: str
    count: int

    @property
    def is_latest(self) -> bool:
        return self.start == "latest"

    @property
    def entries_max(self) -> int:
        return ENTRIES_WITH_KEY_MAX if self.key else ENTRIES_MAX


@dataclass(slots=True)
class _Budget:
    """What a look may still do. Thread: one at a time."""

    unpacked: int = LOOK_UNPACKED_MAX
    messages: int = LOOK_MESSAGES_MAX

    @property
    def is_spent(self) -> bool:
        return self.unpacked <= 0 or self.messages <= 0


async def messages_json(sources: PageSources, role: str, topic: TopicName, look: Look) -> dict[str, Any]:
    """`topic` is a `topic://`, which may be a classic topic.

    Messages are for roles that may consume them: administering the topic is not enough."""
    record = await Records(sources.metadata).get(topic)
    classic = TopicName(Domain.PERSISTENT, topic.namespace, topic.local)
    try:
        await sources.rights.consume(role, classic if record is None else topic)
    except NotAuthorizedError as error:
        # A refusal does not tell which kind of topic there is, nor whether there is one.
        raise NotAuthorizedError(str(error).replace(str(classic), str(topic))) from None
    parts = await _parts(sources, classic) if record is None else _segments(topic, record)
    versions = await sources.schemas.versions(classic)
    found: list[dict[str, Any]] = []
    elsewhere: list[str] = []
    budget = _Budget()
    for part in parts[:PARTS_MAX]:
        if budget.is_spent:
            elsewhere.append(str(part))
            continue
        try:
            log = (await sources.open(part)).log
            entries = await _entries(log, look)
        except TopicNotFoundError:
            continue  # A partition that nothing was ever published to.
        except LogError as error:
            raise RestError(500, f"{part}: {error}") from None
        except BrokerError:
            elsewhere.append(str(part))
            continue
        shown, is_whole = await asyncio.to_thread(_messages, str(part), entries, versions, look, budget)
        found += shown
        if not is_whole:
            elsewhere.append(str(part))
    pick = heapq.nlargest if look.is_latest else heapq.nsmallest
    return {
        "messages": pick(look.count, found, key=lambda one: (one["publishTime"], one["part"], one["place"])),
        # Parts of other brokers, or more than a look reads or unpacks.
        "leftOut": [*elsewhere, *map(str, parts[PARTS_MAX:])],
    }


def _segments(topic: TopicName, record: ScalableTopic) -> list[TopicName]:
    return [segment.topic(topic) for segment in record.layout.segments.values()]


async def _parts(sources: PageSources, name: TopicName) -> list[TopicName]:
    if partitions := await sources.resources.partitions(name):
        return [name.partition(index) for index in range(partitions)]
    if not await sources.resources.topic_exists(name):
        raise RestError(404, f"There is no topic {name.local} in {name.namespace}")
    return [name]


async def _entries(log: TopicLog, look: Look) -> list[tuple[Position, bytes]]:
    at = await _begin(log, look)
    found: list[tuple[Position, bytes]] = []
    size = 0
    while at < log.end and len(found) < look.entries_max and size < BYTES_MAX:
        ledger, entries = await log.read(at, look.entries_max - len(found), BYTES_MAX - size)
        if not entries:
            break
        for number, _, data in entries:
            found.append(((ledger, number), bytes(data)))
            size += len(data)
        at = log.after((ledger, entries[-1][0]))
    return found


async def _begin(log: TopicLog, look: Look) -> Position:
    if look.start == "earliest":
        return log.first
    if look.is_latest:
        # By bytes, too: the end of what is read must be the end of the log.
        mean = max(1, log.size_bytes // max(1, log.entries))
        wanted = min(look.entries_max, max(1, BYTES_MAX // (2 * mean)))
        return log.position_at(max(0, log.entries - wanted))
    if ":" in look.start:
        ledger, _, entry = look.start.partition(":")
        # A position is of one part: its ledger says of which.
        is_here = any(one.id == int(ledger) for one in log.topic_record.ledgers)
        return log.normalise((int(ledger), int(entry))) if is_here else log.end
    return await log.find_by_publish_time(int(look.start))


# -- in a thread


def _messages(
    part: str,
    entries: Sequence[tuple[Position, bytes]],
    versions: Mapping[int, StoredSchema],
    look: Look,
    budget: _Budget,
) -> tuple[list[dict[str, Any]], bool]:
    """The messages of those entries, as many as are asked for, from the end that is asked for; and whether the budget
    sufficed for that."""
    found: list[dict[str, Any]] = []
    for at, data in reversed(entries) if look.is_latest else entries:
        if len(found) >= look.count:
            break
        if budget.is_spent:
            return found, False
        found += _of_entry(part, at, data, versions, look, look.count - len(found), budget)
    return found, True


def _of_entry(
    part: str,
    at: Position,
    data: bytes,
    versions: Mapping[int, StoredSchema],
    look: Look,
    count: int,
    budget: _Budget,
) -> list[dict[str, Any]]:
    """At most `count` messages of that entry, in the order of the look."""
    try:
        metadata = wire_entry.parse_metadata(data)
        payload = bytes(wire_entry.payload(data))
        why = "encrypted" if metadata.encryption_keys else ""
        if not why and metadata.compression != pb.NONE:
            budget.unpacked -= metadata.uncompressed_size
            payload = decompress(
                metadata.compression, payload, metadata.uncompressed_size, size_max=UNPACKED_MAX
            )
        batch: list[tuple[Any, Buffer]] = [(metadata, payload)]
        is_batch = wire_entry.is_batch(metadata) and not why
        if is_batch:
            if metadata.num_messages_in_batch > LOOK_MESSAGES_MAX:
                raise MalformedFrame(
                    f"a batch of {metadata.num_messages_in_batch} messages is not looked into"
                )
            budget.messages -= max(0, metadata.num_messages_in_batch)
            batch = list(split_batch(payload, metadata.num_messages_in_batch))
    except AnabranchError as error:
        # One that cannot be read is shown as such, wherever it was looked for.
        unreadable = {"as": "unreadable", "text": str(error), "bytes": len(data)}
        return [_described(part, at, -1, None, 0, None, unreadable)]
    number = int.from_bytes(metadata.schema_version, "big") if metadata.schema_version else None
    schema = None if number is None else versions.get(number)
    found: list[dict[str, Any]] = []
    for index in range(len(batch) - 1, -1, -1) if look.is_latest else range(len(batch)):
        about, body = batch[index]
        own = _text(about.partition_key) if about.HasField("partition_key") else None
        if not look.key or own == look.key:
            value = (
                {"as": why, "text": "", "bytes": len(body)} if why else _decoded(about, bytes(body), schema)
            )
            place = index if is_batch else -1
            found.append(_described(part, at, place, own, metadata.publish_time, about, value))
            if len(found) >= count:
                break
    return found


def _described(
    part: str, at: Position, index: int, key: str | None, publish_ms: int, about: Any, value: dict[str, Any]
) -> dict[str, Any]:
    return {
        "part": part,
        "place": [*at, index],
        "key": None if key is None else _short(key, KEY_MAX),
        "publishTime": publish_ms,
        "eventTime": 0 if about is None else about.event_time,
        "properties": {} if about is None else _properties(about),
        "value": value,
    }


def _properties(about: Any) -> dict[str, str]:
    """The first ones, up to as many characters as are shown of a value; the last of them says how many are left out."""
    found: dict[str, str] = {}
    room = TEXT_MAX
    for n, one in enumerate(about.properties):
        if room <= 0 or n >= PROPERTIES_MAX:
            found[MORE] = f"and {len(about.properties) - n} more"
            break
        name = _short(_text(one.key), room)
        room -= len(name)
        found[name] = _short(_text(one.value), max(0, room))
        room -= len(found[name])
    return found


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + MORE


def _decoded(about: Any, body: bytes, schema: StoredSchema | None) -> dict[str, Any]:
    """The value as text, and how it was read; hexadecimal where nothing else fits."""
    if about.null_value:
        return {"as": "null", "text": "", "bytes": 0}
    kind = None if schema is None else schema.type
    how, text = "hex", ""
    try:
        if schema is not None and kind == pb.Schema.Avro:
            how, text = "avro", json.dumps(_avro(schema.data, body), ensure_ascii=False, default=str)
        elif kind == pb.Schema.Json or (kind is None and body[:1] in (b"{", b"[")):
            how, text = "json", _json(body)
        elif kind in (None, pb.Schema.String):
            how, text = "text", str(body, "utf-8")
    except Exception:  # Whatever a producer has sent, by whichever schema: shown as bytes.
        how, text = "hex", ""
    if how == "hex" or (how == "text" and not text.isprintable() and "\n" not in text):
        how, text = "hex", body[: TEXT_MAX // 2].hex(" ", 4)
    return {"as": how, "text": _whole(text[:TEXT_MAX]), "bytes": len(body)}


def _json(body: bytes) -> str:
    if len(body) > JSON_BYTES_MAX:
        return str(body, "utf-8")
    return json.dumps(json.loads(body), ensure_ascii=False)


def _avro(definition: bytes, body: bytes) -> Any:
    """Raises ImportError without the package: the broker itself needs none."""
    bounds = AvroBounds(definition, AVRO_LIMITS)
    bounds.check(body)
    import fastavro

    return fastavro.schemaless_reader(io.BytesIO(body), bounds.schema, None)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _whole(text: str) -> str:
    """JSON may escape halves of characters, which no answer can have in it: they are shown as their escapes again."""
    return text.encode(errors="backslashreplace").decode()
