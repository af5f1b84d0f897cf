"""Which topics a client may name in the classic commands, and where a lookup of each leads.

`topic://` is for clients that know scalable topics. Pulsar's V5 clients look such a name up like a classic topic's,
only to find a broker for their watch. They do not announce scalable topics in CONNECT, and not all of them name their
release: so every client gets an answer to such a lookup, which names the broker that was asked. Every other classic use
of `topic://` is refused with advice. `segment://` topics are looked up like classic ones, and a lookup never creates
one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.errors import NotAllowedError, NotReadyError, TopicNotFoundError
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.topics.creation import NewTopics
from anabranch.controller.service import ScalableTopics
from anabranch.model.names import Domain, TopicName
from anabranch.model.scalable import ScalableTopic
from anabranch.model.segments import segment_of
from anabranch.wire import pulsar_pb2 as pb


def disabled() -> NotAllowedError:
    return NotAllowedError("scalable topics are switched off on this broker (scalableTopicEnabled=false)")


def classic_use(name: TopicName) -> NotAllowedError:
    return NotAllowedError(
        f"{name} is a scalable topic, which classic producers, consumers and readers cannot use: use a V5 client "
        "(pulsar-client-v5, or a client of Anabranch)"
    )


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


def fill_lookup(response: pb.CommandLookupTopicResponse, owner: Addresses) -> None:
    """Sends the client to the owner. Every broker computes owners by itself, so a redirection, after which the client
    would ask the owner once more, would be one more trip, and a circle while two brokers disagree."""
    response.response = pb.CommandLookupTopicResponse.Connect
    if owner.service_url:
        response.brokerServiceUrl = owner.service_url
    if tls := owner.service_url_tls:
        response.brokerServiceUrlTls = tls
    response.authoritative = True
    response.proxy_through_service_url = False


class TopicNaming:
    """The topics that clients of one broker may name. `scalable` is None while scalable topics are turned off."""

    def __init__(
        self,
        scalable: ScalableTopics | None,
        non_persistent: NonPersistentTopics,
        new_topics: NewTopics,
        owners: Owners,
        find_owner: Callable[[TopicName], Awaitable[BrokerAddress]],
        check_lookup: Callable[[TopicName], Awaitable[None]],
        record: Callable[[TopicName], Awaitable[ScalableTopic | None]],
    ) -> None:
        """`check_lookup` raises unless this broker may be named as the owner of that topic. `record` reads that of a
        scalable topic; None if there is none."""
        self._scalable = scalable
        self._non_persistent = non_persistent
        self._new_topics = new_topics
        self._owners = owners
        self._find_owner = find_owner
        self._record = record
        self._check_lookup = check_lookup

    def servable(self, text: str) -> TopicName:
        """The topic of that name, which can be produced to and consumed from."""
        name = TopicName.parse(text)
        if name.domain in (Domain.TOPIC, Domain.SEGMENT) and self._scalable is None:
            raise disabled()
        if name.domain is Domain.TOPIC:
            raise classic_use(name)
        if name.domain is Domain.NON_PERSISTENT:
            self._non_persistent.check_enabled(name)
        return name

    def described(self, text: str) -> TopicName:
        """A topic whose schema is requested: one that can be served, or a scalable one, which shares its schema with
        its segments."""
        name = TopicName.parse(text)
        return name if name.domain is Domain.TOPIC and self._scalable is not None else self.servable(text)

    async def partitions(self, text: str, *, create: bool) -> int:
        name = TopicName.parse(text)
        if name.domain is Domain.TOPIC and self._scalable is not None:
            # A classic producer or consumer gets no further: its own command is refused.
            return 0
        name = self.servable(text)
        return 0 if name.domain is Domain.SEGMENT else await self._new_topics.partitions(name, create=create)

    async def owner(self, text: str) -> BrokerAddress | None:
        """The broker to connect to for that topic; None for the one that was asked."""
        name = TopicName.parse(text)
        if name.domain is Domain.TOPIC and self._scalable is not None:
            await self._check_lookup(name)
            return None
        name = self.servable(text)
        if name.domain is Domain.SEGMENT:
            await self._check_segment(name)
        else:
            await self._check_lookup(name)
        found = await self._find_owner(name)
        return None if self._owners.is_mine(name) else found

    async def check_published(self, name: TopicName) -> None:
        """Raises NotReadyError for a segment that is only planned: its parents may still be written, and it must not be
        written yet. Raises NotAllowedError for one of a topic that was terminated: there will be no other to write."""
        if name.domain is not Domain.SEGMENT or self._scalable is None:
            return
        topic, _, number = segment_of(name)
        record = await self._record(topic)
        if record is not None and record.is_terminated:
            raise NotAllowedError(
                f"{topic} was terminated and accepts no more messages: choose another topic"
            )
        if record is not None and number not in record.layout.segments:
            raise NotReadyError(f"{name} is about to be opened: the layout that has it is not published yet")

    async def _check_segment(self, name: TopicName) -> None:
        topic, span, number = segment_of(name)
        record = await self._record(topic)
        if record is None or record.is_deleting:
            raise TopicNotFoundError(f"{topic} does not exist, so it has no segment {name.segment}")
        planned = record.plan.result if record.plan is not None else record.layout
        found = record.layout.segments.get(number) or planned.segments.get(number)
        if found is None and number >= record.layout.next_id:
            raise TopicNotFoundError(f"{topic} has no segment {name.segment} yet")
        if found is None or found.is_deleting:
            # Not "terminated", at which consumers would retry. Pulsar's V5 producers look for these two words in any
            # message, and then wait for the layout that redirects them.
            raise TopicNotFoundError(f"{name} was deleted: it was already terminated and drained")
        if found.range != span:
            raise TopicNotFoundError(f"{topic} has no segment {name.segment}, but {found.descriptor}")
        try:
            await self._check_lookup(name)
        except TopicNotFoundError:
            raise NotReadyError(f"{name} is about to be created") from None
