"""The requests that brokers send each other, and their answers.

Bodies are MessagePack maps. A field is never renamed or given another meaning; new fields have defaults, and unknown
ones are ignored, so that brokers of two releases understand each other. What cannot be done that way becomes a new
method: a broker that does not know it says so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Generic, TypeVar

import msgspec

from anabranch.controller.ports import CursorStatus, SegmentStatus
from anabranch.model.key_routing import KeysSeen
from anabranch.model.scalable import InitialPosition
from anabranch.model.segments import Segment
from anabranch.wire.frames import FRAME_OVERHEAD_BYTES, PEER_FRAME_BYTES_MAX

R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
assert BODY_BYTES_MAX + FRAME_OVERHEAD_BYTES <= PEER_FRAME_BYTES_MAX
ANSWER_MAX_S: Final = 8.0


class PeerMethod(Generic[R, A]):
    """One kind of request, and the kind of its answer."""

    def __init__(
        self,
        name: str,
        request: type[R],
        answer: type[A],
        *,
        answer_max_s: float = ANSWER_MAX_S,
        is_for_users: bool = False,
    ) -> None:
        """`is_for_users`: how many of these are asked, and how large their answers are, is up to users."""
        self.name = name
        self.answer_max_s = answer_max_s
        self.is_for_users = is_for_users
        self.bytes_max = BODY_BYTES_MAX
        self._request = msgspec.msgpack.Decoder(request)
        self._answer = msgspec.msgpack.Decoder(answer)

    @staticmethod
    def encode(value: msgspec.Struct) -> bytes:
        return msgspec.msgpack.encode(value)

    def read_request(self, body: bytes) -> R:
        """Raises one of `UNREADABLE`."""
        return self._request.decode(body)

    def read_answer(self, body: bytes) -> A:
        """Raises one of `UNREADABLE`."""
        return self._answer.decode(body)


class Nothing(msgspec.Struct, frozen=True):
    """A request or an answer without a content."""


class Hello(msgspec.Struct, frozen=True):
    """What a broker says of itself."""

    version: str = ""


# Whether the other broker answers at all, and its release.
HELLO: Final = PeerMethod("hello", Nothing, Hello, answer_max_s=2.0)

# -- segments, at their owner: `controller.ports.Segments`


class SegmentCall(msgspec.Struct, frozen=True):
    """A request about one segment of a scalable topic."""

    topic: str
    segment: Segment


class CreateSegment(SegmentCall, frozen=True):
    subscriptions: list[str] = []


class SubscriptionCall(SegmentCall, frozen=True):
    """A request about one subscription of a segment."""

    subscription: str = ""


class CreateSubscription(SubscriptionCall, frozen=True):
    initial: InitialPosition = InitialPosition.EARLIEST


class SeekSubscription(SubscriptionCall, frozen=True):
    timestamp_ms: int = 0


class ToldStatus(msgspec.Struct, frozen=True):
    """`SegmentStatus`, on its way."""

    is_sealed: bool
    subscriptions: dict[str, CursorStatus] = {}
    finished_readers: frozenset[str] = frozenset()
    producers: int = 0
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    storage_bytes: int = 0
    end: tuple[int, int] | None = None
    keys: KeysSeen = KeysSeen()
    is_hiding: bool = False
    unstamped_entries: int = 0
    unstamped_producer: str = ""

    @classmethod
    def of(cls, status: SegmentStatus) -> ToldStatus:
        return cls(
            status.is_sealed,
            dict(status.subscriptions),
            status.finished_readers,
            status.producers,
            status.msg_rate_in,
            status.msg_throughput_in,
            status.storage_bytes,
            status.end,
            status.keys,
            status.is_hiding,
            status.unstamped_entries,
            status.unstamped_producer,
        )

    def status(self) -> SegmentStatus:
        return SegmentStatus(
            is_sealed=self.is_sealed,
            subscriptions=self.subscriptions,
            finished_readers=self.finished_readers,
            producers=self.producers,
            msg_rate_in=self.msg_rate_in,
            msg_throughput_in=self.msg_throughput_in,
            storage_bytes=self.storage_bytes,
            end=self.end,
            keys=self.keys,
            is_hiding=self.is_hiding,
            unstamped_entries=self.unstamped_entries,
            unstamped_producer=self.unstamped_producer,
        )


# Sealing waits for the log; creating opens a log that another broker may have written, which can take seconds.
SEGMENT_S: Final = 20.0
CREATE_SEGMENT: Final = PeerMethod("segments.create", CreateSegment, Nothing, answer_max_s=SEGMENT_S)
SEAL_SEGMENT: Final = PeerMethod("segments.seal", SegmentCall, Nothing, answer_max_s=SEGMENT_S)
DELETE_SEGMENT: Final = PeerMethod("segments.delete", SegmentCall, Nothing, answer_max_s=SEGMENT_S)
CREATE_SUBSCRIPTION: Final = PeerMethod("segments.create-subscription", CreateSubscription, Nothing)
DELETE_SUBSCRIPTION: Final = PeerMethod("segments.delete-subscription", SubscriptionCall, Nothing)
SEEK_SUBSCRIPTION: Final = PeerMethod("segments.seek", SeekSubscription, Nothing)
SKIP_ALL: Final = PeerMethod("segments.skip-all", SubscriptionCall, Nothing)
SEGMENT_STATUS: Final = PeerMethod("segments.status", SegmentCall, ToldStatus)


# -- scalable topics whose controller and segments are at different brokers


class ReaderCall(msgspec.Struct, frozen=True):
    """A question about one consumer of a segment, to the segment's owner."""

    segment: str
    consumer: str
    subscription: str
    is_of_checkpoint: bool = False
    is_active: bool = True


class ToldReader(msgspec.Struct, frozen=True):
    has_more: bool = False
    is_attached: bool = False
    progress: str = ""


class NoticeKind(StrEnum):
    PROGRESS = "progress"  # A subscription has reached the end of this sealed segment, or moved back.
    ATTACHED = "attached"  # A client has attached that consumer.
    CLOSED = "closed"  # A client has closed that consumer.


class Notice(msgspec.Struct, frozen=True):
    """Something that happened at a segment."""

    kind: str  # Of `NoticeKind`; a broker ignores kinds that it does not know.
    segment: str
    number: int = 0
    consumer: str = ""
    subscription: str = ""
    has_more: bool = False
    # Whether the consumer shares the segment by entry buckets; None from a broker of an older release.
    is_shared: bool | None = None


class Notices(msgspec.Struct, frozen=True):
    """What the broker that leads a topic should know of its segments, in the order in which it happened."""

    topic: str
    notices: list[Notice]


READER_STATE: Final = PeerMethod("sessions.reader", ReaderCall, ToldReader)
CONTROLLER_NOTICES: Final = PeerMethod("sessions.notices", Notices, Nothing)
