"""`/admin/v2/schemas`: the versions of a topic's schema."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from anabranch.broker import schema_compat
from anabranch.broker.admin.errors import RestError
from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.openapi import takes
from anabranch.broker.admin.params import BrokerDep, TopicDep, body
from anabranch.broker.schemas import StoredSchema, objection, version_bytes
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb

router = APIRouter()

_PATH = "/{tenant}/{namespace}/{topic}"


class Posted(msgspec.Struct, rename="camel"):
    type: str
    schema: str = ""
    properties: dict[str, str] = {}


@router.get(_PATH + "/schema")
@needs(Needs.LOOKUP)
async def latest(broker: BrokerDep, topic: TopicDep) -> dict[str, Any]:
    return _shown(*await broker.schemas.get(topic, None))


@router.get(_PATH + "/schema/{version}")
@needs(Needs.LOOKUP)
async def one_version(broker: BrokerDep, topic: TopicDep, version: int) -> dict[str, Any]:
    if not 0 <= version < 2**63:
        raise RestError(404, f"{topic} has no schema version {version}")
    return _shown(*await broker.schemas.get(topic, version_bytes(version)))


@router.get(_PATH + "/schemas")
@needs(Needs.LOOKUP)
async def all_versions(broker: BrokerDep, topic: TopicDep) -> dict[str, Any]:
    versions = await broker.schemas.versions(topic)
    return {"getSchemaResponses": [_shown(number, schema) for number, schema in versions.items()]}


@router.post(_PATH + "/schema", openapi_extra=takes(Posted))
@needs(Needs.PRODUCE)
async def add(broker: BrokerDep, topic: TopicDep, request: Request) -> dict[str, Any]:
    """An operator may add a schema where producers may not; it must still be compatible."""
    policies = await broker.policies(topic)
    policies = msgspec.structs.replace(policies, is_allow_auto_update_schema=True)
    posted = await _posted(request, await broker.metadata.now_ms(), topic)
    version = await broker.schemas.add(topic, posted, policies)
    return {"version": {"version": -1 if version is None else version}}


@router.get(_PATH + "/metadata", response_model=None)
@needs(Needs.LOOKUP)
async def metadata(broker: BrokerDep, topic: TopicDep) -> Any:
    """Where Pulsar keeps each version in its ledgers. Here they are one record, so only the versions mean anything."""
    index = [
        {"ledgerId": -1, "entryId": -1, "version": number} for number in await broker.schemas.versions(topic)
    ]
    if not index:
        return Response(status_code=204)
    return {"info": index[-1], "index": index}


@router.post(_PATH + "/compatibility", status_code=202, openapi_extra=takes(Posted))
@needs(Needs.LOOKUP)
async def is_compatible(broker: BrokerDep, topic: TopicDep, request: Request) -> dict[str, Any]:
    posted = await _posted(request, 0, topic)
    strategy = (await broker.policies(topic)).schema_compatibility_strategy
    known = list((await broker.schemas.versions(topic)).values())
    fault = await objection(known, posted, strategy)
    return {"compatibility": fault is None, "schemaCompatibilityStrategy": strategy}


@router.post(_PATH + "/version", openapi_extra=takes(Posted))
@needs(Needs.LOOKUP)
async def version_of(broker: BrokerDep, topic: TopicDep, request: Request) -> dict[str, int]:
    """-1 if no version of the topic is that schema."""
    posted = await _posted(request, 0, topic)
    version = await broker.schemas.version_of(topic, posted)
    return {"version": -1 if version is None else version}


@router.delete(_PATH + "/schema")
async def delete(broker: BrokerDep, topic: TopicDep, force: bool = False) -> dict[str, int]:
    """With `force` nothing of it is left, and versions begin anew: messages that name the old ones cannot be read."""
    version = await broker.schemas.mark_deleted(topic, broker.now_ms())
    if force:
        await broker.schemas.delete(topic)
    return {"version": version}


async def _posted(request: Request, now_ms: int, topic: TopicName) -> StoredSchema:
    posted = await body(request, Posted)
    number = schema_compat.TYPE_NUMBERS.get(posted.type.upper())
    if number is None:
        raise RestError(422, f"Unknown schema type {posted.type!r}")
    return StoredSchema(
        type=number,
        name=topic.base.local,
        data=_packed_parts(posted.schema) if number == pb.Schema.KeyValue else posted.schema.encode(),
        properties=posted.properties,
        timestamp_ms=now_ms,
    )


def _packed_parts(text: str) -> bytes:
    """A key/value schema comes as JSON with both definitions in it; on the wire each has its length before it."""
    try:
        found = json.loads(text)
        parts = [found["key"], found["value"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RestError(
            422, 'A key/value schema is sent as {"key": …, "value": …}, "" standing for a primitive'
        ) from None
    packed = [b"" if part == "" else json.dumps(part, separators=(",", ":")).encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in packed)


def _shown_parts(data: bytes) -> str:
    shown: dict[str, Any] = {}
    for name in ("key", "value"):
        size = max(0, int.from_bytes(data[:4], "big", signed=True))
        part, data = data[4 : 4 + size], data[4 + size :]
        try:
            shown[name] = json.loads(part) if part else ""
        except (ValueError, RecursionError):
            shown[name] = part.decode(errors="replace")
    return json.dumps(shown, separators=(",", ":"))


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
