"""What was allowed and is not any more, on connections that use it: they lose it at once, not when they come back.

Grants are part of a namespace's policies, admins of a tenant's record; the store tells when either changes, whichever
broker changed it. Clients are told as if the broker had closed their producer or consumer: they try again, and are
refused then. What was being opened while a right was taken back may have asked before and come after: it is found by
looking once more, with the regular look for proofs that have expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.resources import TENANTS
from anabranch.broker.scalable.dag_watch import error_update
from anabranch.broker.scalable.namespace_watch import namespace_error
from anabranch.model.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session

# The next look may come at once: with the one after it, a whole interval has passed.
LOOKS: Final = 2

IsMeant = Callable[[NamespaceName], bool]


class Revocation:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._looks_left: dict[str, int] = {}  # By tenant.

    def namespace_changed(self, namespace: NamespaceName) -> None:
        self._changed(namespace.tenant, lambda other: other == namespace)

    async def follow_tenants(self) -> None:
        """Until the store is closed."""
        with self._broker.metadata.watch(TENANTS) as watch:
            async for changes in watch:
                tenants = {path.removeprefix(TENANTS + "/").partition("/")[0] for path in changes.paths}
                if changes.everything:
                    tenants |= {namespace.tenant for namespace in self._in_use()}
                for tenant in sorted(tenants):
                    self.tenant_changed(tenant)

    def tenant_changed(self, tenant: str) -> None:
        self._changed(tenant, lambda namespace: namespace.tenant == tenant)

    async def look(self) -> None:
        """To be called now and then."""
        for tenant in list(self._looks_left):
            self._looks_left[tenant] -= 1
            if not self._looks_left[tenant]:
                del self._looks_left[tenant]
            await take_back(self._broker, lambda namespace, tenant=tenant: namespace.tenant == tenant)  # type: ignore[misc]

    def _changed(self, tenant: str, is_meant: IsMeant) -> None:
        if self._broker.rights.are_open or self._broker.is_closing:
            return
        self._looks_left[tenant] = LOOKS

        async def taking_back() -> None:
            await take_back(self._broker, is_meant)

        self._broker.background.until_done(taking_back)

    def _in_use(self) -> set[NamespaceName]:
        return {namespace for session in self._broker.sessions for namespace in _namespaces(session)}


def _namespaces(session: Session) -> set[NamespaceName]:
    """Of everything that the client uses."""
    producers = [p.topic.name for p in session.producers.values() if p is not None and p.topic is not None]
    consumers = [TopicName.parse(c.subscription.topic) for c in session.consumers.values() if c is not None]
    registered = [consumer.topic for consumer in session.sessions.values()]
    watched = [watch.topic for watch in session.watches.values()]
    listed = [watch.namespace for watch in session.namespace_watches.values()]
    listed += [watch.namespace for watch in session.topic_watches.values()]
    return {*listed, *(name.namespace for name in (*producers, *consumers, *registered, *watched))}


async def take_back(broker: Broker, is_meant: IsMeant) -> None:
    """Looks at everything of those namespaces that somebody uses."""
    for session in list(broker.sessions):
        if not any(map(is_meant, _namespaces(session))):
            continue
        await _producers(broker, session, is_meant)
        await _consumers(broker, session, is_meant)
        await _registered(broker, session, is_meant)
        await _watches(broker, session, is_meant)
        await broker.requests.topic_lists.take_back(session, is_meant)


async def _producers(broker: Broker, session: Session, is_meant: IsMeant) -> None:
    for producer in list(session.producers.values()):
        if producer is None or producer.topic is None or not is_meant(producer.topic.name.namespace):
            continue
        refusal = await _refusal(broker.rights.produce(session.role, producer.topic.name))
        if refusal is not None and session.producers.get(producer.id) is producer:
            session.producer_closed(producer)
            producer.topic.attached.remove(producer)


async def _consumers(broker: Broker, session: Session, is_meant: IsMeant) -> None:
    for consumer in list(session.consumers.values()):
        if consumer is None:
            continue
        subscription = consumer.subscription
        topic = TopicName.parse(subscription.topic)
        if not is_meant(topic.namespace):
            continue
        refusal = await _refusal(broker.rights.consume(session.role, topic, subscription.name))
        if refusal is not None and session.consumers.get(consumer.id) is consumer:
            session.consumer_closed(consumer)
            subscription.remove_consumer(consumer)


async def _registered(broker: Broker, session: Session, is_meant: IsMeant) -> None:
    for consumer in list(session.sessions.values()):
        if not is_meant(consumer.topic.namespace):
            continue
        refusal = await _refusal(broker.rights.consume(session.role, consumer.topic, consumer.subscription))
        if refusal is not None and session.sessions.get(consumer.id) is consumer:
            broker.requests.scalable.sessions.expel(session, consumer)


async def _watches(broker: Broker, session: Session, is_meant: IsMeant) -> None:
    for number, watch in list(session.watches.items()):
        if not is_meant(watch.topic.namespace):
            continue
        refusal = await _refusal(broker.rights.lookup(session.role, watch.topic))
        if refusal is not None and session.watches.get(number) is watch:
            del session.watches[number]
            watch.close()
            session.send(error_update(number, refusal))
    for number, listing in list(session.namespace_watches.items()):
        if not is_meant(listing.namespace):
            continue
        refusal = await _refusal(broker.rights.list_topics(session.role, listing.namespace))
        if refusal is not None and session.namespace_watches.get(number) is listing:
            del session.namespace_watches[number]
            listing.close()
            session.send(namespace_error(number, refusal))


async def _refusal(demand: Awaitable[None]) -> NotAuthorizedError | None:
    try:
        await demand
    except NotAuthorizedError as refusal:
        return refusal
    return None
