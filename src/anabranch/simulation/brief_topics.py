"""Hidden writes on classic topics that are deleted when nobody uses them, by jobs whose drivers take their time.

Between the last task and the decision nobody is attached and readers see nothing, and yet the topic is in use.
Retention keeps everything, so once a batch is shown the topic stays: whoever reads in the end finds all of it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from anabranch.broker.broker import Broker
from anabranch.broker.policies import InactiveTopics, Policies, Retention
from anabranch.broker.resources import Conflict
from anabranch.model.names import NamespaceName, TopicName
from anabranch.simulation import workload
from anabranch.simulation.kinds import Kind
from anabranch.simulation.plays import Play
from anabranch.simulation.writers import Job, write_batches

if TYPE_CHECKING:
    from anabranch.simulation.run import World

NAMESPACE: Final = NamespaceName("public", "brief")
TOPIC: Final = f"persistent://{NAMESPACE}/night"
READER: Final = "morning"
SLOW_S: Final = 8.0
POLICIES: Final = Policies(
    inactive_topic_policies=InactiveTopics(
        inactive_topic_delete_mode="delete_when_no_subscriptions",
        max_inactive_duration_seconds=1,
        delete_while_inactive=True,
    ),
    retention_policies=Retention(minutes=-1, megabytes=-1),
)


class BriefTopics(Play):
    kind: ClassVar = Kind.BRIEF_TOPICS

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_read = False

    async def prepare(self) -> None:
        async def make(broker: Broker) -> None:
            try:
                await broker.resources.create_namespace(NAMESPACE, POLICIES)
            except Conflict:
                return  # Made, though nobody was told so.

        await self.until_done(f"{NAMESPACE} is made", lambda: workload.ask(self.world, make))
        # It reads from the beginning, and everything is kept for it.
        self.history.subscribed(READER, keeps_order=False)

    def start(self) -> None:
        make = partial(self.make_topic, TopicName.parse(TOPIC))
        job = Job("night", TOPIC, self.history, slow_s=SLOW_S, make_topic=make)
        self.task(write_batches(self.world, job, self.chance.randint(2, 4)))

    def left(self) -> str | None:
        left = super().left()
        if not self._is_read and all(task.done() for task in self._tasks):
            self._is_read = True
            self.read(READER, "morning-0", TOPIC, is_stream=False)
        return left
