"""The faults of a run, and their times. Everything comes from the seed; everything ends when the run turns calm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from anabranch.broker.admin.namespaces.moved_bundles import split, unload
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import broker_id
from anabranch.errors import AnabranchError
from anabranch.model.names import PUBLIC_DEFAULT
from anabranch.simulation.cluster.cluster import SESSION_TIMEOUT_S
from anabranch.simulation.cluster.node import Node
from anabranch.simulation.machine.loop import context_of
from anabranch.simulation.machine.network import CALM, Weather
from anabranch.simulation.machine.store import StoreWeather
from anabranch.simulation.world.balance_faults import BalanceFaults
from anabranch.simulation.world.kinds import TroubleKind, is_balanced
from anabranch.simulation.world.world import World

# How much of what an operator does to bundles are splits, and how many bundles are enough.
SPLIT_SHARE: Final = 0.2
BUNDLES_MANY: Final = 24
# How long an operator waits for an answer.
ASK_MAX_S: Final = 5.0


class Faults:
    """Call `run` until the world is calm; then `end`, which returns once every broker is well."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: set[asyncio.Task[None]] = set()
        self._busy: set[Node] = set()
        self._balancing = BalanceFaults(world)
        self.count = 0

    async def run(self) -> None:
        world, chance = self._world, self._world.chance
        weights = {
            self._kill: 3,
            self._pause: 4,
            self._cut_off: 4,
            self._expire: 2,
            self._part: 2,
            self._cut: 4,
            self._store: 2,
            self._calls: 2,
            self._disks: 2,
        }
        if TroubleKind.LOG_ENDS in world.kinds:
            weights[self._end_log] = 3
        if TroubleKind.MOVES in world.kinds:
            weights[self._move] = 8
        if is_balanced(world.kinds):
            weights[self._balance] = 8
            weights[self._balancing.depose] = 2
            weights[self._balancing.stop_channel] = 1
        while not world.is_calm:
            await asyncio.sleep(chance.expovariate(1 / world.fault_every_s))
            if world.is_calm:
                return
            self.count += 1
            self._spawn(chance.choices(list(weights), list(weights.values()))[0]())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)  # Awaited by `end`.
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _victim(self) -> Node | None:
        well = [node for node in self._world.cluster.up if node not in self._busy]
        return self._world.chance.choice(well) if well else None

    # -- brokers

    async def _kill(self) -> None:
        node = self._victim()
        if node is not None:
            self._busy.add(node)
            self._world.note(f"{node} is killed")
            self._world.cluster.kill(node)
            await asyncio.sleep(self._world.chance.uniform(0.05, 1.5 * SESSION_TIMEOUT_S))
            await self._world.cluster.start(node)
            self._busy.discard(node)

    def crash(self, node: Node) -> None:
        """Kills that broker now, unless another fault affects it, and starts it again soon."""
        if node.is_up and node not in self._busy:
            self._busy.add(node)
            self._world.note(f"{node} is killed at the worst moment")
            self._world.cluster.kill(node)
            self._spawn(self._come_back(node))

    async def _come_back(self, node: Node) -> None:
        await asyncio.sleep(self._world.chance.uniform(0.05, SESSION_TIMEOUT_S))
        await self._world.cluster.start(node)
        self._busy.discard(node)

    async def _end_log(self) -> None:
        """The log ends, and the broker with it; its supervisor starts another."""
        node = self._victim()
        if node is not None:
            self._busy.add(node)
            self._world.note(f"{node}'s log ends")
            self._world.loop.call_soon(node.log.fail, context=context_of(node.host))
            await asyncio.sleep(self._world.chance.uniform(0.02, 1.0))
            self._world.cluster.kill(node)
            await self._come_back(node)

    async def _move(self) -> None:
        """An operator asks one broker to move a bundle to another, or to split it."""
        world, asked, target = self._world, self._victim(), self._victim()
        shared = None if asked is None else asked.broker.shared
        if asked is None or target is None or shared is None:
            return
        owned = [one for node in world.cluster.nodes for one in shared.owned_by(broker_id(node.url))]
        bundles = [one for one in owned if one.namespace == PUBLIC_DEFAULT]  # All topics of a load are there.
        if not bundles:
            return
        bundle = world.chance.choice(sorted(bundles))
        is_split = world.chance.random() < SPLIT_SHARE and len(bundles) < BUNDLES_MANY
        world.note(f"{asked} is asked to {'split' if is_split else f'move to {target}'} {bundle}")

        async def change(broker: Broker) -> None:
            if is_split:
                await split(broker.admin_services(), bundle.namespace, bundle.range)
            else:
                await unload(broker.admin_services(), bundle.namespace, bundle.range, broker_id(target.url))

        try:
            await world.cluster.ask(asked, change, ASK_MAX_S)
        except (AnabranchError, TimeoutError) as error:
            world.note(f"{asked} refuses: {error}")

    async def _balance(self) -> None:
        asked, target = self._victim(), self._victim()
        if asked is not None and target is not None:
            await self._balancing.ask(asked, target)

    async def _pause(self) -> None:
        await self._away(self._world.cluster.pause)

    async def _cut_off(self) -> None:
        await self._away(self._world.cluster.cut_off)

    async def _away(self, how: object) -> None:
        node = self._victim()
        if node is not None:
            self._busy.add(node)
            assert callable(how)
            await how(node, self._world.chance.uniform(0.1, 2 * SESSION_TIMEOUT_S))
            self._busy.discard(node)

    async def _expire(self) -> None:
        node = self._victim()
        if node is not None:
            self._busy.add(node)
            await self._world.cluster.expire(node)
            self._busy.discard(node)

    # -- the network

    async def _part(self) -> None:
        world = self._world
        names = [*(node.name for node in world.cluster.nodes), *world.client_hosts.values()]
        one, other = world.chance.sample(names, 2)
        world.note(f"{one} and {other} are parted")
        world.network.part(one, other)
        await asyncio.sleep(world.chance.uniform(0.2, 4.0))
        world.network.join(one, other)

    async def _cut(self) -> None:
        world = self._world
        links = list(world.network.links)
        chosen = world.chance.sample(links, min(len(links), world.chance.choice((1, 1, 2, 5))))
        world.note(f"{len(chosen)} connections are cut")
        world.network.cut(chosen)

    # -- the stores, and calls between brokers

    async def _disks(self) -> None:
        world = self._world
        world.cluster.disks.sync_max_s = world.chance.choice((0.005, 0.1, 1.0))
        world.note(f"syncs take up to {world.cluster.disks.sync_max_s} s")
        await asyncio.sleep(world.chance.uniform(0.5, 3.0))
        world.cluster.disks.sync_max_s = 0.0

    async def _store(self) -> None:
        world = self._world
        weather = world.cluster.weather
        weather.silent_before = world.chance.uniform(0, 0.2)
        weather.silent_after = world.chance.uniform(0, 0.2)
        weather.delay_max_s = world.chance.choice((0.003, 0.02, 0.2))
        world.note(f"the store is {weather}")
        await asyncio.sleep(world.chance.uniform(0.5, 3.0))
        _mend(weather)

    async def _calls(self) -> None:
        """Packets are slow, and links between brokers are cut again and again: requests or answers are lost."""
        world = self._world
        world.note("links between brokers break")
        world.network.weather = Weather(straggler_chance=world.chance.uniform(0, 0.3), refuse_chance=0.1)
        every_s, end_s = world.chance.uniform(0.02, 0.5), world.loop.time() + world.chance.uniform(0.5, 3.0)
        while world.loop.time() < end_s:
            await asyncio.sleep(world.chance.uniform(0, 2 * every_s))
            world.network.cut(world.cluster.links())
        world.network.weather = Weather()

    # -- the end of the faults

    async def end(self) -> None:
        world = self._world
        world.network.join_all()
        world.network.weather = CALM
        world.cluster.disks.sync_max_s = 0.0
        _mend(world.cluster.weather)
        while self._under_way:
            await asyncio.wait(self._under_way)
        world.network.join_all()
        world.network.weather = CALM
        world.cluster.disks.sync_max_s = 0.0
        _mend(world.cluster.weather)


def _mend(weather: StoreWeather) -> None:
    usual = StoreWeather()
    weather.silent_before = weather.silent_after = 0.0
    weather.read_only = ""
    weather.delay_max_s = usual.delay_max_s
