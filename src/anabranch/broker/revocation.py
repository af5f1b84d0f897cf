"""What was granted and is not any more, on connections that use it: they lose it at once, not when they come back.

Clients are told as if the broker had closed their producer or consumer: they try again, and are refused then.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from anabranch.broker.authorization import NotAuthorizedError
from anabranch.broker.scalable.dag_watch import error_update
from anabranch.broker.scalable.namespace_watch import namespace_error
from anabranch.model.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from anabranch.broker.broker import Broker
    from anabranch.broker.session import Session


async def take_back(broker: Broker, namespace: NamespaceName) -> None:
    """Looks at everything of that namespace that somebody uses."""
    for session in list(broker.sessions):
        await _producers(broker, session, namespace)
        await _consumers(broker, session, namespace)
        await _watches(broker, session, namespace)
        await broker.requests.topic_lists.take_back(session, namespace)


async def _producers(broker: Broker, session: Session, namespace: NamespaceName) -> None:
    for producer in list(session.producers.values()):
        if producer is None or producer.topic is None or producer.topic.name.namespace != namespace:
            continue
        refusal = await _refusal(broker.rights.produce(session.role, producer.topic.name))
        if refusal is not None and session.producers.get(producer.id) is producer:
            session.producer_closed(producer)
            producer.topic.attached.remove(producer)


async def _consumers(broker: Broker, session: Session, namespace: NamespaceName) -> None:
    for consumer in list(session.consumers.values()):
        if consumer is None:
            continue
        subscription = consumer.subscription
        topic = TopicName.parse(subscription.topic)
        if topic.namespace != namespace:
            continue
        refusal = await _refusal(broker.rights.consume(session.role, topic, subscription.name))
        if refusal is not None and session.consumers.get(consumer.id) is consumer:
            session.consumer_closed(consumer)
            subscription.remove_consumer(consumer)


async def _watches(broker: Broker, session: Session, namespace: NamespaceName) -> None:
    for number, watch in list(session.watches.items()):
        if watch.topic.namespace != namespace:
            continue
        refusal = await _refusal(broker.rights.lookup(session.role, watch.topic))
        if refusal is not None and session.watches.get(number) is watch:
            del session.watches[number]
            watch.close()
            session.send(error_update(number, refusal))
    for number, listing in list(session.namespace_watches.items()):
        if listing.namespace != namespace:
            continue
        refusal = await _refusal(broker.rights.list_topics(session.role, namespace))
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
