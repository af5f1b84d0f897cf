"""What happens to the load balancer of a run: operators move, unload and split bundles, leaders are replaced while they
work, and the bundle state channel stops."""

from __future__ import annotations

import asyncio
from typing import Final

from anabranch.broker.admin.namespaces.moved_bundles import split, unload
from anabranch.broker.balance.channel.metadata_state_log import BUNDLE_STATES
from anabranch.broker.balance.leadership import LEADER
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import broker_id
from anabranch.errors import AnabranchError
from anabranch.model.bundles import BundleName
from anabranch.model.leaders_topics import CHANNEL_TOPIC
from anabranch.model.names import PUBLIC_DEFAULT
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.world.kinds import has_channel_topic
from anabranch.simulation.world.world import World

# The percentages of splits and unloads in what operators ask for; the rest are transfers.
SPLITS_PERCENT: Final = 25
UNLOADS_PERCENT: Final = 25
# How many bundles are enough.
BUNDLES_MANY: Final = 24
# How long an operator waits for an answer. The request goes on without him.
ASK_MAX_S: Final = 5.0


class BalanceFaults:
    def __init__(self, world: World) -> None:
        self._world = world

    # -- operators

    async def ask(self, asked: Node, target: Node) -> None:
        """An operator asks that broker to move a bundle to the other one, or to unload it; or its owner to split it."""
        world, bundles = self._world, _bundles(asked)
        if not bundles:
            return
        bundle, draw = world.chance.choice(bundles), world.chance.uniform(0, 100)
        if draw < SPLITS_PERCENT:
            owner = self._owner(asked, bundle)
            if owner is not None and len(bundles) < BUNDLES_MANY:
                await self._ask(owner, bundle, f"split {bundle}", "split")
        elif draw < SPLITS_PERCENT + UNLOADS_PERCENT:
            await self._ask(asked, bundle, f"unload {bundle}", "")
        else:
            await self._ask(asked, bundle, f"move {bundle} to {target}", broker_id(target.url))

    def _owner(self, asked: Node, bundle: BundleName) -> Node | None:
        balancer = asked.broker.balancer
        owner = None if balancer is None else balancer.owners.owner_of(bundle)
        return None if owner is None else self._world.cluster.node_at(owner.service_url)

    async def _ask(self, asked: Node, bundle: BundleName, what: str, to: str) -> None:
        world = self._world
        world.note(f"{asked} is asked to {what}")
        splits_away = world.chance.random() < 0.5

        async def change(broker: Broker) -> None:
            services, namespace = broker.admin_services(), bundle.namespace
            if to == "split":
                await split(services, namespace, bundle.range, unloads=splits_away)
            else:
                await unload(services, namespace, bundle.range, to)

        try:
            await world.cluster.ask(asked, change, ASK_MAX_S)
            world.note(f"{asked} did {what}")
        except (AnabranchError, TimeoutError) as error:
            world.note(f"{asked} refuses to {what}: {error}")

    # -- the leader and the channel

    async def depose(self) -> None:
        """The node of the leader is deleted while it asks a broker that it cannot reach to get ready for a bundle.
        Another leader is elected before the answer comes."""
        world = self._world
        leader = next((node for node in world.cluster.up if _leads(node)), None)
        others = [node for node in world.cluster.up if node is not leader]
        if leader is None or not others:
            return await self._delete_leader()
        target = world.chance.choice(others)
        bundles = [one for one in _bundles(leader) if self._owner(leader, one) not in (None, target)]
        world.network.part(leader.name, target.name)
        work = [
            self._ask(leader, one, f"move {one} to {target}", broker_id(target.url)) for one in bundles[:1]
        ]
        asking = asyncio.gather(*work)
        await asyncio.sleep(world.chance.uniform(0.01, 0.1))
        await self._delete_leader()
        await asyncio.sleep(world.chance.uniform(0.2, 2.0))
        world.network.join(leader.name, target.name)
        await asking

    async def _delete_leader(self) -> None:
        self._world.note("the node of the leader is deleted")
        session = await self._world.cluster.metadata.connect()
        await session.delete(LEADER)
        await session.close()

    async def stop_channel(self) -> None:
        """No state of a bundle can be stored for a while; or the leader has to open the channel's topic again."""
        world = self._world
        if has_channel_topic(world.kinds):
            await self._unload_channel()
            return
        world.note("the states of bundles cannot be stored")
        world.cluster.weather.read_only = BUNDLE_STATES
        await asyncio.sleep(world.chance.uniform(0.5, 4.0))
        world.cluster.weather.read_only = ""

    async def _unload_channel(self) -> None:
        world = self._world
        leader = next((node for node in world.cluster.up if _leads(node)), None)
        if leader is None or leader.broker.opened(CHANNEL_TOPIC) is None:
            return
        world.note(f"{leader} is asked to unload the topic of the channel")
        try:
            await world.cluster.ask(leader, lambda broker: broker.unload_topic(CHANNEL_TOPIC), ASK_MAX_S)
        except (AnabranchError, TimeoutError) as error:
            world.note(f"{leader} refuses: {error}")


def _leads(node: Node) -> bool:
    return node.broker.balancer is not None and node.broker.balancer.reign.term > 0


def _bundles(node: Node) -> list[BundleName]:
    """The bundles with the topics of the main load, as that broker knows them."""
    balancer = node.broker.balancer
    ranges = None if balancer is None else balancer.owners.bundles.ranges.get(PUBLIC_DEFAULT)
    return [] if ranges is None else sorted(ranges.bundles(PUBLIC_DEFAULT))
