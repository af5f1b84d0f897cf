"""Hidden writes on classic topics that are deleted when unused, by jobs with slow drivers.

Between the last task and the decision no client is attached and readers see nothing, and yet the topic is in use.
Retention keeps everything, so once a batch is shown the topic stays: a reader at the end finds all of it.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Final

from anabranch.broker.broker import Broker
from anabranch.broker.catalog.resources import Conflict
from anabranch.broker.policy.namespace import InactiveTopics, NamespacePolicies, Retention
from anabranch.model.names import NamespaceName, TopicName
from anabranch.simulation.plays.play import Play
from anabranch.simulation.world import workload
from anabranch.simulation.world.faults import Faults
from anabranch.simulation.world.kinds import TroubleKind
from anabranch.simulation.world.world import World
from anabranch.simulation.world.writers import WriterJob, write_batches

NAMESPACE: Final = NamespaceName("public", "brief")
TOPIC: Final = f"persistent://{NAMESPACE}/night"
READER: Final = "morning"
SLOW_S: Final = 8.0
POLICIES: Final = NamespacePolicies(
    inactive_topic_policies=InactiveTopics(
        inactive_topic_delete_mode="delete_when_no_subscriptions",
        max_inactive_duration_seconds=1,
        delete_while_inactive=True,
    ),
    retention_policies=Retention(minutes=-1, megabytes=-1),
)


class BriefTopics(Play):
    kind: ClassVar = TroubleKind.BRIEF_TOPICS

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self._is_read = False

    async def prepare(self) -> None:
        async def make(broker: Broker) -> None:
            try:
                await broker.resources.create_namespace(NAMESPACE, POLICIES)
            except Conflict:
                return  # Created, though no client got the answer.

        await self.until_done(f"{NAMESPACE} is made", lambda: workload.ask(self.world, make))
        # The subscription reads from the beginning, and everything is kept for it.
        self.history.subscribed(READER, keeps_order=False)

    def start(self) -> None:
        make = partial(self.make_topic, TopicName.parse(TOPIC))
        job = WriterJob("night", TOPIC, self.history, slow_s=SLOW_S, make_topic=make)
        self.task(write_batches(self.world, job, self.chance.randint(2, 4)))

    def left(self) -> str | None:
        left = super().left()
        if not self._is_read and all(task.done() for task in self._tasks):
            self._is_read = True
            self.read(READER, "morning-0", TOPIC, is_stream=False)
        return left
