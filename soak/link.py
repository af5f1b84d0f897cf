"""One plain socket that speaks the binary protocol, for what Pulsar's own client hides.

It sees receipts, ack responses, closes and connection ends as they come, can leave things unread, and sends any bytes.
Frames are cut here by hand; only the generated command classes are shared with the broker.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, encode_send

Kind = pb.BaseCommand
_RECEIVE_BYTES = 1 << 20
REDIRECTS_MAX = 10


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{pb.ServerError.Name(code)}: {message}")
        self.code = code


class Frame(NamedTuple):
    """A command, and the entry's bytes if it carries one."""

    command: pb.BaseCommand
    payload: bytes


class Link:
    def __init__(
        self, port: int, *, timeout: float = 30.0, greet: bool = True, receive_bytes: int = 0
    ) -> None:
        self.sock = socket.socket()
        if receive_bytes:
            # Before connecting, so that the window the broker sees is small from the start.
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self.frames: deque[Frame] = deque()
        self._buffer = bytearray()
        self._requests = 0
        # Not `select`: it knows a thousand descriptors only.
        self._poll = select.poll()
        self._poll.register(self.sock, select.POLLIN)
        try:
            self.sock.connect(("127.0.0.1", port))
            if greet:
                self.greet()
        except BaseException:
            self.sock.close()
            raise

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- frames

    def send(self, command: pb.BaseCommand) -> None:
        self.sock.sendall(encode(command))

    def receive(self, seconds: float | None = None) -> Frame | None:
        """The next frame; None if none came within `seconds`. Pings are answered on the way."""
        deadline = time.monotonic() + (self.timeout if seconds is None else seconds)
        while True:
            while not self.frames:
                left = deadline - time.monotonic()
                if not self._poll.poll(max(left, 0) * 1000):
                    if seconds is None:
                        raise TimeoutError(f"the broker said nothing for {self.timeout:.0f} s")
                    return None
                self._read()
            frame = self.frames.popleft()
            if frame.command.type != Kind.PING:
                return frame
            self.send(pb.BaseCommand(type=Kind.PONG, pong=pb.CommandPong()))

    def _read(self) -> None:
        data = self.sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._buffer += data
        at = 0
        while at + 4 <= len(self._buffer):
            end = at + 4 + int.from_bytes(self._buffer[at : at + 4], "big")
            if end > len(self._buffer):
                break
            head = at + 8 + int.from_bytes(self._buffer[at + 4 : at + 8], "big")
            command = pb.BaseCommand.FromString(bytes(self._buffer[at + 8 : head]))
            self.frames.append(Frame(command, bytes(self._buffer[head:end])))
            at = end
        del self._buffer[:at]

    def wait(self, wanted: Callable[[pb.BaseCommand], bool]) -> Frame:
        """The next frame that is wanted; an error answer raises, other frames stay queued in order."""
        kept: list[Frame] = []
        try:
            while True:
                frame = self.receive()
                assert frame is not None
                if wanted(frame.command):
                    return frame
                if frame.command.type == Kind.ERROR:
                    raise Refused(frame.command.error.error, frame.command.error.message)
                kept.append(frame)
        finally:
            self.frames.extendleft(reversed(kept))

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    def ask(self, command: pb.BaseCommand, answer: int) -> Frame:
        self.send(command)
        return self.wait(lambda got: got.type == answer)

    # -- what clients do

    def greet(self) -> None:
        connect = pb.CommandConnect(client_version="soak", protocol_version=21)
        self.ask(pb.BaseCommand(type=Kind.CONNECT, connect=connect), Kind.CONNECTED)

    def producer(
        self, topic: str, producer_id: int = 1, name: str | None = None
    ) -> pb.CommandProducerSuccess:
        request = pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=self.next_request())
        if name is not None:
            request.producer_name = name
            request.user_provided_producer_name = True
        answer = self.ask(pb.BaseCommand(type=Kind.PRODUCER, producer=request), Kind.PRODUCER_SUCCESS)
        return answer.command.producer_success

    def subscribe(
        self,
        topic: str,
        subscription: str,
        consumer_id: int = 1,
        *,
        kind: int = pb.CommandSubscribe.Exclusive,
        durable: bool = True,
        permits: int = 0,
    ) -> None:
        """A consumer that starts, if the subscription is new, at the first message."""
        request = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,  # type: ignore[arg-type]  # An int of SubType by construction.
            consumer_id=consumer_id,
            request_id=self.next_request(),
            initialPosition=pb.CommandSubscribe.Earliest,
            durable=durable,
        )
        if not durable:
            request.start_message_id.ledgerId = request.start_message_id.entryId = (1 << 64) - 1
        self.ask(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=request), Kind.SUCCESS)
        if permits:
            self.flow(permits, consumer_id)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        flow = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
        self.send(pb.BaseCommand(type=Kind.FLOW, flow=flow))

    def ack(
        self,
        ids: list[pb.MessageIdData],
        consumer_id: int = 1,
        *,
        cumulative: bool = False,
        wait: bool = True,
    ) -> int:
        """Acknowledges; with `wait` it returns once the broker has answered that the ack is stored."""
        ack = pb.CommandAck(
            consumer_id=consumer_id,
            ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
            message_id=ids,
            request_id=self.next_request(),
        )
        self.send(pb.BaseCommand(type=Kind.ACK, ack=ack))
        if wait:
            answer = self.wait(
                lambda got: got.type == Kind.ACK_RESPONSE and got.ackResponse.request_id == ack.request_id
            ).command.ackResponse
            if answer.HasField("error"):
                raise Refused(answer.error, answer.message)
        return ack.request_id

    def publish(self, payload: bytes, sequence: int, producer_id: int = 1) -> pb.MessageIdData:
        """Sends one message and waits for its receipt."""
        self.sock.sendall(send_frame([payload], sequence, producer_id))
        return self.wait_receipt()

    def wait_receipt(self) -> pb.MessageIdData:
        frame = self.wait(lambda got: got.type in (Kind.SEND_RECEIPT, Kind.SEND_ERROR, Kind.CLOSE_PRODUCER))
        if frame.command.type == Kind.SEND_ERROR:
            raise Refused(frame.command.send_error.error, frame.command.send_error.message)
        if frame.command.type == Kind.CLOSE_PRODUCER:
            raise ProducerClosed("the broker closed the producer")
        return frame.command.send_receipt.message_id

    def messages(self, count: int) -> list[Frame]:
        return [self.wait(lambda got: got.type == Kind.MESSAGE) for _ in range(count)]


