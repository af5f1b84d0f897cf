"""The events of the bundle state channel as messages of its topic, and back.

The key of a message is the bundle, its value the change as JSON, as in PIP-192. A tombstone has an empty value, which
removes the key from a table view; the change is in a property then. Marks have no key, which table views ignore. The
parts of a snapshot are changes with a property that names the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from anabranch.balance.core.channel import (
    ChannelEvent,
    SnapshotBegan,
    SnapshotEnded,
    SnapshotPart,
    TermBegan,
)
from anabranch.balance.core.codec import BadChange, decode_change, encode_change
from anabranch.balance.core.states import BundleChange
from anabranch.errors import PeerError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import build_batch, messages
from anabranch.wire.frames import Buffer

_MARK: Final = "mark"
_TERM: Final = "term"
_SNAPSHOT: Final = "snapshot"
_PARTS: Final = "parts"
_CHANGE: Final = "change"
_TERM_BEGAN: Final = "term-began"
_SNAPSHOT_BEGAN: Final = "snapshot-began"
_SNAPSHOT_ENDED: Final = "snapshot-ended"


def encode_events(events: Sequence[ChannelEvent], producer: str, sequence_id: int, now_ms: int) -> bytes:
    """One entry with these events."""
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=now_ms)
    return build_batch(metadata, (_message(event) for event in events))


def decode_events(entry: Buffer) -> list[ChannelEvent | BadChange]:
    """The events of an entry, or what is wrong with those that cannot be read."""
    try:
        return [_event(single, bytes(value)) for single, value in messages(entry)]
    except (PeerError, ValueError) as error:
        return [BadChange(f"an entry of the channel cannot be read: {error}")]


def _message(event: ChannelEvent) -> tuple[pb.SingleMessageMetadata, bytes]:
    match event:
        case TermBegan(term):
            return _mark(_TERM_BEGAN, {_TERM: str(term)}), b""
        case SnapshotBegan(id, term):
            return _mark(_SNAPSHOT_BEGAN, {_SNAPSHOT: id, _TERM: str(term)}), b""
        case SnapshotEnded(id, parts):
            return _mark(_SNAPSHOT_ENDED, {_SNAPSHOT: id, _PARTS: str(parts)}), b""
        case SnapshotPart(id, change):
            return _single({_SNAPSHOT: id}, str(change.bundle)), encode_change(change)
        case BundleChange(bundle, state=None):
            return _single({_CHANGE: encode_change(event).decode()}, str(bundle)), b""
        case BundleChange(bundle):
            return _single({}, str(bundle)), encode_change(event)


def _mark(mark: str, properties: dict[str, str]) -> pb.SingleMessageMetadata:
    return _single({_MARK: mark, **properties})


def _single(properties: dict[str, str], key: str | None = None) -> pb.SingleMessageMetadata:
    pairs = [pb.KeyValue(key=name, value=value) for name, value in properties.items()]
    return pb.SingleMessageMetadata(payload_size=0, partition_key=key, properties=pairs)


def _event(single: pb.SingleMessageMetadata, value: bytes) -> ChannelEvent | BadChange:
    told = {pair.key: pair.value for pair in single.properties}
    try:
        match told.get(_MARK):
            case None:
                change = decode_change(single.partition_key, value or told[_CHANGE].encode())
                return SnapshotPart(told[_SNAPSHOT], change) if _SNAPSHOT in told else change
            case "term-began":
                return TermBegan(int(told[_TERM]))
            case "snapshot-began":
                return SnapshotBegan(told[_SNAPSHOT], int(told[_TERM]))
            case "snapshot-ended":
                return SnapshotEnded(told[_SNAPSHOT], int(told[_PARTS]))
            case unknown:
                return BadChange(f"the mark {unknown!r} is unknown")
    except BadChange as error:
        return error
    except (KeyError, ValueError) as error:
        return BadChange(f"a message of the channel cannot be read: {error!r}")
