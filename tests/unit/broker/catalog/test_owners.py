"""Who owns a topic where there is one broker."""

from __future__ import annotations

from anabranch.broker.catalog.owners import BrokerAddress, SoleOwner
from anabranch.model.names import TopicName

ME = BrokerAddress("pulsar://me:6650", "http://me:8080")


async def test_a_broker_alone_owns_everything() -> None:
    owners = SoleOwner(ME)
    topic = TopicName.parse("segment://public/default/t/0000-ffff-0")
    assert owners.is_mine(topic)
    assert owners.owner(topic) == ME
    assert await owners.resolve(topic) == ME
