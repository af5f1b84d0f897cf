"""Ends every client, and checks that no broker still holds anything of them.

Connections, producers, consumers, the sessions of a group's members, subscriptions without a log of their own, and
entries that stay hidden although their batch is decided: each belongs to a client, and must end with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from anabranch.broker.topic.topic import Topic
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.world.world import World

# Longer than the grace periods of absent consumers and readers.
GONE_MAX_S: Final = 90.0
TOLD_MAX: Final = 5


async def check(world: World) -> None:
    """Ends every client, and reports what is left of them after a while."""
    world.everybody_leaves()
    deadline = world.loop.time() + GONE_MAX_S
    while world.loop.time() < deadline:
        await asyncio.sleep(1.0)
        if not any(_left(world)):
            return
    for one in list(_left(world))[:TOLD_MAX]:
        world.wrong(f"all clients are gone for {GONE_MAX_S:.0f} s, and {one}")


def _left(world: World) -> Iterator[str]:
    for node in world.cluster.up:
        peers = [session for session in node.broker.sessions if session.peer]
        for session in node.broker.sessions:
            if not session.peer:
                yield f"{node} has a connection from {session.address}"
        for session in peers:
            if sum(other.peer == session.peer for other in peers) > 1:
                yield f"{node} has several links from {session.peer}"
        for topic in node.broker.loaded().values():
            for what in _attached(topic):
                yield f"{topic.name} at {node} has {what}"
        yield from _members(world, node)


def _attached(topic: Topic) -> Iterator[str]:
    for name in topic.producers:
        yield f"the producer {name}"
    if topic.attached.waiting:
        yield f"{topic.attached.waiting} producers that wait to be let in"
    for subscription in topic.subscriptions.values():
        for consumer in subscription.consumers:
            yield f"the consumer {consumer.name} of subscription {subscription.name}"
        if not subscription.is_durable and not subscription.consumers:
            yield f"the subscription {subscription.name}, whose reader is gone"


def _members(world: World, node: Node) -> Iterator[str]:
    for topic, controller in world.service(node.broker).controllers.items():
        for subscription, coordinator in controller.coordinators.items():
            for session in coordinator.group.sessions.values():
                yield f"{node} has a session of {session.name} in {subscription} of {topic}"