def owner_port(port: int, topic: str, *, timeout: float = 30.0) -> int:
    """The port of the broker that owns the topic, as the one at `port` answers; a broker alone names itself."""
    is_sure = False
    for _ in range(REDIRECTS_MAX):
        with Link(port, timeout=timeout) as link:
            request = pb.CommandLookupTopic(
                topic=topic, request_id=link.next_request(), authoritative=is_sure
            )
            command = pb.BaseCommand(type=Kind.LOOKUP, lookupTopic=request)
            answer = link.ask(command, Kind.LOOKUP_RESPONSE).command.lookupTopicResponse
        if answer.response == pb.CommandLookupTopicResponse.Failed:
            raise Refused(answer.error, answer.message)
        port = int(answer.brokerServiceUrl.rpartition(":")[2])
        is_sure = answer.authoritative
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            return port
    raise Refused(pb.ServiceNotReady, f"{topic} was redirected {REDIRECTS_MAX} times")


class ProducerClosed(Exception):
    """The broker closed the producer; a client would reconnect and send again what has no receipt."""


def encode(command: pb.BaseCommand) -> bytes:
    body = command.SerializeToString()
    return (len(body) + 4).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def send_frame(payloads: list[bytes], sequence: int, producer_id: int = 1, producer: str = "raw") -> bytes:
    """A SEND of one batch."""
    metadata = pb.MessageMetadata(
        producer_name=producer, sequence_id=sequence, publish_time=int(time.time() * 1000)
    )
    metadata.highest_sequence_id = sequence + len(payloads) - 1
    entry = build_batch(metadata, [(pb.SingleMessageMetadata(), one) for one in payloads])
    return encode_send(
        entry,
        producer_id=producer_id,
        sequence_id=sequence,
        num_messages=len(payloads),
        highest_sequence_id=metadata.highest_sequence_id,
    )
