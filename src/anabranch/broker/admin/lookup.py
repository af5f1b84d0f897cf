"""`/lookup/v2`: who serves a topic, for clients that look up over HTTP."""

from __future__ import annotations

import zlib

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from anabranch.broker.admin.needs import Needs, needs
from anabranch.broker.admin.params import AnyTopicDep, BrokerDep

router = APIRouter()


@router.get("/topic/{domain}/{tenant}/{namespace}/{topic}")
@router.get("/destination/{domain}/{tenant}/{namespace}/{topic}", include_in_schema=False)
@needs(Needs.LOOKUP)
async def lookup(
    broker: BrokerDep, topic: AnyTopicDep, request: Request, listenerName: str = ""
) -> dict[str, str]:
    told = broker.addresses(listenerName or request.headers.get("X-Pulsar-ListenerName", ""))
    await broker.check_lookup(topic)
    # `nativeUrl` and `brokerUrlSsl` are older names that clients still read. Without TLS there is none of the others.
    answer = {
        "brokerUrl": told.service_url,
        "brokerUrlTls": told.service_url_tls,
        "httpUrl": told.http_url,
        "httpUrlTls": told.http_url_tls,
        "nativeUrl": told.service_url,
        "brokerUrlSsl": told.service_url_tls,
        "brokerId": broker.http_url.partition("://")[2],
    }
    return {name: url for name, url in answer.items() if url or name == "brokerUrlSsl"}


@router.get("/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", response_class=PlainTextResponse)
@needs(Needs.LISTING)
async def bundle(broker: BrokerDep, topic: AnyTopicDep) -> str:
    """The bundle that owns the topic's hash, as Pulsar computes it."""
    policies = await broker.resources.policies(topic.namespace)
    return policies.bundles.range_of(zlib.crc32(str(topic).encode()))
