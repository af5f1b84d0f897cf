"""`/admin/v2/schemas`: the versions of a topic's schema."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import msgspec

from anabranch.broker.admin.http.answer import NO_CONTENT
from anabranch.broker.admin.http.errors import RestError
from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest, body
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog import schema_compat
from anabranch.broker.catalog.schemas import StoredSchema, objection, version_bytes
from anabranch.model.names import Domain, TopicName
from anabranch.wire import pulsar_pb2 as pb

routes = Routes("/admin/v2/schemas", tag="schemas", needs=Needs.TENANT_ADMIN, domain=Domain.PERSISTENT)

_PATH = "/{tenant}/{namespace}/{topic}"


# The definition of a primitive type in a key/value schema, which has none.
_PRIMITIVE: Final = b'""'


class _Parts(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw


_decode_parts = msgspec.json.Decoder(_Parts).decode


class Posted(msgspec.Struct, rename="camel"):
    type: str
    schema: str = ""
    properties: dict[str, str] | None = None


@routes.get(_PATH + "/schema", needs=Needs.LOOKUP)
async def latest(services: AdminServices, topic: TopicName) -> dict[str, Any]:
    return _shown(*await services.schemas.get(topic, None))


@routes.get(_PATH + "/schema/{version}", needs=Needs.LOOKUP)
async def one_version(services: AdminServices, topic: TopicName, version: int) -> dict[str, Any]:
    if not 0 <= version < 2**63:
        raise RestError(404, f"{topic} has no schema version {version}")
    return _shown(*await services.schemas.get(topic, version_bytes(version)))


@routes.get(_PATH + "/schemas", needs=Needs.LOOKUP)
async def all_versions(services: AdminServices, topic: TopicName) -> dict[str, Any]:
    versions = await services.schemas.versions(topic)
    return {"getSchemaResponses": [_shown(number, schema) for number, schema in versions.items()]}


@routes.post(_PATH + "/schema", body=Posted, needs=Needs.PRODUCE)
async def add(services: AdminServices, topic: TopicName, request: HttpRequest) -> dict[str, Any]:
    """Adds a schema. An operator may do so where producers may not; the schema must still be compatible."""
    policies = await services.policies(topic)
    policies = dataclasses.replace(policies, is_allow_auto_update_schema=True)
    posted = await _posted(request, await services.metadata.now_ms(), topic)
    version = await services.schemas.add(topic, posted, policies)
    return {"version": {"version": -1 if version is None else version}}


@routes.get(_PATH + "/metadata", needs=Needs.LOOKUP)
async def metadata(services: AdminServices, topic: TopicName) -> Any:
    """In Pulsar, the ledger position of each version. Here versions are one record, so only their numbers are real."""
    index = [
        {"ledgerId": -1, "entryId": -1, "version": number}
        for number in await services.schemas.versions(topic)
    ]
    if not index:
        return NO_CONTENT
    return {"info": index[-1], "index": index}


@routes.post(_PATH + "/compatibility", status=202, body=Posted, needs=Needs.LOOKUP)
async def is_compatible(services: AdminServices, topic: TopicName, request: HttpRequest) -> dict[str, Any]:
    """Whether the schema could be added; `reason` says why not."""
    posted = await _posted(request, 0, topic)
    strategy = (await services.policies(topic)).schema_compatibility_strategy
    known = list((await services.schemas.versions(topic)).values())
    fault = await objection(known, posted, strategy)
    why = {} if fault is None else {"reason": fault}
    return {"compatibility": fault is None, "schemaCompatibilityStrategy": strategy, **why}


@routes.post(_PATH + "/version", body=Posted, needs=Needs.LOOKUP)
async def version_of(services: AdminServices, topic: TopicName, request: HttpRequest) -> dict[str, int]:
    """The version that has that schema; -1 if there is none."""
    posted = await _posted(request, 0, topic)
    version = await services.schemas.version_of(topic, posted)
    return {"version": -1 if version is None else version}


@routes.delete(_PATH + "/schema")
async def delete(services: AdminServices, topic: TopicName, force: bool = False) -> dict[str, int]:
    """Deletes the schema. With `force` nothing remains, and versions begin again: messages with old ones are
    unreadable."""
    version = await services.schemas.mark_deleted(topic, services.now_ms())
    if force:
        await services.schemas.delete(topic)
    return {"version": version}


async def _posted(request: HttpRequest, now_ms: int, topic: TopicName) -> StoredSchema:
    posted = await body(request, Posted)
    number = schema_compat.TYPE_NUMBERS.get(posted.type.upper())
    if number is None:
        raise RestError(422, f"Unknown schema type {posted.type!r}")
    return StoredSchema(
        type=number,
        name=topic.base.local,
        data=_packed_parts(posted.schema) if number == pb.Schema.KeyValue else posted.schema.encode(),
        properties=posted.properties or {},
        timestamp_ms=now_ms,
    )


def _packed_parts(text: str) -> bytes:
    """A key/value schema is sent as JSON with both definitions in it; on the wire each is preceded by its length.

    The definitions are checked and written tightly, and no value is made of anything in them: a megabyte may have very
    many values."""
    try:
        found = _decode_parts(text)
        parts = [_tight(found.key), _tight(found.value)]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise RestError(
            422, 'A key/value schema is sent as {"key": …, "value": …}, "" standing for a primitive'
        ) from None
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _tight(part: msgspec.Raw) -> bytes:
    written = msgspec.json.format(bytes(part), indent=-1)
    return b"" if written == _PRIMITIVE else written


def _shown_parts(data: bytes) -> str:
    shown: dict[str, Any] = {}
    for name in ("key", "value"):
        size = max(0, int.from_bytes(data[:4], "big", signed=True))
        part, data = data[4 : 4 + size], data[4 + size :]
        try:
            shown[name] = msgspec.Raw(msgspec.json.format(part, indent=-1) if part else _PRIMITIVE)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            shown[name] = part.decode(errors="replace")
    return msgspec.json.encode(shown).decode(errors="replace")


def _shown(version: int, schema: StoredSchema) -> dict[str, Any]:
    return {
        "version": version,
        "type": schema_compat.TYPE_NAMES.get(schema.type, "NONE"),
        "timestamp": schema.timestamp_ms,
        "data": _shown_parts(schema.data)
        if schema.type == pb.Schema.KeyValue
        else schema.data.decode(errors="replace"),
        "properties": schema.properties,
    }
