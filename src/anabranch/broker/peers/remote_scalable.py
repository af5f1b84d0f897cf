"""What scalable topics need of other brokers besides segments: load history, and classic topics to migrate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.errors import NotReadyError
from anabranch.broker.peers.methods import Nothing, PeerMethod
from anabranch.broker.peers.peers import Peers
from anabranch.broker.scalable.classic import ClassicTopics
from anabranch.broker.scalable.load.history_records import HistoryRecord
from anabranch.broker.scalable.load.history_topic import HistoryTopic
from anabranch.model.names import TopicName
from anabranch.model.scalable import SubscriptionKind


class SentHistory(msgspec.Struct, frozen=True):
    """Records for the topic of load history."""

    run: int
    first: int
    records: list[HistoryRecord]


class ClassicCall(msgspec.Struct, frozen=True):
    topic: str


class AttachedClients(msgspec.Struct, frozen=True):
    count: int = 0


class ClassicSubscriptions(msgspec.Struct, frozen=True):
    kinds: dict[str, SubscriptionKind] = {}


HISTORY_RECORDS: Final = PeerMethod("history.records", SentHistory, Nothing)
CLASSIC_ATTACHED: Final = PeerMethod("classic.attached", ClassicCall, AttachedClients)
CLASSIC_SUBSCRIPTIONS: Final = PeerMethod(
    "classic.subscriptions", ClassicCall, ClassicSubscriptions, answer_max_s=20.0
)


class RemoteHistory:
    """Implements `HistoryOwner`, and takes the records of other brokers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def send(
        self, owner: BrokerAddress, run: int, first: int, records: Sequence[HistoryRecord]
    ) -> None:
        batch = SentHistory(run, first, list(records))
        await self._peers.call(owner.service_url, HISTORY_RECORDS, batch)

    def serve(self, history: HistoryTopic | None) -> None:
        async def take(peer: str, batch: SentHistory) -> Nothing:
            if history is None:
                raise NotReadyError("load history is turned off at this broker")
            history.take(peer, batch.run, batch.first, batch.records)
            return Nothing()

        self._peers.handlers.add(HISTORY_RECORDS, take)


class RemoteClassic:
    """Implements `ClassicElsewhere`, and answers other brokers."""

    def __init__(self, peers: Peers, owners: Owners) -> None:
        self._peers = peers
        self._owners = owners

    def is_elsewhere(self, topic: TopicName) -> bool:
        return not self._owners.is_mine(topic)

    async def attached(self, topic: TopicName) -> int:
        owner = await self._owners.resolve(topic)
        call = ClassicCall(str(topic))
        return (await self._peers.call(owner.service_url, CLASSIC_ATTACHED, call)).count

    async def subscriptions(self, topic: TopicName) -> Mapping[str, SubscriptionKind]:
        owner = await self._owners.resolve(topic)
        call = ClassicCall(str(topic))
        return (await self._peers.call(owner.service_url, CLASSIC_SUBSCRIPTIONS, call)).kinds

    def serve(self, classic: ClassicTopics) -> None:
        def owned(call: ClassicCall) -> TopicName:
            topic = TopicName.parse(call.topic)
            if self.is_elsewhere(topic):
                # What another broker has open is not known here.
                raise NotReadyError(f"this broker does not own {topic}: look it up again")
            return topic

        async def attached(peer: str, call: ClassicCall) -> AttachedClients:
            return AttachedClients(classic.attached_here(owned(call)))

        async def subscriptions(peer: str, call: ClassicCall) -> ClassicSubscriptions:
            return ClassicSubscriptions(dict(await classic.subscriptions_here(owned(call))))

        self._peers.handlers.add(CLASSIC_ATTACHED, attached)
        self._peers.handlers.add(CLASSIC_SUBSCRIPTIONS, subscriptions)
