"""Which broker should lead a scalable topic: the owner of the bundle that holds `topic://…`. Others ask it to."""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from anabranch.broker.catalog.owners import Owners
from anabranch.broker.peers.methods import Nothing, PeerMethod
from anabranch.broker.peers.peers import Peers
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName


class LeadTopic(msgspec.Struct, frozen=True):
    topic: str


# A topic is in use, and the broker that is asked should lead it. Answered once it has tried to.
LEAD_TOPIC: Final = PeerMethod("scalable.lead", LeadTopic, Nothing, answer_max_s=1.5)


class RemoteLeaders:
    """Implements `controller.ports.Candidates`, and answers other brokers."""

    def __init__(self, peers: Peers, owners: Owners) -> None:
        self._peers = peers
        self._owners = owners

    def is_elsewhere(self, topic: TopicName) -> bool:
        return not self._owners.is_mine(topic) and self._owners.owner(topic) is not None

    async def urge(self, topic: TopicName) -> None:
        owner = self._owners.owner(topic)
        # The topic may have become this broker's meanwhile, which would wait for itself.
        if owner is not None and self.is_elsewhere(topic):
            with contextlib.suppress(AnabranchError):
                await self._peers.call(owner.service_url, LEAD_TOPIC, LeadTopic(str(topic)))

    def serve(self, topics: ScalableTopics) -> None:
        async def lead(peer: str, asked: LeadTopic) -> Nothing:
            await topics.urged(TopicName.parse(asked.topic))
            return Nothing()

        self._peers.handlers.add(LEAD_TOPIC, lead)
