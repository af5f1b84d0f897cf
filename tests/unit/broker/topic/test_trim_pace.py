"""When a log is trimmed: at each check by a single broker, seldom where all brokers follow each change of a record."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import BrokerAddress, SoleOwner
from anabranch.broker.policy.retention import TrimPace
from anabranch.broker.topic.topic import Topic
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_entry
from unit.broker.scalable.brokers import NOW_MS, BrokerLab

NAME = TopicName.parse("persistent://public/default/t")
KEEPS_NOTHING: dict[str, Any] = {
    "default_retention_time_in_minutes": 0,
    "log_linger_seconds": 0,
    "log_linger_bytes": 0,
}


async def consumed(broker: Broker) -> Topic:
    """A topic whose messages nobody needs any more."""
    topic = await broker.topic(NAME, create=True)
    for number in range(3):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW_MS)
        topic.publishing.publish_own(build_entry(metadata, b"consumed"), 1)
    await topic.confirmations.stored_in_full()
    assert topic.log.entries == 3
    return topic


async def one_of_several(lab: BrokerLab, **settings: Any) -> Broker:
    owners = SoleOwner(BrokerAddress("pulsar://b:6650", "http://b:8080"))
    return await lab.broker(owners=owners, **KEEPS_NOTHING, **settings)


async def test_a_single_broker_trims_at_each_check(lab: BrokerLab) -> None:
    topic = await consumed(await lab.broker(**KEEPS_NOTHING))
    await topic.maintain_by_and_by()
    assert topic.log.entries == 0


async def test_one_of_several_brokers_lets_small_trims_wait(lab: BrokerLab) -> None:
    topic = await consumed(await one_of_several(lab))
    for _ in range(3):
        await topic.maintain_by_and_by()
    assert topic.log.entries == 3
    await topic.maintain()  # As an operator asks for it.
    assert topic.log.entries == 0


@pytest.mark.parametrize("settings", [{"log_trim_bytes": 10}, {"log_trim_seconds": 0}])
async def test_a_trim_comes_when_it_is_large_or_late_enough(lab: BrokerLab, settings: dict[str, int]) -> None:
    topic = await consumed(await one_of_several(lab, **settings))
    await topic.maintain_by_and_by()
    assert topic.log.entries == 0


async def test_a_full_disk_is_not_kept_waiting(lab: BrokerLab) -> None:
    topic = await consumed(await one_of_several(lab))
    await topic.maintain_by_and_by()
    lab.log.set_accepting(False)
    await topic.maintain_by_and_by()
    assert topic.log.entries == 0


async def test_the_share_of_the_disk_is_not_kept_waiting(lab: BrokerLab) -> None:
    topic = await consumed(await one_of_several(lab))
    assert topic.upkeep.is_retained_by_default
    assert await topic.upkeep.give_back(NOW_MS + 1) > 0
    assert topic.log.entries == 0


async def test_a_sealed_log_is_emptied_at_once(lab: BrokerLab) -> None:
    topic = await consumed(await one_of_several(lab))
    await topic.terminate()
    await topic.maintain_by_and_by()
    assert topic.log.entries == 0


def test_a_trim_is_due_when_it_gives_up_a_ledger_or_enough_bytes_or_has_waited() -> None:
    pace = TrimPace(100, 60)
    assert not pace.is_due(99, 59, gives_up_ledger=False)
    assert pace.is_due(100, 0, gives_up_ledger=False)
    assert pace.is_due(1, 60, gives_up_ledger=False)
    assert pace.is_due(1, 0, gives_up_ledger=True)
