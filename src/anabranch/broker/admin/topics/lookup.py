"""`/lookup/v2`: the broker that serves a topic, for clients that look up over HTTP."""

from __future__ import annotations

from anabranch.broker.admin.http.needs import Needs
from anabranch.broker.admin.http.request import HttpRequest
from anabranch.broker.admin.http.routes import Routes
from anabranch.broker.admin.services import AdminServices
from anabranch.model.names import Domain, TopicName

routes = Routes("/lookup/v2", tag="lookup")


@routes.get("/topic/{domain}/{tenant}/{namespace}/{topic}", needs=Needs.LOOKUP, is_served_in_doubt=True)
@routes.get(
    "/destination/{domain}/{tenant}/{namespace}/{topic}",
    is_described=False,
    needs=Needs.LOOKUP,
    is_served_in_doubt=True,
)
async def lookup(
    services: AdminServices, topic: TopicName, request: HttpRequest, listenerName: str = ""
) -> dict[str, str]:
    """Names the topic's owner, whichever broker is asked. A broker that finds none in time answers 503."""
    listener = listenerName or request.header(b"x-pulsar-listenername")
    await services.check_lookup(topic)
    owner = services.registry.me.address
    if topic.domain is not Domain.TOPIC:  # Any broker serves a watch of a scalable topic.
        owner = await services.find_owner(topic)
    told = owner.at(listener)
    # `nativeUrl` and `brokerUrlSsl` are older names that clients still read. Without TLS the URLs of TLS are left out.
    answer = {
        "brokerUrl": told.service_url,
        "brokerUrlTls": told.service_url_tls,
        "httpUrl": told.http_url,
        "httpUrlTls": told.http_url_tls,
        "nativeUrl": told.service_url,
        "brokerUrlSsl": told.service_url_tls,
        "brokerId": owner.web_id,
    }
    return {name: url for name, url in answer.items() if url or name == "brokerUrlSsl"}


@routes.get("/topic/{domain}/{tenant}/{namespace}/{topic}/bundle", is_text=True, needs=Needs.LISTING)
async def bundle(services: AdminServices, topic: TopicName) -> str:
    """The bundle that owns the topic's hash, as Pulsar computes it."""
    policies = await services.resources.policies(topic.namespace)
    return policies.bundles.ranges.of(topic).range
