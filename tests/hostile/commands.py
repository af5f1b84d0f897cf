"""Commands as a well-behaved client would send them, which edits then spoil, and the frames around them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from anabranch.broker.peers.handshake import METHOD, NONCE_BYTES, PeerGreeting, PeerProof
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.extensions import WRITE, WRITE_ATTEMPT, WRITE_BATCH
from anabranch.wire.frames import FRAME_BYTES_MAX
from hostile.edges import Edit, apply
from hostile.nodes import BYTES, VARINT, Node, Value, described, tree, wire_type

BASE: Final = described(pb.BaseCommand)
TYPES: Final[Mapping[str, int]] = dict(pb.BaseCommand.Type.items())
SCHEMA: Final = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "int"], "default": None}]}
).encode()
# Of what a case makes anew. The states have theirs at 1.
NEW_ID: Final = 7
REQUEST_ID: Final = 100


@dataclass(frozen=True)
class Place:
    """What commands name: where the attack happens, and as whom."""

    topic: str
    namespace: str
    scalable: str
    token: bytes = b""
    ledger: int = 0
    entry: int = 0


def type_of(command: str) -> int:
    """Of a command or of one of its variants, `COMMAND-variant`."""
    return TYPES[command.partition("-")[0]]


def field_of(command: str) -> FieldDescriptor:
    return BASE.fields_by_number[type_of(command)]


def body_of(command: str) -> Descriptor:
    message = field_of(command).message_type
    assert message is not None
    return message


# By the name of the field, in whichever message it is.
_VALUES: Final[Mapping[str, Value]] = {
    "producer_id": 1,
    "consumer_id": 1,
    "request_id": REQUEST_ID,
    "subscription": b"other",
    "consumer_name": b"hostile",
    "producer_name": b"hostile",
    "client_version": b"hostile",
    "server_version": b"hostile",
    "topics_pattern": b"persistent://.*",
    "topics_hash": b"0",
    "messagePermits": 10,
    "schema_data": SCHEMA,
    "name": b"R",
    "key": b"k",
    "value": b"v",
    "watcher_id": 1,
    "watch_id": 1,
    "session_id": 1,
    "publish_time": 1_700_000_000_000,
    "payload_size": 1,
    "start": 0,
    "end": 65_535,
}
# Of some messages only, and fields that are optional but make the command one that does something.
_OF_MESSAGE: Final[Mapping[str, Mapping[str, Value]]] = {
    "CommandProducer": {
        "producer_id": NEW_ID,
        "user_provided_producer_name": 1,
        "producer_name": b"hostile-new",
    },
    "CommandSubscribe": {"consumer_id": NEW_ID, "subType": 1, "initialPosition": 1},
    "CommandAck": {"request_id": REQUEST_ID},
    "CommandConnect": {"protocol_version": 21, "auth_method_name": b"token"},
    "KeyLongValue": {"value": 1},
    "Schema": {"type": 2},
    "CommandScalableTopicSubscribe": {"consumer_id": NEW_ID},
    "CommandSend": {"sequence_id": 1},
}


def plausible(message: Descriptor, place: Place) -> Node:
    """The message with its required fields, as a client that means well would fill them."""
    node = Node()
    own = dict(_OF_MESSAGE.get(message.name, {}))
    own |= {
        "topic": (place.scalable if "Scalable" in message.name else place.topic).encode(),
        "namespace": place.namespace.encode(),
        "ledgerId": place.ledger,
        "entryId": place.entry,
    }
    if message.name == "CommandConnect":
        own["auth_data"] = place.token
    if message.name in ("CommandAck", "CommandSeek", "CommandRedeliverUnacknowledgedMessages"):
        for name in ("message_id", "message_ids"):
            if name in message.fields_by_name:
                own[name] = plausible(described(pb.MessageIdData), place)
    if message.name == "CommandScalableTopicSubscribe":
        own["topic"] = place.scalable.encode()
    for field in message.fields:
        if field.name in own:
            node.put(field.number, wire_type(field), own[field.name])
        elif field.is_required:
            node.put(field.number, wire_type(field), _default(field, place))
    return node


def _default(field: FieldDescriptor, place: Place) -> Value:
    if field.message_type is not None:
        return plausible(field.message_type, place)
    found = _VALUES.get(field.name)
    if found is not None and isinstance(found, bytes) == (wire_type(field) == BYTES):
        return found
    if wire_type(field) == BYTES:
        return b"x"
    return 0 if wire_type(field) == VARINT else bytes(8)


# The same command with other fields set, which leads it to other code.
VARIANTS: Final = (
    *("SUBSCRIBE-reader", "SUBSCRIBE-sticky", "SUBSCRIBE-compacted"),
    *("PRODUCER-exclusive", "PRODUCER-hidden", "PRODUCER-schema"),
    *("ACK-cumulative", "SEEK-time", "CONNECT-peer", "AUTH_RESPONSE-peer"),
)


def _vary(node: Node, message: Descriptor, command: str) -> None:
    def put(name: str, value: Value) -> None:
        field = message.fields_by_name[name]
        node.put(field.number, wire_type(field), value)

    match command:
        case "SUBSCRIBE-reader":
            put("subType", 0)
            put("durable", 0)
            put("start_message_id", tree(pb.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)))
        case "SUBSCRIBE-sticky":
            put("subType", 3)
            put("durable", 0)
            ranges = [pb.IntRange(start=0, end=65_535)]
            put("keySharedMeta", tree(pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=ranges)))
        case "SUBSCRIBE-compacted":
            put("subType", 0)
            put("read_compacted", 1)
        case "PRODUCER-exclusive":
            put("producer_access_mode", pb.ExclusiveWithFencing)
        case "PRODUCER-hidden":
            words = {WRITE: "hostile", WRITE_BATCH: "0", WRITE_ATTEMPT: "0123456789abcdef" * 2}
            number = message.fields_by_name["metadata"].number
            node.items += [
                (number, BYTES, tree(pb.KeyValue(key=key, value=value))) for key, value in words.items()
            ]
        case "PRODUCER-schema":
            put("schema", tree(pb.Schema(name="R", type=pb.Schema.Json, schema_data=SCHEMA)))
        case "CONNECT-peer":
            greeting = PeerGreeting("other:6650", "run", "localhost:6650", bytes(NONCE_BYTES))
            put("auth_method_name", METHOD.encode())
            put("auth_data", msgspec.msgpack.encode(greeting))
        case "AUTH_RESPONSE-peer":
            proof = msgspec.msgpack.encode(PeerProof(bytes(32)))
            put("response", tree(pb.AuthData(auth_method_name=METHOD, auth_data=proof)))
        case "ACK-cumulative":
            put("ack_type", 1)
        case "SEEK-time":
            node.remove(message.fields_by_name["message_id"].number)
            put("message_publish_time", 1)


def frame(command: bytes, entry: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def envelope(command: str, body: bytes) -> bytes:
    """A BaseCommand of that type around the body."""
    number = type_of(command)
    node = Node(
        [(BASE.fields_by_name["type"].number, VARINT, number), (field_of(command).number, BYTES, body)]
    )
    return node.encode()


def spoiled(command: str, edits: tuple[Edit, ...], place: Place) -> bytes:
    """The command's frame with all edits applied, the largest of them last."""
    message = body_of(command)
    node = plausible(message, place)
    _vary(node, message, command)
    for edit in sorted(edits, key=lambda edit: edit.is_large):
        # The frame's limit counts all behind the first size: the second one, the type and the body's tag and length.
        apply(node, message, edit, lambda inner: plausible(inner, place), FRAME_BYTES_MAX - 24)
    return frame(envelope(command, node.encode()))
