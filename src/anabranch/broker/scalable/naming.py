"""Which topics a client may name in the classic commands, and where a lookup of each leads.

`topic://` is for clients that know scalable topics. Those of Pulsar look its name up as if it were a classic topic's,
only to find a broker for their watch. They say nothing about scalable topics in CONNECT, and not all of them tell their
release: so such a lookup is answered to everybody, by whom they ask. Every other classic use of it is refused with
advice. `segment://` topics are looked up like classic ones, and a lookup never makes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anabranch.broker.errors import NotAllowedError, NotReadyError, TopicNotFoundError
from anabranch.broker.listeners import Addresses
from anabranch.model.names import Domain, TopicName
from anabranch.model.segments import segment_of
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.owners import Owner


def disabled() -> NotAllowedError:
    return NotAllowedError("scalable topics are switched off on this broker (scalableTopicEnabled=false)")


def classic_use(name: TopicName) -> NotAllowedError:
    return NotAllowedError(
        f"{name} is a scalable topic, which classic producers, consumers and readers cannot use: use a V5 client "
        "(pulsar-client-v5, or a client of Anabranch)"
    )


def servable(broker: Broker, text: str) -> TopicName:
    """A topic that can be produced to and consumed from, as a peer calls it."""
    name = TopicName.parse(text)
    if name.domain in (Domain.TOPIC, Domain.SEGMENT) and broker.scalable is None:
        raise disabled()
    if name.domain is Domain.TOPIC:
        raise classic_use(name)
    if name.domain is Domain.NON_PERSISTENT:
        broker.non_persistent.check_enabled(name)
    return name


def described(broker: Broker, text: str) -> TopicName:
    """A topic whose schema is asked for: one that can be served, or a scalable one, whose segments share its schema."""
    name = TopicName.parse(text)
    return name if name.domain is Domain.TOPIC and broker.scalable is not None else servable(broker, text)


def watchable(text: str) -> TopicName:
    """A topic that clients of scalable topics may name: `topic://`, or a classic topic as a whole."""
    name = TopicName.parse(text)
    if name.domain not in (Domain.TOPIC, Domain.PERSISTENT):
        raise NotAllowedError(
            f"{name}: scalable topics are named topic://, or persistent:// for classic ones"
        )
    if name.is_partition:
        raise NotAllowedError(f"{name} is one partition; name the whole topic, {name.base}")
    return name


async def partitions(broker: Broker, text: str, *, create: bool) -> int:
    name = TopicName.parse(text)
    if name.domain is Domain.TOPIC and broker.scalable is not None:
        # No classic producer or consumer comes any further: its own command is refused.
        return 0
    name = servable(broker, text)
    return 0 if name.domain is Domain.SEGMENT else await broker.new_topics.partitions(name, create=create)


async def owner(broker: Broker, text: str) -> Owner | None:
    """The broker to connect to for that topic; None for the one that was asked."""
    name = TopicName.parse(text)
    if name.domain is Domain.TOPIC and broker.scalable is not None:
        await broker.check_lookup(name)
        return None
    name = servable(broker, text)
    if name.domain is Domain.SEGMENT:
        await _check_segment(broker, name)
    else:
        await broker.check_lookup(name)
    return None if broker.owners.is_mine(name) else broker.owners.owner(name)


async def _check_segment(broker: Broker, name: TopicName) -> None:
    assert broker.scalable is not None
    topic, span, number = segment_of(name)
    record = await broker.scalable.get(topic)
    if record is None or record.is_deleting:
        raise TopicNotFoundError(f"{topic} does not exist, so it has no segment {name.segment}")
    planned = record.plan.result if record.plan is not None else record.layout
    found = record.layout.segments.get(number) or planned.segments.get(number)
    if found is None and number >= record.layout.next_id:
        raise TopicNotFoundError(f"{topic} has no segment {name.segment} yet")
    if found is None or found.is_deleting:
        # Not "terminated", which consumers would take for a reason to come back. Pulsar's V5 producers look for these
        # two words in any message, and then wait for the layout that sends them elsewhere.
        raise TopicNotFoundError(f"{name} is gone: it was already terminated, drained and deleted")
    if found.range != span:
        raise TopicNotFoundError(f"{topic} has no segment {name.segment}, but {found.descriptor}")
    try:
        await broker.check_lookup(name)
    except TopicNotFoundError:
        raise NotReadyError(f"{name} is about to be made") from None


async def check_published(broker: Broker, name: TopicName) -> None:
    """NotReadyError for a segment that is only planned: its parents may still be written, and it must not be yet."""
    if name.domain is not Domain.SEGMENT or broker.scalable is None:
        return
    topic, _, number = segment_of(name)
    record = await broker.scalable.get(topic)
    if record is not None and number not in record.layout.segments:
        raise NotReadyError(f"{name} is about to be opened: the layout that has it is not published yet")


def fill_lookup(response: pb.CommandLookupTopicResponse, here: Addresses, elsewhere: Owner | None) -> None:
    kinds = pb.CommandLookupTopicResponse
    response.response = kinds.Connect if elsewhere is None else kinds.Redirect
    found = here if elsewhere is None else elsewhere
    response.brokerServiceUrl = found.service_url
    if tls := found.service_url_tls:
        response.brokerServiceUrlTls = tls
    response.authoritative = True
    response.proxy_through_service_url = False


def is_segment_consumer(name: str) -> bool:
    """Whether a consumer is a V5 client's at one segment: they call themselves `{name}-seg-{segment}` there."""
    own, _, segment = name.rpartition("-seg-")
    return bool(own) and segment.isdecimal()
