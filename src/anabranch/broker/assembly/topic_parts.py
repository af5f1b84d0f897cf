"""The parts that open, keep, hand over and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.broker.assembly.ground import Ground
from anabranch.broker.assembly.scalable_parts import ScalableParts
from anabranch.broker.balance.channel.led_channel import channel_keep
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.peers.topic_moves import CallsOfMoves, ServedMoves
from anabranch.broker.policy.effective import LatestEffective
from anabranch.broker.policy.retention import AT_ONCE, TrimPace
from anabranch.broker.scalable.load.history_topic import history_keep
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topics.creation import NewTopics
from anabranch.broker.topics.disk_share import DiskShare
from anabranch.broker.topics.handing_over import HandOver
from anabranch.broker.topics.inactive import InactiveTopicSweep
from anabranch.broker.topics.known_topics import KnownTopics
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.broker.topics.operations import TopicOperations
from anabranch.broker.topics.rounds import TopicRounds
from anabranch.broker.topics.write_upkeep import WriteUpkeep
from anabranch.model.leaders_topics import is_leaders
from anabranch.storage.topic.ledger_ids import LedgerIds


class TopicParts:
    def __init__(
        self,
        ground: Ground,
        scalable: ScalableParts,
        new_topics: NewTopics,
        write_records: WriteRecords,
        moves: CallsOfMoves,
        progressed: Callable[[], None],
        *,
        names_owners: bool,
    ) -> None:
        """`progressed` is called once the log has confirmed something. `names_owners`: clients of a topic that moves
        are told its new owner."""
        metadata, config = ground.metadata, ground.current_config
        self.known = KnownTopics(ground.resources, ground.records, lambda name: self.open.is_opening(name))
        self.services = TopicServices(
            loop=ground.loop,
            now_ms=ground.now_ms,
            config=config,
            metadata=metadata,
            log_store=ground.log,
            ledger_ids=LedgerIds(metadata),
            policies=ground.topic_policies,
            effective=LatestEffective(config),
            write_records=write_records,
            rights=ground.rights,
            background=ground.background,
            compacting=asyncio.Semaphore(1),
            http_url=ground.http_url,
            registration=scalable.registration,
            bucket_owners=scalable.bucket_owners,
            progressed=progressed,
            segment_progressed=scalable.segment_progressed,
            part_of=self.known.part_of,
            last_word=moves.last_word,
            trim_pace=_trim_pace(ground),
            is_of_brokers=is_leaders,
        )
        self.open = OpenTopics(
            self.services,
            ground.resources,
            ground.records,
            ground.owners,
            new_topics,
            own_keep=lambda name: channel_keep(name) or history_keep(config(), name),
            segment_opened=scalable.segment_opened,
        )
        self.hand_over = HandOver(
            self.open,
            ground.owners,
            ground.log,
            ground.background,
            moves.tell_open,
            destination=None if ground.balancer is None else ground.balancer.owners.destination,
            names_owners=names_owners,
        )
        if ground.balancer is not None:
            ground.balancer.attach(self.hand_over)
        ServedMoves(self.hand_over).serve(ground.peers)
        self.write_upkeep = WriteUpkeep(self.open, write_records, metadata, ground.owners, config)
        self.operations = TopicOperations(
            self.open, ground.resources, ground.records, ground.schemas, ground.topic_policies
        )
        self.inactive = InactiveTopicSweep(self.open, self.operations.delete, ground.now_ms)
        self.disk_share = DiskShare(self.services, self.open)
        self.rounds = TopicRounds(self.open, self.disk_share, ground.loop.time)


def _trim_pace(ground: Ground) -> TrimPace:
    if not ground.is_one_of_several:
        return AT_ONCE
    config = ground.current_config()
    return TrimPace(config.log_trim_bytes, config.log_trim_seconds)
