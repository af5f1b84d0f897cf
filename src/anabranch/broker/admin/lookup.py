"""`/lookup/v2`: who serves a topic, for clients that look up over HTTP."""

from __future__ import annotations

import zlib

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from anabranch.broker.admin.params import AnyTopicDep, BrokerDep

router = APIRouter()


@router.get("/topic/{domain}/{tenant}/{namespace}/{topic}")
@router.get("/destination/{domain}/{tenant}/{namespace}/{topic}", include_in_schema=False)
async def lookup(broker: BrokerDep, topic: AnyTopicDep) -> dict[str, str]:
    await broker.check_lookup(topic)
    # `nativeUrl` and `brokerUrlSsl` are older names that clients still read.
    return {
        "brokerUrl": broker.service_url,
        "brokerUrlTls": broker.service_url_tls,
        "httpUrl": broker.http_url,
        "httpUrlTls": broker.http_url_tls,
        "nativeUrl": broker.service_url,
        "brokerUrlSsl": broker.service_url_tls,
    }


@router.get("/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", response_class=PlainTextResponse)
async def bundle(broker: BrokerDep, topic: AnyTopicDep) -> str:
    """The bundle that owns the topic's hash, as Pulsar computes it."""
    policies = await broker.resources.policies(topic.namespace)
    return policies.bundles.range_of(zlib.crc32(str(topic).encode()))
