"""The hidden write that a producer belongs to.

    write = Write("nightly-report", batch=0, attempt=uuid4())
    producer = await client.producer(topic, write=write)

Messages of such a producer are stored in their place, and no consumer reads them until the write is decided: then the
entries of the winning attempts appear, and those of all others never do. `anabranch.client.hidden_writes.records`
decides.

A broker cannot tell a message that is sent again from another message of the same attempt, so a hidden producer that
loses its connection with sends unanswered fails with AttemptInDoubt: send everything again, in another attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from anabranch.client.errors import BadArgument
from anabranch.model.names import TopicName
from anabranch.wire.extensions import WRITE, WRITE_ATTEMPT, WRITE_BATCH

ID_MAX: Final = 200
_HALF: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Write:
    """`id` and `batch` name the write; `attempt` names one attempt to make it, or a part of it."""

    id: str
    batch: int
    attempt: UUID

    def __post_init__(self) -> None:
        check_write(self.id, self.batch)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The write's properties in a PRODUCER request."""
        return ((WRITE, self.id), (WRITE_BATCH, str(self.batch)), (WRITE_ATTEMPT, self.attempt.hex))

    @property
    def halves(self) -> tuple[int, int]:
        """The most and the least significant half of the attempt, which each entry carries."""
        return self.attempt.int >> 64, self.attempt.int & _HALF


def check_write(write: str, batch: int) -> None:
    """Raises BadArgument for a name or number that no broker would accept."""
    if not (1 <= len(write) <= ID_MAX and write.isprintable()):
        raise BadArgument(f"a write is named {write!r}: give 1 to {ID_MAX} printable characters")
    if batch < 0:
        raise BadArgument(f"batch={batch}: give a number from 0 on")


def topic_written(name: str) -> str:
    """The topic that a segment or partition is part of, by the name that it keeps when it becomes a scalable topic."""
    topic = TopicName.parse(name).base
    return f"{topic.namespace}/{topic.local}"
