"""The input of a task: which messages to read, and how. Pure, light to import and to pickle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anabranch.client.errors import DataLost
from anabranch.client.security import NOBODY, Security
from anabranch.model.cut import BEGINNING, MessagePosition
from anabranch.model.resuming import Gap
from anabranch.model.segments import HashRange
from anabranch.model.wanted import Wanted
from anabranch.spark.plan.plan import SegmentSlice
from anabranch.spark.plan.ranges import ANY, Ranges
from anabranch.wire.sizes import UNPACKED_BYTES_MAX

# From files where that is possible; from files or not at all; through brokers.
ReadMode = Literal["auto", "direct", "broker"]
# How objects are read: by URLs that the broker has signed, or with the credentials of the reader itself.
ObjectAccess = Literal["signed", "own"]


@dataclass(frozen=True, slots=True)
class Task:
    """All that is needed to read one slice."""

    service_url: str
    topic: str  # The name that users give.
    segment_topic: str
    range: HashRange
    slice: SegmentSlice
    fail_on_data_loss: bool = True
    timeout_s: float = 60.0
    read_mode: ReadMode = "auto"
    # The address for admin requests; "" if no broker has announced it: then nothing can be read directly.
    admin_url: str = ""
    security: Security = NOBODY
    # The names of the rows' columns; None for all columns.
    columns: tuple[str, ...] | None = None
    # Whether there is one more column: the version of the topic's schema that a row was written with.
    versions: bool = False
    # Which of its rows are wanted.
    ranges: Ranges = ANY
    # Names of keys, and the paths of their private halves.
    decryption_keys: tuple[tuple[str, str], ...] = ()
    # The id of the topic when the batch was planned: a later topic of its name is not read. "" if it is unknown.
    topic_id: str = ""
    # The most bytes that a message, or a batch of messages, may unpack to.
    message_bytes_max: int = UNPACKED_BYTES_MAX
    object_access: ObjectAccess = "signed"

    @property
    def wanted(self) -> Wanted | None:
        """Which messages of the slice's entries are its own; None for all."""
        hashes = self.slice.hashes
        return None if hashes is None else Wanted.all_of(hashes)

    def loss(self, position: MessagePosition | None) -> DataLost:
        """The error that messages from there on are gone."""
        at = position or self.slice.start or BEGINNING
        gaps = [Gap(self.slice.segment, self.range, at)]
        text = f"{DataLost.of(self.topic, gaps)}. Or, to go on without them, set failOnDataLoss=false"
        return DataLost(text, gaps)


# What one of Spark's tasks reads, one slice after the other.
Tasks = tuple[Task, ...]
