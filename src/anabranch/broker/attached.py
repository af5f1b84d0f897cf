"""The producers attached to a topic: one per name, and by access mode many or one that has the topic to itself.

The rules are in `producer.py`; here they are carried out, and answered to the clients. Whoever gets the topic to itself
is told so only once the new epoch is stored: a crash must not let the one before it back in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anabranch.broker.errors import ProducerBusyError, ProducerFencedError
from anabranch.broker.producer import Admission, Producer, Verdict
from anabranch.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from anabranch.broker.ports import Publishable


class Attached:
    def __init__(
        self,
        topic: Publishable,
        epoch: int | None,
        departed: Callable[[Producer], None] = lambda producer: None,
    ) -> None:
        """`departed` is told of each producer that was attached and is no more."""
        self._departed = departed
        self._topic = topic
        self._admission = Admission(epoch)
        # The request that each waiting producer's second answer belongs to.
        self._waiting: dict[Producer, int] = {}
        self.producers: dict[str, Producer] = {}

    @property
    def epoch(self) -> int | None:
        """Rises each time somebody gets the topic to itself."""
        return self._admission.epoch

    @property
    def waiting(self) -> int:
        return len(self._admission.waiting)

    async def make_way(self, producer: Producer) -> None:
        """One producer per name: the same client's successor replaces it, a dead connection's is dropped."""
        old = self.producers.get(producer.name)
        if old is None or old.is_closed:
            return
        if producer.replaces(old):
            self._drop(old)
            return
        busy = ProducerBusyError(
            f"ProducerBusy: Producer with name '{producer.name}' is already connected to topic '{self._topic.name}'"
        )
        if old.link is producer.link or await old.link.is_alive():
            raise busy
        if self.producers.get(producer.name) is old:
            self._drop(old)
        elif producer.name in self.producers:
            raise busy

    def _drop(self, producer: Producer) -> None:
        producer.is_closed = True
        self.remove(producer)

    def add(self, producer: Producer, request_id: int) -> None:
        """Admits the producer, lets it wait, or raises why neither is possible."""
        others = [p for p in self.producers.values() if p is not producer]
        verdict = self._admission.judge(producer, others)
        # The names of the errors are in the texts: some clients look for them there, and drop the code.
        if verdict is Verdict.BUSY:
            raise ProducerBusyError(f"ProducerBusy: {self._topic.name} {self._admission.why_not(producer)}")
        if verdict is Verdict.FENCED:
            raise ProducerFencedError(
                f"ProducerFenced: {self._topic.name} {self._admission.why_not(producer)}"
            )
        if verdict is Verdict.WAIT:
            self._admission.waiting.append(producer)
            self._waiting[producer] = request_id
            # Known to its connection, so that it can be closed; its publishes do not count before it is admitted.
            producer.is_closed = True
            producer.link.attach_producer(producer)
            self._answer(producer, request_id, is_ready=False)
            return
        if verdict is Verdict.FENCE_OTHERS:
            self.close_all()
        self._admit(producer, request_id)

    def _admit(self, producer: Producer, request_id: int) -> None:
        producer.is_closed = False
        self.producers[producer.name] = producer
        producer.link.attach_producer(producer)
        if not producer.wants_all:
            self._answer(producer, request_id, is_ready=True)
            return
        self._admission.hold(producer)

        def stored(error: Exception | None) -> None:
            # Without the epoch on disk there is no answer: the topic is closing, and the client comes back.
            if error is None and not producer.is_closed:
                self._answer(producer, request_id, is_ready=True)

        self._topic.store_epoch(stored)

    def answer_again(self, producer: Producer, request_id: int) -> None:
        """The same request again: the same answer."""
        self._answer(producer, request_id, is_ready=producer not in self._waiting)

    def _answer(self, producer: Producer, request_id: int, *, is_ready: bool) -> None:
        answer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        success = answer.producer_success
        success.request_id = request_id
        success.producer_name = producer.name
        # Hidden producers are not deduplicated: their clients give a whole attempt up when they are in doubt.
        is_hidden = producer.attempt is not None
        success.last_sequence_id = -1 if is_hidden else self._topic.last_sequence_id(producer.name)
        success.schema_version = producer.schema_version
        if self.epoch is not None and producer.wants_all:
            success.topic_epoch = self.epoch
        success.producer_ready = is_ready
        producer.link.send(answer)

    def remove(self, producer: Producer) -> None:
        """The producer is gone; the one that has waited longest for the topic gets it."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._departed(producer)
        self._waiting.pop(producer, None)
        self._admission.release(producer)
        if not self.producers and self._admission.waiting and not self._topic.is_closed:
            successor = self._admission.waiting.pop(0)
            self._admit(successor, self._waiting.pop(successor))

    def close_all(self) -> None:
        """Every producer is closed by the broker; clients come back and are refused or admitted then."""
        waiting, self._admission.waiting = self._admission.waiting, []
        self._waiting.clear()
        for producer in [*self.producers.values(), *waiting]:
            producer.link.producer_closed(producer)
            self.remove(producer)
