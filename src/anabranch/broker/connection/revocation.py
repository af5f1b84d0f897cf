"""Rights that are revoked while connections use them: the connections lose them at once, not at their next request.

Grants are part of a namespace's policies, admins of a tenant's record; the store notifies of changes of either by any
broker. Clients see their producer or consumer closed by the broker: they retry, and are refused then. A producer or
consumer that was being opened while a right was revoked may have been authorized before and attached after: it is found
by checking again, with the regular check for expired credentials.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from anabranch.broker.catalog.resources import TENANTS
from anabranch.broker.connection.session import ClientSession
from anabranch.broker.connection.topic_lists import TopicLists
from anabranch.broker.runtime.background import Background
from anabranch.broker.scalable.sessions.consumer_sessions import ConsumerSessions
from anabranch.broker.scalable.watch.dag_watch import error_update
from anabranch.broker.scalable.watch.namespace_watch import namespace_error
from anabranch.broker.security.rights import NotAuthorizedError, Rights
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName

# The next check may come at once: with the one after it, a whole interval has passed.
LOOKS: Final = 2

IsMeant = Callable[[NamespaceName], bool]


class Revocation:
    def __init__(
        self,
        metadata: MetadataStore,
        rights: Rights,
        background: Background,
        sessions: Collection[ClientSession],
        registered: ConsumerSessions,
        topic_lists: TopicLists,
    ) -> None:
        """`sessions` are the connections that are open at the time of each iteration."""
        self._metadata = metadata
        self._rights = rights
        self._background = background
        self._sessions = sessions
        self._registered = registered
        self._topic_lists = topic_lists
        self._looks_left: dict[str, int] = {}  # By tenant.

    def namespace_changed(self, namespace: NamespaceName) -> None:
        self._changed(namespace.tenant, lambda other: other == namespace)

    async def follow_tenants(self) -> None:
        """Follows changes of tenants until the store is closed."""
        with self._metadata.watch(TENANTS) as watch:
            async for changes in watch:
                tenants = {path.removeprefix(TENANTS + "/").partition("/")[0] for path in changes.paths}
                if changes.everything:
                    tenants |= {namespace.tenant for namespace in self._in_use()}
                for tenant in sorted(tenants):
                    self.tenant_changed(tenant)

    def tenant_changed(self, tenant: str) -> None:
        self._changed(tenant, lambda namespace: namespace.tenant == tenant)

    async def look(self) -> None:
        """Checks again after recent changes; to be called regularly."""
        for tenant in list(self._looks_left):
            self._looks_left[tenant] -= 1
            if not self._looks_left[tenant]:
                del self._looks_left[tenant]
            await self._take_back(lambda namespace, tenant=tenant: namespace.tenant == tenant)  # type: ignore[misc]

    def _changed(self, tenant: str, is_meant: IsMeant) -> None:
        if self._rights.are_open or self._background.is_closing:
            return
        self._looks_left[tenant] = LOOKS

        async def taking_back() -> None:
            await self._take_back(is_meant)

        self._background.until_done(taking_back)

    def _in_use(self) -> set[NamespaceName]:
        return {namespace for session in self._sessions for namespace in _namespaces(session)}

    async def _take_back(self, is_meant: IsMeant) -> None:
        """Checks again everything that clients use of those namespaces, and closes what they may no longer use."""
        for session in list(self._sessions):
            if not any(map(is_meant, _namespaces(session))):
                continue
            await self._take_producers(session, is_meant)
            await self._take_consumers(session, is_meant)
            await self._take_registered(session, is_meant)
            await self._take_watches(session, is_meant)
            await self._topic_lists.take_back(session, is_meant)

    async def _take_producers(self, session: ClientSession, is_meant: IsMeant) -> None:
        for producer in list(session.producers.values()):
            if producer is None or producer.topic is None or not is_meant(producer.topic.name.namespace):
                continue
            refusal = await _refusal(self._rights.produce(session.role, producer.topic.name))
            if refusal is not None and session.producers.get(producer.id) is producer:
                session.producer_closed(producer)
                producer.topic.attached.remove(producer)

    async def _take_consumers(self, session: ClientSession, is_meant: IsMeant) -> None:
        for consumer in list(session.consumers.values()):
            if consumer is None:
                continue
            subscription = consumer.subscription
            topic = TopicName.parse(subscription.topic)
            if not is_meant(topic.namespace):
                continue
            refusal = await _refusal(self._rights.consume(session.role, topic, subscription.name))
            if refusal is not None and session.consumers.get(consumer.id) is consumer:
                session.consumer_closed(consumer)
                subscription.remove_consumer(consumer)

    async def _take_registered(self, session: ClientSession, is_meant: IsMeant) -> None:
        for consumer in list(session.sessions.values()):
            if not is_meant(consumer.topic.namespace):
                continue
            refusal = await _refusal(
                self._rights.consume(session.role, consumer.topic, consumer.subscription)
            )
            if refusal is not None and session.sessions.get(consumer.id) is consumer:
                self._registered.expel(session, consumer)

    async def _take_watches(self, session: ClientSession, is_meant: IsMeant) -> None:
        for number, watch in list(session.watches.items()):
            if not is_meant(watch.topic.namespace):
                continue
            refusal = await _refusal(self._rights.lookup(session.role, watch.topic))
            if refusal is not None and session.watches.get(number) is watch:
                del session.watches[number]
                watch.close()
                session.send(error_update(number, refusal))
        for number, listing in list(session.namespace_watches.items()):
            if not is_meant(listing.namespace):
                continue
            refusal = await _refusal(self._rights.list_topics(session.role, listing.namespace))
            if refusal is not None and session.namespace_watches.get(number) is listing:
                del session.namespace_watches[number]
                listing.close()
                session.send(namespace_error(number, refusal))


def _namespaces(session: ClientSession) -> set[NamespaceName]:
    """The namespaces of everything that the client uses."""
    producers = [p.topic.name for p in session.producers.values() if p is not None and p.topic is not None]
    consumers = [TopicName.parse(c.subscription.topic) for c in session.consumers.values() if c is not None]
    registered = [consumer.topic for consumer in session.sessions.values()]
    watched = [watch.topic for watch in session.watches.values()]
    listed = [watch.namespace for watch in session.namespace_watches.values()]
    listed += [watch.namespace for watch in session.topic_watches.values()]
    return {*listed, *(name.namespace for name in (*producers, *consumers, *registered, *watched))}


async def _refusal(demand: Awaitable[None]) -> NotAuthorizedError | None:
    try:
        await demand
    except NotAuthorizedError as refusal:
        return refusal
    return None
