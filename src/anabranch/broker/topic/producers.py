"""The producers attached to a topic: one per name, and by access mode many shared ones or one exclusive one.

The rules are in `producer.py`; this module applies them and answers the clients. A producer is told that it is
exclusive only once the new epoch is stored: a crash must not let its predecessor back in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.broker.config.listeners import Addresses
from anabranch.broker.errors import ProducerBusyError, ProducerFencedError
from anabranch.broker.topic.producer import (
    Admission,
    AdmissionVerdict,
    AttachedProducer,
    Publishable,
    StoredIds,
)
from anabranch.model.names import TopicName
from anabranch.wire import pulsar_pb2 as pb


class TopicProducers:
    def __init__(
        self,
        name: TopicName,
        epoch: int | None,
        departed: Callable[[AttachedProducer], None] = lambda producer: None,
    ) -> None:
        """`departed` is called with each producer that is no longer attached.

        The topic itself is asked through its producers, each of which knows it: held here, both would stay in memory.
        """
        self._departed = departed
        self._name = name
        self._admission = Admission(epoch)
        # The request that the second answer to each waiting producer belongs to.
        self._waiting: dict[AttachedProducer, int] = {}
        self.producers: dict[str, AttachedProducer] = {}

    @property
    def epoch(self) -> int | None:
        """Rises each time a producer becomes exclusive."""
        return self._admission.epoch

    @property
    def waiting(self) -> int:
        return len(self._admission.waiting)

    async def make_way(self, producer: AttachedProducer) -> None:
        """Frees the producer's name: the same client's successor replaces the old producer, and one whose connection is
        dead is dropped."""
        old = self.producers.get(producer.name)
        if old is None or old.is_closed:
            return
        if producer.replaces(old):
            self._drop(old)
            return
        if old.link is producer.link or await old.link.is_alive():
            raise self._busy(producer)
        if self.producers.get(producer.name) is old:
            self._drop(old)
        elif producer.name in self.producers:
            raise self._busy(producer)

    def _busy(self, producer: AttachedProducer) -> ProducerBusyError:
        return ProducerBusyError(
            f"ProducerBusy: Producer with name '{producer.name}' is already connected to topic '{self._name}'"
        )

    def _drop(self, producer: AttachedProducer) -> None:
        producer.is_closed = True
        self.remove(producer)

    def add(self, producer: AttachedProducer, request_id: int) -> None:
        """Admits the producer, lets it wait, or raises the reason for a refusal."""
        present = self.producers.get(producer.name)
        if present is not None and present is not producer and not present.is_closed:
            # It came while this one waited. With deduplication, two of one name would drop each other's messages.
            raise self._busy(producer)
        others = [p for p in self.producers.values() if p is not producer]
        verdict = self._admission.judge(producer, others)
        # The error texts contain the errors' names: some clients search for these and drop the code.
        if verdict is AdmissionVerdict.BUSY:
            raise ProducerBusyError(f"ProducerBusy: {self._name} {self._admission.why_not(producer)}")
        if verdict is AdmissionVerdict.FENCED:
            raise ProducerFencedError(f"ProducerFenced: {self._name} {self._admission.why_not(producer)}")
        if verdict is AdmissionVerdict.WAIT:
            self._admission.waiting.append(producer)
            self._waiting[producer] = request_id
            # The connection knows the producer, so that it can be closed; its publishes are ignored until it is
            # admitted.
            producer.is_closed = True
            producer.link.attach_producer(producer)
            self._answer(producer, request_id, is_ready=False)
            return
        if verdict is AdmissionVerdict.FENCE_OTHERS:
            self.close_all()
        self._admit(producer, request_id)

    def _admit(self, producer: AttachedProducer, request_id: int) -> None:
        producer.is_closed = False
        self.producers[producer.name] = producer
        producer.link.attach_producer(producer)
        if not producer.is_exclusive:
            self._answer(producer, request_id, is_ready=True)
            return
        self._admission.hold(producer)

        def stored(error: Exception | None) -> None:
            # Until the epoch is stored there is no answer: if storing fails, the topic is closing and the client
            # reconnects.
            if error is None and not producer.is_closed:
                self._answer(producer, request_id, is_ready=True)

        _topic_of(producer).store_epoch(stored)

    def answer_again(self, producer: AttachedProducer, request_id: int) -> None:
        """Answers a repeated request like the first."""
        self._answer(producer, request_id, is_ready=producer not in self._waiting)

    def _answer(self, producer: AttachedProducer, request_id: int, *, is_ready: bool) -> None:
        answer = pb.BaseCommand(type=pb.BaseCommand.PRODUCER_SUCCESS)
        success = answer.producer_success
        success.request_id = request_id
        success.producer_name = producer.name
        # Hidden producers are not deduplicated: their clients drop the whole attempt when in doubt.
        is_hidden = producer.attempt is not None
        ids = StoredIds() if is_hidden else _topic_of(producer).stored_ids(producer.name)
        ids.fill(success)
        success.schema_version = producer.schema_version
        if self.epoch is not None and producer.is_exclusive:
            success.topic_epoch = self.epoch
        success.producer_ready = is_ready
        producer.link.send(answer)

    def remove(self, producer: AttachedProducer) -> None:
        """Removes the producer; the one that has waited longest to become exclusive is admitted."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
            self._departed(producer)
        self._waiting.pop(producer, None)
        self._admission.release(producer)
        if not self.producers and self._admission.waiting:
            successor = self._admission.waiting[0]
            if not _topic_of(successor).is_closed:
                del self._admission.waiting[0]
                self._admit(successor, self._waiting.pop(successor))

    @property
    def attempts(self) -> set[str]:
        """The attempts at hidden writes that have a producer here."""
        return {one.attempt for one in self.producers.values() if one.attempt is not None}

    def close_attempts(self, attempts: Collection[str]) -> None:
        """Closes the producers of those attempts, so that nothing more is written under them. Clients that reconnect
        get the reason."""
        for producer in list(self.producers.values()):
            if producer.attempt in attempts:
                producer.link.producer_closed(producer)
                self.remove(producer)

    def close_all(self, moved_to: Addresses | None = None) -> None:
        """Closes every producer; clients that reconnect are then refused or admitted. `moved_to`: the broker that
        serves the topic now, if known."""
        waiting, self._admission.waiting = self._admission.waiting, []
        self._waiting.clear()
        for producer in [*self.producers.values(), *waiting]:
            producer.link.producer_closed(producer, moved_to)
            self.remove(producer)


def _topic_of(producer: AttachedProducer) -> Publishable:
    assert producer.topic is not None, f"producer {producer.name} was added before it had a topic"
    return producer.topic
