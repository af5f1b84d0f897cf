"""Any mix of publishing, permits, acknowledging, refusing, leaving and seeking, on every type of subscription.

After each step: permits are never exceeded, nothing acknowledged is sent again, nobody holds another's entry, and the
journal folds to the live cursor. At the end, with permits for everyone, every entry not acknowledged has been delivered
to somebody who is still there; per key, Key_Shared delivers first times in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.broker.dispatch.consumer import AttachedConsumer
from anabranch.broker.policy.limits import DispatchLimits
from anabranch.broker.state import topic_state as state
from anabranch.model.position import Position
from anabranch.wire.subscription_types import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from unit.broker.rig import Message, RecordingLink, Rig

KEYS = ["a", "b", "c", "d"]


@dataclass
class Client:
    """What a client knows of its consumer."""

    consumer: AttachedConsumer
    link: RecordingLink
    permits: int = 0
    seen: int = 0
    # Sent to it and neither acknowledged nor refused, in the order of arrival.
    held: dict[Position, Message] = field(default_factory=dict)


class World:
    """A subscription, its clients, and what they may expect."""

    def __init__(self, kind: int, random: Random) -> None:
        limits = DispatchLimits(
            burst_entries=3, burst_bytes=200, consumer_unacked_max=12, subscription_unacked_max=25, held_max=8
        )
        self.rig = Rig(limits=limits)
        self.kind = kind
        self.random = random
        self.clients: list[Client] = []
        self.acked: set[Position] = set()
        self.keys: dict[Position, str] = {}
        self.sizes: dict[Position, int] = {}
        # Sent to somebody who still holds it, or has acknowledged it, since the last seek.
        self.delivered: set[Position] = set()
        self.rig.loop.run(self.rig.subscription.announce())

    @property
    def is_shared(self) -> bool:
        return self.kind in (SHARED, KEY_SHARED)

    def holding(self) -> Client | None:
        clients = [client for client in self.clients if client.held]
        return self.random.choice(clients) if clients else None

    # -- steps

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            messages = self.random.choice([1, 1, 1, 3])
            key = self.random.choice(KEYS)
            (at,) = self.rig.publish(1, key=key, messages=messages)
            self.keys[at], self.sizes[at] = key, messages

    def roll(self) -> None:
        if self.random.random() < 0.5:
            self.rig.log.cold.add(max(self.rig.log.ledgers))
        self.rig.log.roll()

    def connect(self) -> None:
        if len(self.clients) < (1 if self.kind == EXCLUSIVE else 4):
            permits = self.random.randint(0, 12)
            priority = self.random.choice([0, 0, 0, 1])
            consumer, link = self.rig.consumer(self.kind, permits=permits, priority=priority)
            self.clients.append(Client(consumer, link, permits))

    def flow(self) -> None:
        for client in self.random.sample(self.clients, min(2, len(self.clients))):
            permits = self.random.randint(1, 10)
            client.permits += permits
            self.rig.subscription.flow(client.consumer, permits)

    def ack(self) -> None:
        client = self.holding()
        if client is None:
            return
        chosen = self.random.sample(sorted(client.held), self.random.randint(1, len(client.held)))
        if not self.is_shared and self.random.random() < 0.5:
            answers = self.rig.ack(client.consumer, chosen[:1], is_cumulative=True, turns=0)
            chosen = [at for at in self.keys if at <= chosen[0]]
        else:
            answers = self.rig.ack(client.consumer, chosen, turns=0)
        assert answers in ([], [None])
        self.is_acked(chosen)

    def is_acked(self, chosen: list[Position]) -> None:
        self.acked.update(chosen)
        for client in self.clients:
            for at in chosen:
                client.held.pop(at, None)

    def refuse(self) -> None:
        client = self.holding()
        if client is None:
            return
        if not self.is_shared or self.random.random() < 0.3:
            chosen = list(client.held)
            self.rig.subscription.redeliver(client.consumer, None)
        else:
            chosen = self.random.sample(sorted(client.held), self.random.randint(1, len(client.held)))
            self.rig.subscription.redeliver(client.consumer, chosen)
        for at in chosen:
            del client.held[at]
        self.delivered.difference_update(chosen)

    def disconnect(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            self.delivered.difference_update(client.held)
            self.rig.subscription.remove_consumer(client.consumer)

    def seek(self) -> None:
        if not self.keys:
            return
        at = self.random.choice(sorted(self.keys))
        self.rig.loop.run(self.rig.subscription.seek(at))
        self.acked = {place for place in self.keys if place < at}
        self.delivered = set()
        self.clients = [client for client in self.clients if client.consumer not in client.link.closed]
        for client in self.clients:
            client.held.clear()

    def stall_or_drain(self) -> None:
        if self.clients:
            client = self.random.choice(self.clients)
            client.link.is_writable = not client.link.is_writable
            if client.link.is_writable:
                self.rig.subscription.link_writable(client.link)

    def wait(self) -> None:
        self.rig.loop.advance(1.5)

    # -- what must hold

    def look(self) -> None:
        """Takes in what the clients were sent, now and then while reads and records are still under way."""
        self.rig.loop.settle(self.random.choice([1, 1, 2, 3, 60]))
        for client in self.clients:
            new = client.link.messages[client.seen :]
            client.seen += len(new)
            for message in new:
                assert client.permits > 0, "sent without permits"
                client.permits -= self.sizes[message.at]
                assert message.at not in self.acked, "sent although acknowledged"
                if self.is_shared:
                    holders = [c for c in self.clients if message.at in c.held]
                    assert not holders, "sent while somebody holds it"
                if self.kind == KEY_SHARED:
                    self.check_key_order(client, message)
                client.held[message.at] = message
                self.delivered.add(message.at)

    def check_key_order(self, client: Client, message: Message) -> None:
        for other in self.clients:
            if other is not client:
                assert all(m.key != message.key for m in other.held.values()), "a key at two consumers"
        waiting = [
            at
            for at, key in self.keys.items()
            if key == message.key and at < message.at and at not in self.acked and at not in self.delivered
        ]
        assert not waiting, f"{message.at} overtook {waiting}"

    def figures_agree(self) -> None:
        self.rig.loop.settle()
        self.look()
        subscription = self.rig.subscription
        assert subscription.backlog() == len(set(self.keys) - self.acked)
        for client in self.clients:
            assert client.consumer.permits == client.permits
            if self.is_shared:
                assert set(client.consumer.pending) == set(client.held)
                assert client.consumer.unacked == sum(self.sizes[at] for at in client.held)
        folded = state.fold(None, self.rig.journal.deltas).subscriptions["sub"].cursor
        folded.settle(self.rig.log)
        assert folded == subscription.cursor

    def everything_is_delivered(self) -> None:
        """With room everywhere, each entry reaches somebody; acknowledging as they come, none is left."""
        if not self.clients:
            self.connect()
        for _ in range(200):
            for client in self.clients:
                client.link.is_writable = True
                self.rig.subscription.link_writable(client.link)
                client.permits += 50
                self.rig.subscription.flow(client.consumer, 50)
            self.wait()
            self.look()
            for client in self.clients:
                if client.held:
                    chosen = list(client.held)
                    self.rig.ack(client.consumer, chosen)
                    self.is_acked(chosen)
                    self.look()
            if self.acked >= set(self.keys):
                break
        assert self.rig.subscription.backlog() == 0, sorted(set(self.keys) - self.acked)


STEPS = (
    *(World.publish, World.publish, World.flow, World.flow, World.ack, World.ack, World.ack),
    *(World.refuse, World.connect, World.connect, World.disconnect, World.stall_or_drain),
    *(World.roll, World.seek, World.wait),
)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
@settings(deadline=None, max_examples=25)
@given(st.lists(st.sampled_from(STEPS), min_size=30, max_size=120), st.randoms(use_true_random=False))
def test_no_mix_of_steps_loses_doubles_or_reorders_entries(
    kind: int, steps: list[Callable[[World], None]], random: Random
) -> None:
    world = World(kind, random)
    try:
        world.connect()
        for step in steps:
            step(world)
            world.look()
            if random.random() < 0.3:
                world.figures_agree()
        world.everything_is_delivered()
    finally:
        world.rig.close()
