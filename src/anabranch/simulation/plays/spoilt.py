"""A topic whose state cannot be encoded any more, and a subscription that raises when it is notified of new entries.

Such a fault must affect that part only: the topic's other subscriptions get what is published, the topic can be closed
and opened again, and the other topics of the broker are unaffected.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final, NoReturn

from anabranch.broker.broker import Broker
from anabranch.broker.topic.topic import Topic
from anabranch.client.producing.producer import Producer
from anabranch.model.names import TopicName
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.kinds import TroubleKind

TOPIC: Final = "persistent://public/default/spoilt"
NAME: Final = TopicName.parse(TOPIC)
# The first in the topic's own order, so that the other subscription is notified after it.
SPOILT: Final = "a-spoilt"
SOUND: Final = "sound"
CLOSED_MAX_S: Final = 30.0
MESSAGES_MIN: Final = 5


class Planted(Exception):
    """The error of a spoilt part. No code may expect it, and the code around that part must survive it."""


def _raise(*_: object) -> NoReturn:
    raise Planted("planted by the simulation")


class Spoilt(Play):
    kind: ClassVar = TroubleKind.SPOILT

    async def prepare(self) -> None:
        await self.make_subscription(NAME, SPOILT, keeps_order=False)
        await self.make_subscription(NAME, SOUND, keeps_order=False)
        self.history.doomed(SPOILT)

    def start(self) -> None:
        self.client("spoilt-producer", self._produce("spoilt-producer"))
        self.read(SOUND, "sound-reader", TOPIC, is_stream=False)
        self.task(self._spoil())

    async def _produce(self, name: str) -> None:
        client = self.world.client()

        async def open_() -> Producer:
            return await client.producer(TOPIC, name=name, create=False, send_timeout_s=None)

        producer = await self.until_done(f"{name} is open", open_)
        number = 0
        while not self.world.is_calm or number < MESSAGES_MIN:
            self.history.sent(name, number, "k")
            await producer.send(workload.payload_of(name, number), key="k")
            self.history.receipt(name, number)
            number += 1
            await asyncio.sleep(self.chance.expovariate(1 / self.world.pace_s))
        await client.close()

    async def _spoil(self) -> None:
        chance, world = self.chance, self.world
        while not world.is_calm:
            await asyncio.sleep(chance.expovariate(1 / 1.5))
            try:
                topic = await self.ask_owner(NAME, lambda broker: broker.topic(NAME))
                if chance.random() < 0.5:
                    world.note(f"{SPOILT} raises whenever it is told something")
                    setattr(topic.subscriptions[SPOILT], "entries_confirmed", _raise)  # noqa: B010 (mypy)
                else:
                    world.note(f"the state of {TOPIC} cannot be encoded")
                    setattr(topic, "encode_state", _raise)  # noqa: B010 (mypy)
                    await self._close(topic)
            except workload.EXPECTED as error:
                world.note(f"nothing is spoilt now: {error}")

    async def _close(self, topic: Topic) -> None:
        """Closes the topic. It must be closed afterwards even if closing raises: then other brokers open it again."""

        async def close(_: Broker) -> None:
            try:
                await topic.close()
            except Planted as error:
                raise TimeoutError(f"closing it failed: {error}") from None

        node = self.owner(NAME)
        lives = node.lives
        try:
            await self.world.cluster.ask(node, close, CLOSED_MAX_S)
        except workload.EXPECTED as error:
            self.world.note(f"closing {TOPIC}: {error}")
        if node.is_up and node.lives == lives and node.broker.opened(NAME) is topic:
            self.history.stays_open(TOPIC)
            self.faults.crash(node)
