"""What a task is told: which messages to read, and how. Light to import and to pickle."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from anabranch.client.errors import DataLost
from anabranch.client.security import NOBODY, Security
from anabranch.errors import AnabranchError
from anabranch.model.cut import BEGINNING, Position
from anabranch.model.resuming import Gap
from anabranch.model.segments import HashRange
from anabranch.spark.plan import SegmentSlice
from anabranch.spark.ranges import ANY, Ranges
from anabranch.wire.batch import UNPACKED_BYTES_MAX

log = logging.getLogger(__name__)

# From files where that is possible; from files or not at all; through brokers.
ReadMode = Literal["auto", "direct", "broker"]


@dataclass(frozen=True, slots=True)
class Task:
    """All that is needed to read one slice."""

    service_url: str
    topic: str  # As users name it.
    segment_topic: str
    range: HashRange
    slice: SegmentSlice
    fail_on_data_loss: bool = True
    timeout_s: float = 60.0
    read_mode: ReadMode = "auto"
    # Where a broker answers admin requests; "" if none has said so, and nothing can be read directly then.
    admin_url: str = ""
    security: Security = NOBODY
    # Of the rows, by name; None for all there are.
    columns: tuple[str, ...] | None = None
    # Whether there is one more column: the version of the topic's schema that a row was written with.
    versions: bool = False
    # Which of its rows are wanted.
    ranges: Ranges = ANY
    # Names of keys, and where their private halves lie.
    decryption_keys: tuple[tuple[str, str], ...] = ()
    # Of the topic when the batch was planned: another one of its name by now is not read. "" if that is not known.
    topic_id: str = ""
    # What a message, or a batch of them, may unpack to.
    message_bytes_max: int = UNPACKED_BYTES_MAX

    def loss(self, position: Position | None) -> DataLost:
        """That messages from there on are gone."""
        at = position or self.slice.start or BEGINNING
        gaps = [Gap(self.slice.segment, self.range, at)]
        text = f"{DataLost.of(self.topic, gaps)}. Or, to go on without them, set failOnDataLoss=false"
        return DataLost(text, gaps)

    def lost(self, position: Position | None) -> None:
        """Raises, unless the user wants to go on with what there still is."""
        self.failed(self.loss(position))

    def failed(self, error: AnabranchError) -> None:
        """Raises, unless the user wants to go on without what is gone."""
        if self.fail_on_data_loss:
            raise error
        log.warning("%s", error)


# What one of Spark's tasks reads, one slice behind the other.
Tasks = tuple[Task, ...]
