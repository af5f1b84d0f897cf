"""A broker that says what a test tells it to, over real connections: layouts, producers, consumers, sessions."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from anabranch.client.acking.core.state import bits_of, words_of
from anabranch.model.buckets import even, ranges
from anabranch.model.layout import SegmentLayout
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, build_message
from anabranch.wire.connection import Connection, Role
from anabranch.wire.encode import encode_command, encode_payload_header
from anabranch.wire.extensions import ASK_SEQUENCE_ID

C = pb.BaseCommand


class Link:
    """One connection of a client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, kind: Any, field: str, **fields: Any) -> None:
        command = C(type=kind)
        body = getattr(command, field)
        body.SetInParent()
        body.MergeFrom(type(body)(**fields))
        self._writer.write(encode_command(command))

    def send_message(
        self, consumer: int, ledger: int, entry: int, payload: bytes, properties: Mapping[str, str]
    ) -> None:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1, partition_key="k")
        for name, value in properties.items():
            metadata.properties.add(key=name, value=value)
        data = build_message(metadata, payload)
        at = pb.MessageIdData(ledgerId=ledger, entryId=entry)
        message = pb.CommandMessage(consumer_id=consumer, message_id=at)
        self._writer.write(encode_payload_header(C(type=C.MESSAGE, message=message), len(data)) + data)

    def send_entry(self, body: pb.CommandMessage, entry: bytes) -> None:
        self._writer.write(encode_payload_header(C(type=C.MESSAGE, message=body), len(entry)) + entry)

    def cut(self) -> None:
        self._writer.transport.abort()

    async def reset(self) -> None:
        """Cuts the connection so that the client's next write fails, before its loop has noticed the end."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.cut()
        await asyncio.sleep(0)  # The socket is closed in this turn; the client hears of it in the next one.

    def read(self, *, is_on: bool) -> None:
        """Whether what the client sends is taken from the socket."""
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        if is_on:
            transport.resume_reading()
        else:
            transport.pause_reading()


class ScriptedBroker:
    """Grants everything; a test looks at what was asked for and changes the answers."""

    def __init__(self, layout: SegmentLayout) -> None:
        self.url = ""
        self.name = "Anabranch script"
        self.layout = layout
        self.controller_url = ""
        self.is_deleted = False
        self.features = pb.FeatureFlags(supports_scalable_topics=True)
        self.tells_gone = False  # As Pulsar.
        # What comes next: an error number for the next connections.
        self.connects_refused: list[int] = []
        self.links: list[Link] = []
        self.watches: list[tuple[Link, int]] = []
        self.lookups: list[pb.CommandScalableTopicLookup] = []
        # What the first answer to the watch of a namespace names; `tell_topics` says something else later.
        self.topics: list[str] = []
        self.namespace_watches: list[tuple[Link, int]] = []
        self._subscribed: dict[tuple[Link, int], str] = {}
        # The segment topics of the consumers that are attached: subscribed, and neither closed nor disconnected since.
        self._attached: dict[tuple[Link, int], str] = {}
        # By segment topic: the producer or consumer attached last (ready for messages), as (link, id).
        self.producers: dict[str, tuple[Link, int]] = {}
        self.consumers: dict[str, tuple[Link, int]] = {}
        self.sessions: list[tuple[Link, pb.CommandScalableTopicSubscribe]] = []
        self.assigned: tuple[int, list[int]] = (0, [])
        # By segment, how many entry buckets it is shared by from the next assignment on.
        self.buckets: dict[int, int] = {}
        # Sent right behind the answer to a registration.
        self.assigned_next: tuple[int, list[int]] | None = None
        # What comes next, by segment topic: an error number for the next producers or subscriptions.
        self.refusals: dict[str, list[int]] = {}
        self.refusal_text = "script"
        # Segment topics whose subscriptions wait for their answer.
        self.silent: set[str] = set()
        self.attempts = 0  # Requests to attach a consumer, with those that were refused.
        # Every granted request to attach a consumer, seeks by time, and by segment topic the mark-delete place of
        # readers.
        self.subscriptions: list[pb.CommandSubscribe] = []
        self.seeks: list[tuple[str, int]] = []
        self.ends: dict[str, tuple[int, int]] = {}
        self.places_refused = 0  # So many of the next questions for it are refused.
        self.sealed: set[str] = set()
        self.last_sequence: dict[str, int] = {}
        # Whether it judges sequence ids by entry bucket. By segment topic: what it holds then.
        self.knows_buckets = True
        self.last_in_buckets: dict[str, dict[int, int]] = {}
        self.sent: list[tuple[str, int]] = []
        self.entries: list[bytes] = []
        # Every request to attach a producer, and what the answer holds besides.
        self.asked: list[pb.CommandProducer] = []
        self.success: dict[str, Any] = {}
        self.refused: list[int] = []
        self.questions: list[str] = []
        self.acks: list[tuple[str, int, int, bool]] = []
        # Entries acknowledged in part: the bits that were left.
        self.parts: list[tuple[int, int]] = []
        self.answers_acks = True
        self.acknowledged: Callable[[pb.CommandAck], object] = lambda _: None
        self.redelivered: list[tuple[str, int]] = []
        self.permits = 0  # Of all consumers together, as they were given.
        self.flowed: Callable[[], object] = lambda: None
        self.closed: list[tuple[str, int]] = []
        # Closes of consumers wait for `answer_closes` while this is False.
        self.answers_closes = True
        self._unanswered: list[tuple[Link, int]] = []
        self.receipts = True
        self.changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self.links.append(link)
        wire = Connection(Role.BROKER, now=0)
        try:
            while data := await reader.read(1 << 16):
                for frame in wire.feed(data, 0):
                    if frame[0] == C.CONNECT and self.connects_refused:
                        error = self.connects_refused.pop(0)
                        link.send(C.ERROR, "error", request_id=0, error=error, message="no")
                        return
                    if frame[0] == C.CONNECT:
                        writer.write(wire.accept(self.name, self.features))
                    else:
                        self._act(link, frame)
                    self.changed.set()
        except ConnectionError:
            pass
        finally:
            self.watches = [watch for watch in self.watches if watch[0] is not link]
            self._attached = {part: topic for part, topic in self._attached.items() if part[0] is not link}
            writer.close()

    async def until(self, met: Callable[[], object]) -> None:
        """Waits for something to be asked for; looks again after every frame."""
        async with asyncio.timeout(10):
            while not met():
                self.changed.clear()
                await self.changed.wait()

    @property
    def attached(self) -> list[str]:
        """The segment topics of the consumers that are attached now, one for each."""
        return sorted(self._attached.values())

    # -- what clients ask for

    def _act(self, link: Link, frame: tuple[Any, ...]) -> None:
        kind, command = frame[0], frame[1]
        if kind == C.SEND:
            self._send(link, frame[1], frame[2], bytes(frame[6]))
        elif kind == C.SCALABLE_TOPIC_LOOKUP:
            self._lookup(link, command.scalableTopicLookup)
        elif kind == C.WATCH_SCALABLE_TOPICS:
            self.namespace_watches.append((link, command.watchScalableTopics.watch_id))
            self.tell_topics(*self.topics)
        elif kind == C.LOOKUP:
            link.send(
                C.LOOKUP_RESPONSE,
                "lookupTopicResponse",
                request_id=command.lookupTopic.request_id,
                response=1,
                brokerServiceUrl=self.url,
            )
        elif kind == C.PRODUCER:
            self._producer(link, command.producer)
        elif kind == C.SUBSCRIBE:
            self._subscribe(link, command.subscribe)
        elif kind == C.SEEK:
            self._seek(link, command.seek)
        elif kind == C.GET_LAST_MESSAGE_ID:
            self._last_message_id(link, command.getLastMessageId)
        elif kind == C.FLOW:
            consumer = command.flow.consumer_id
            self.permits += command.flow.messagePermits
            self.consumers[self._subscribed[link, consumer]] = (link, consumer)
            self.flowed()
        elif kind == C.SCALABLE_TOPIC_SUBSCRIBE:
            self._register(link, command.scalableTopicSubscribe)
        elif kind == C.ACK:
            self._ack(link, command.ack)
        elif kind == C.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            again = command.redeliverUnacknowledgedMessages
            name = self._consumer_name(link, again.consumer_id)
            self.redelivered += [(name, at.entryId) for at in again.message_ids]
        elif kind in (C.CLOSE_PRODUCER, C.CLOSE_CONSUMER):
            self._close(link, kind, command)

    def _lookup(self, link: Link, request: pb.CommandScalableTopicLookup) -> None:
        self.lookups.append(request)
        if self.is_deleted:
            link.send(
                C.SCALABLE_TOPIC_UPDATE,
                "scalableTopicUpdate",
                session_id=request.session_id,
                error=pb.TopicNotFound,
                message="gone",
            )
            return
        self.watches.append((link, request.session_id))
        self._push(link, request.session_id, self.layout)

    def tell_topics(self, *names: str) -> None:
        """Pushes all topics that there are to whoever watches the namespace."""
        for link, number in self.namespace_watches:
            link.send(
                C.WATCH_SCALABLE_TOPICS_UPDATE,
                "watchScalableTopicsUpdate",
                watch_id=number,
                snapshot=pb.ScalableTopicsSnapshot(topics=names),
            )

    def publish(self, layout: SegmentLayout) -> None:
        """Pushes a layout to whoever watches."""
        if layout.epoch > self.layout.epoch:
            self.layout = layout
        for link, session in self.watches:
            self._push(link, session, layout)

    def _push(self, link: Link, session: int, layout: SegmentLayout) -> None:
        dag = pb.ScalableTopicDAG(epoch=layout.epoch, controller_broker_url=self.controller_url or self.url)
        for one in layout.segments.values():
            dag.segments.add(
                segment_id=one.id,
                hash_start=one.range.start,
                hash_end=one.range.end,
                state=pb.SEALED if one.is_sealed else pb.ACTIVE,
                parent_ids=one.parents,
                child_ids=one.children,
                created_at_epoch=one.created_epoch,
                sealed_at_epoch=one.sealed_epoch,
                created_at_ms=0,
                legacy_topic_name=one.classic_topic or None,
                entry_bucket_splits=one.bucket_splits,
            )
        dag.tells_gone = self.tells_gone
        if layout.topic_id:
            dag.topic_id = layout.topic_id
        for gone in (layout.gone or ()) if self.tells_gone else ():
            about = dag.gone.add(
                segment_id=gone.segment, hash_start=gone.range.start, hash_end=gone.range.end
            )
            if gone.end is not None:
                about.end_ledger, about.end_entry = gone.end
        for one in layout.active:
            dag.segment_brokers.add(segment_id=one.id, broker_url=self.url)
        link.send(
            C.SCALABLE_TOPIC_UPDATE,
            "scalableTopicUpdate",
            session_id=session,
            dag=dag,
            resolved_topic_name="topic://public/default/t",
        )

    def _refuse(self, link: Link, request: Any) -> bool:
        waiting = self.refusals.get(request.topic)
        if waiting:
            link.send(
                C.ERROR,
                "error",
                request_id=request.request_id,
                error=waiting.pop(0),
                message=self.refusal_text,
            )
            return True
        return False

    def _producer(self, link: Link, request: pb.CommandProducer) -> None:
        """Attached at once, or first told to wait (`success["producer_ready"] = False`) and `admit`ted later."""
        if any(item.key == ASK_SEQUENCE_ID for item in request.metadata):
            self.questions.append(request.topic)
        elif request.topic in self.sealed:
            self.refusals.setdefault(request.topic, []).insert(0, pb.TopicTerminatedError)
        if self._refuse(link, request):
            return
        self.asked.append(request)
        self.producers[request.topic] = (link, request.producer_id)
        link.send(
            C.PRODUCER_SUCCESS,
            "producer_success",
            request_id=request.request_id,
            producer_name=request.producer_name,
            last_sequence_id=self.last_sequence.get(request.topic, -1),
            anabranch_buckets=[
                pb.AnabranchBucketSequence(bucket=bucket, last_sequence_id=last)
                for bucket, last in self.last_in_buckets.get(request.topic, {}).items()
            ],
            anabranch_whole_sequence_id=-1 if self.knows_buckets else None,
            **self.success,
        )

    def admit(self) -> None:
        """Those told to wait have their turn."""
        for request in self.asked:
            link, _ = self.producers[request.topic]
            link.send(
                C.PRODUCER_SUCCESS,
                "producer_success",
                request_id=request.request_id,
                producer_name=request.producer_name,
            )

    def _send(self, link: Link, producer: int, sequence: int, entry: bytes) -> None:
        topic = next(name for name, found in self.producers.items() if found == (link, producer))
        if topic in self.sealed:
            self.refused.append(sequence)
            link.send(
                C.SEND_ERROR,
                "send_error",
                producer_id=producer,
                sequence_id=sequence,
                error=pb.TopicTerminatedError,
                message="script",
            )
            return
        self.sent.append((topic, sequence))
        self.entries.append(entry)
        if self.receipts:
            self.receipt(topic, sequence)

    def receipt(self, topic: str, sequence: int) -> None:
        link, producer = self.producers[topic]
        link.send(
            C.SEND_RECEIPT,
            "send_receipt",
            producer_id=producer,
            sequence_id=sequence,
            message_id=pb.MessageIdData(ledgerId=1, entryId=sequence),
        )

    def _subscribe(self, link: Link, request: pb.CommandSubscribe) -> None:
        self.attempts += 1
        if request.topic in self.silent or self._refuse(link, request):
            return
        self._subscribed[link, request.consumer_id] = self._attached[link, request.consumer_id] = (
            request.topic
        )
        self.subscriptions.append(request)
        link.send(C.SUCCESS, "success", request_id=request.request_id)

    def _seek(self, link: Link, request: pb.CommandSeek) -> None:
        """As brokers do: the consumer is closed, and comes back."""
        self.seeks.append((self._subscribed[link, request.consumer_id], request.message_publish_time))
        self._attached.pop((link, request.consumer_id), None)
        link.send(C.CLOSE_CONSUMER, "close_consumer", consumer_id=request.consumer_id, request_id=0)
        link.send(C.SUCCESS, "success", request_id=request.request_id)

    def _last_message_id(self, link: Link, request: pb.CommandGetLastMessageId) -> None:
        if self.places_refused:
            self.places_refused -= 1
            link.send(
                C.ERROR, "error", request_id=request.request_id, error=pb.ServiceNotReady, message="script"
            )
            return
        ledger, entry = self.ends.get(self._subscribed[link, request.consumer_id], (-1, -1))
        at = pb.MessageIdData(ledgerId=ledger & (1 << 64) - 1, entryId=entry & (1 << 64) - 1)
        link.send(
            C.GET_LAST_MESSAGE_ID_RESPONSE,
            "getLastMessageIdResponse",
            request_id=request.request_id,
            last_message_id=at,
            consumer_mark_delete_position=at,
        )

    def deliver(
        self, topic: str, entry: int, payload: bytes = b"x", *, properties: Mapping[str, str] | None = None
    ) -> None:
        link, consumer = self.consumers[topic]
        link.send_message(consumer, 1, entry, payload, properties or {})

    def deliver_batch(
        self, topic: str, entry: int, count: int, *, redeliveries: int = 0, unacked: int = 0
    ) -> None:
        """A batch of `count` messages, "entry.0" and so on; with `unacked` the bits that are not acknowledged."""
        link, consumer = self.consumers[topic]
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=entry, publish_time=1)
        singles = [
            (pb.SingleMessageMetadata(payload_size=0, partition_key="k"), b"%d.%d" % (entry, n))
            for n in range(count)
        ]
        body = pb.CommandMessage(
            consumer_id=consumer,
            message_id=pb.MessageIdData(ledgerId=1, entryId=entry),
            redelivery_count=redeliveries,
            ack_set=words_of(unacked),
        )
        link.send_entry(body, build_batch(metadata, singles))

    def deliver_chunk(self, topic: str, entry: int, *, chunk: int, chunks: int) -> None:
        """Part of a message "0.1." and so on."""
        link, consumer = self.consumers[topic]
        metadata = pb.MessageMetadata(
            producer_name="p",
            sequence_id=0,
            publish_time=1,
            uuid="p-0",
            chunk_id=chunk,
            num_chunks_from_msg=chunks,
        )
        at = pb.MessageIdData(ledgerId=1, entryId=entry)
        body = pb.CommandMessage(consumer_id=consumer, message_id=at)
        link.send_entry(body, build_message(metadata, b"%d." % chunk))

    def _register(self, link: Link, request: pb.CommandScalableTopicSubscribe) -> None:
        self.sessions.append((link, request))
        link.send(
            C.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
            "scalableTopicSubscribeResponse",
            request_id=request.request_id,
            assignment=self._assignment(*self.assigned),
        )
        if self.assigned_next is not None:
            self.assign(*self.assigned_next)

    def assign(self, epoch: int, segments: list[int]) -> None:
        link, request = self.sessions[-1]
        link.send(
            C.SCALABLE_TOPIC_ASSIGNMENT_UPDATE,
            "scalableTopicAssignmentUpdate",
            consumer_id=request.consumer_id,
            assignment=self._assignment(epoch, segments),
        )

    def _assignment(self, epoch: int, segments: list[int]) -> pb.ScalableConsumerAssignment:
        assignment = pb.ScalableConsumerAssignment(layout_epoch=epoch)
        for number in segments:
            shared = ranges(even(count)) if (count := self.buckets.get(number, 0)) else ()
            assignment.segments.add(
                segment_id=number,
                hash_start=0,
                hash_end=0xFFFF,
                segment_topic=segment_topic(number),
                bucket_ranges=[pb.IntRange(start=one.start, end=one.end) for one in shared],
            )
        return assignment

    def _ack(self, link: Link, request: pb.CommandAck) -> None:
        topic = self._consumer_name(link, request.consumer_id)
        is_cumulative = request.ack_type == pb.CommandAck.Cumulative
        self.acknowledged(request)
        for at in request.message_id:
            if at.ack_set:
                self.parts.append((at.entryId, bits_of(at.ack_set)))
            else:
                self.acks.append((topic, at.ledgerId, at.entryId, is_cumulative))
        if request.HasField("request_id") and self.answers_acks:
            link.send(
                C.ACK_RESPONSE, "ackResponse", consumer_id=request.consumer_id, request_id=request.request_id
            )

    def _consumer_name(self, link: Link, consumer: int) -> str:
        return next((name for name, found in self.consumers.items() if found == (link, consumer)), "session")

    def _close(self, link: Link, kind: int, command: pb.BaseCommand) -> None:
        if kind == C.CLOSE_PRODUCER:
            self.closed.append(("producer", command.close_producer.producer_id))
            number = command.close_producer.request_id
        else:
            name = self._consumer_name(link, command.close_consumer.consumer_id)
            self._attached.pop((link, command.close_consumer.consumer_id), None)
            self.closed.append((name, command.close_consumer.consumer_id))
            number = command.close_consumer.request_id
            if not self.answers_closes:
                self._unanswered.append((link, number))
                return
        link.send(C.SUCCESS, "success", request_id=number)

    def answer_closes(self) -> None:
        self.answers_closes = True
        for link, number in self._unanswered:
            link.send(C.SUCCESS, "success", request_id=number)
        self._unanswered.clear()


def segment_topic(number: int) -> str:
    """What assignments call a segment; only its number matters to the tests."""
    return f"segment://public/default/t/0000-ffff-{number}"
