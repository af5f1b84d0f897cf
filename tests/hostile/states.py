"""The states of a connection in which commands are sent, each with the role that may bring it about."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from anabranch.broker.peers.handshake import METHOD, NONCE_BYTES, PeerGreeting
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from anabranch.wire.extensions import WRITE, WRITE_ATTEMPT, WRITE_BATCH
from harness.peer import C
from hostile.commands import SCHEMA, Place
from hostile.link import Link

PRODUCER, CONSUMER, BOTH = "producer", "consumer", "both"
TENANT: Final = "hostile"
# The namespaces under attack: a plain one, one with deduplication, and one whose topics are trimmed and expire.
PLAIN, DEDUP, EXPIRING = f"{TENANT}/plain", f"{TENANT}/dedup", f"{TENANT}/expiring"

_Subscribe = pb.CommandSubscribe


@dataclass
class Opened:
    """What a state has brought about: where commands point to, and bytes that go out together with the command."""

    place: Place
    before: bytes = b""
    producer: str = ""


Opener = Callable[[Link, Place, str], Opened]


@dataclass(frozen=True)
class State:
    """`unique` is in names that must not be in use twice."""

    name: str
    role: str
    open: Opener
    namespace: str = PLAIN
    domain: str = "persistent"
    # Whether messages of others go on reaching their consumers at once while the state lasts.
    is_transparent: bool = True
    is_connected: bool = True
    # Whether others may produce at the same time.
    is_shared: bool = True
    # Whether any broker may be sent its commands, or the owner of the topic only.
    is_anywhere: bool = False
    # Whether a broker that has no others beside it cannot be brought into it.
    needs_several: bool = False

    @property
    def consumes(self) -> bool:
        """Whether it waits for a message that was there before."""
        return self.name.startswith("consuming") or self.name in ("both", "closing")

    @property
    def produces(self) -> bool:
        return self.name.startswith("producing") or self.name in ("both", "closing")


def _raw(link: Link, place: Place, unique: str) -> Opened:
    return Opened(place)


def _idle(link: Link, place: Place, unique: str) -> Opened:
    return Opened(place)


def _linking(link: Link, place: Place, unique: str) -> Opened:
    """Half way through the sign-in of a broker: the other side has proved itself, and waits for the same."""
    host, port = link.socket.getpeername()
    greeting = PeerGreeting(f"{host}:1", "run", f"{host}:{port}", bytes(NONCE_BYTES))
    command = C(type=C.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "hostile", 21
    command.connect.auth_method_name, command.connect.auth_data = METHOD, msgspec.msgpack.encode(greeting)
    link.send(command)
    link.receive_kind(C.AUTH_CHALLENGE)
    return Opened(place)


def _produce(link: Link, place: Place, unique: str, **values: Any) -> str:
    name = f"hostile-{unique}"
    schema = values.pop("schema", None)
    command = C(type=C.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.producer_name = place.topic, 1, name
    request.user_provided_producer_name = True
    request.request_id = link.request_id()
    for key, value in values.items():
        if isinstance(value, list):
            getattr(request, key).extend(value)
        else:
            setattr(request, key, value)
    if schema is not None:
        request.schema.CopyFrom(schema)
    link.send(command)
    link.must(link.answer(request.request_id))
    return name


def producing(**values: Any) -> Opener:
    def opened(link: Link, place: Place, unique: str) -> Opened:
        return Opened(place, producer=_produce(link, place, unique, **values))

    return opened


def _hidden(link: Link, place: Place, unique: str) -> Opened:
    metadata = [
        pb.KeyValue(key=WRITE, value=f"hostile-{unique}"),
        pb.KeyValue(key=WRITE_BATCH, value="0"),
        pb.KeyValue(key=WRITE_ATTEMPT, value=uuid.uuid5(uuid.NAMESPACE_URL, unique).hex),
    ]
    return Opened(place, producer=_produce(link, place, unique, metadata=metadata))


def _subscribe(link: Link, place: Place, unique: str, **values: Any) -> Opened:
    command = C(type=C.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.consumer_id = place.topic, f"attacked-{unique}", 1
    request.subType, request.initialPosition = _Subscribe.Exclusive, _Subscribe.Earliest
    request.request_id = link.request_id()
    for key, value in values.items():
        if hasattr(value, "DESCRIPTOR"):
            getattr(request, key).CopyFrom(value)
        else:
            setattr(request, key, value)
    link.send(command)
    link.must(link.answer(request.request_id))
    link.flow(100)
    if place.topic.startswith("non-persistent"):
        return Opened(place)
    message = link.receive_kind(C.MESSAGE)[0].message.message_id
    return Opened(replace(place, ledger=message.ledgerId, entry=message.entryId))


def consuming(**values: Any) -> Opener:
    def opened(link: Link, place: Place, unique: str) -> Opened:
        return _subscribe(link, place, unique, **values)

    return opened


def _both(link: Link, place: Place, unique: str) -> Opened:
    producer = _produce(link, place, unique)
    opened = _subscribe(link, place, unique, subType=_Subscribe.Shared)
    opened.producer = producer
    return opened


def _pending(link: Link, place: Place, unique: str) -> Opened:
    """Requests of every kind that wait go out together with the command."""
    producer, subscribe = C(type=C.PRODUCER), C(type=C.SUBSCRIBE)
    producer.producer.topic, producer.producer.producer_id, producer.producer.request_id = place.topic, 1, 1
    subscribe.subscribe.topic, subscribe.subscribe.subscription = place.topic, f"attacked-{unique}"
    subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = 1, 2
    subscribe.subscribe.subType = _Subscribe.Exclusive
    lookup, schema = C(type=C.LOOKUP), C(type=C.GET_SCHEMA)
    lookup.lookupTopic.topic, lookup.lookupTopic.request_id = place.topic, 3
    schema.getSchema.topic, schema.getSchema.request_id = place.topic, 4
    return Opened(place, before=b"".join(map(encode_command, (producer, subscribe, lookup, schema))))


def _closing(link: Link, place: Place, unique: str) -> Opened:
    opened = _both(link, place, unique)
    close, leave = C(type=C.CLOSE_PRODUCER), C(type=C.CLOSE_CONSUMER)
    close.close_producer.producer_id, close.close_producer.request_id = 1, 50
    leave.close_consumer.consumer_id, leave.close_consumer.request_id = 1, 51
    opened.before = encode_command(close) + encode_command(leave)
    return opened


def _watching(link: Link, place: Place, unique: str) -> Opened:
    link.must(
        link.ask(
            C.WATCH_TOPIC_LIST,
            "watchTopicList",
            watcher_id=1,
            namespace=place.namespace,
            topics_pattern="persistent://.*",
        )
    )
    layout, names = C(type=C.SCALABLE_TOPIC_LOOKUP), C(type=C.WATCH_SCALABLE_TOPICS)
    layout.scalableTopicLookup.session_id, layout.scalableTopicLookup.topic = 1, place.scalable
    names.watchScalableTopics.watch_id, names.watchScalableTopics.namespace = 1, place.namespace
    link.send(layout)
    link.send(names)
    link.receive_kind(C.SCALABLE_TOPIC_UPDATE)
    link.receive_kind(C.WATCH_SCALABLE_TOPICS_UPDATE)
    link.ask(
        C.SCALABLE_TOPIC_SUBSCRIBE,
        "scalableTopicSubscribe",
        topic=place.scalable,
        subscription=f"attacked-{unique}",
        consumer_name=unique,
        consumer_id=1,
        consumer_type=0,
    )
    return Opened(place)


_JSON = pb.Schema(name="R", type=pb.Schema.Json, schema_data=SCHEMA)
_READER = pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)
_STICKY = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=65_535)])

STATES: Final[Mapping[str, State]] = {
    state.name: state
    for state in (
        State("unknown", PRODUCER, _raw, is_connected=False, is_anywhere=True),
        State("linking", PRODUCER, _linking, is_connected=False, is_anywhere=True, needs_several=True),
        State("connected-to-produce", PRODUCER, _idle, is_anywhere=True),
        State("connected-to-consume", CONSUMER, _idle, is_anywhere=True),
        State("producing", PRODUCER, producing()),
        State("producing-expiring", PRODUCER, producing(), namespace=EXPIRING),
        State("producing-dedup", PRODUCER, producing(), namespace=DEDUP),
        State(
            "producing-exclusive",
            PRODUCER,
            producing(producer_access_mode=pb.Exclusive),
            is_shared=False,
        ),
        State("producing-hidden", PRODUCER, _hidden, is_transparent=False),
        State("producing-non-persistent", PRODUCER, producing(), domain="non-persistent"),
        State("producing-segment", PRODUCER, producing(), domain="segment"),
        State("producing-schema", PRODUCER, producing(schema=_JSON)),
        State("consuming-exclusive", CONSUMER, consuming()),
        State("consuming-failover", CONSUMER, consuming(subType=_Subscribe.Failover)),
        State("consuming-shared", CONSUMER, consuming(subType=_Subscribe.Shared)),
        State("consuming-key-shared", CONSUMER, consuming(subType=_Subscribe.Key_Shared)),
        State("consuming-sticky", CONSUMER, consuming(subType=_Subscribe.Key_Shared, keySharedMeta=_STICKY)),
        State("consuming-reader", CONSUMER, consuming(durable=False, start_message_id=_READER)),
        State("consuming-compacted", CONSUMER, consuming(read_compacted=True)),
        State("consuming-non-persistent", CONSUMER, consuming(), domain="non-persistent"),
        State("consuming-segment", CONSUMER, consuming(), domain="segment"),
        State("both", BOTH, _both),
        State("pending", BOTH, _pending),
        State("closing", BOTH, _closing),
        State("watching", CONSUMER, _watching),
    )
}
