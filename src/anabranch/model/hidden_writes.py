"""Hidden writes: their names, and the record that says which of their attempts become visible to readers. Pure values.

A write is done in batches, and each batch in attempts: tasks that may be tried several times, at several places at
once. What an attempt writes goes to the topics' logs at once, hidden from readers. The record of the batch is decided
once, by compare-and-set, and never changed after that: the winners become visible, everything else of that batch never
does. Until then single attempts may be dropped, and a dropped attempt cannot win.

A record is about topics. Each topic is added before the first attempt may write there. So a role needs the right to
produce to all of them to read or change the record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from anabranch.errors import AnabranchError
from anabranch.model.names import TopicName
from anabranch.model.scalable import scalable_name

WRITE_CHARS_MAX: Final = 200
BATCH_MAX: Final = 2**63 - 1

_ATTEMPT = re.compile(r"[0-9a-f]{32}")


class InvalidWrite(AnabranchError):
    """The text is no valid name of a write, batch or attempt; the message says which rule it breaks."""

    code = 22  # ServerError.NotAllowedError of the wire protocol.


class DroppedWinner(AnabranchError):
    """The batch cannot be decided with these winners: one of them was dropped before."""


class WriteBatch(NamedTuple):
    """The unit of a decision: a write's name and the number of the batch."""

    write: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of write {self.write!r}"

    @staticmethod
    def checked(write: str, batch: str) -> WriteBatch:
        """The batch that the texts name; InvalidWrite if they name none."""
        if not 1 <= len(write) <= WRITE_CHARS_MAX or not write.isprintable():
            raise InvalidWrite(
                f"a write's name has 1 to {WRITE_CHARS_MAX} printable characters, not {write!r}"
            )
        if not (batch.isascii() and batch.isdigit() and len(batch) < 20) or int(batch) > BATCH_MAX:
            raise InvalidWrite(f"a batch is a number from 0 on, not {batch!r}")
        return WriteBatch(write, int(batch))


def checked_attempt(attempt: str) -> str:
    if not _ATTEMPT.fullmatch(attempt):
        raise InvalidWrite(
            f"an attempt is the 32 hexadecimal digits of a UUID in lower case, not {attempt!r}"
        )
    return attempt


def attempt_bits(attempt: str) -> tuple[int, int]:
    """The halves of the attempt's UUID, which its entries' metadata carries as the transaction id."""
    number = int(attempt, 16)
    return number >> 64, number & 0xFFFFFFFFFFFFFFFF


def attempt_of_bits(most: int, least: int) -> str:
    return f"{most:016x}{least:016x}"


def whole_topic(name: TopicName) -> TopicName:
    """The topic that the record is about when attempts write to that topic, partition or segment."""
    return name.base if name.is_classic else scalable_name(name)


class Fate(Enum):
    """What happens to an attempt's entries."""

    OPEN = "open"
    VISIBLE = "visible"
    DROPPED = "dropped"


class Claim(NamedTuple):
    """Names who finishes a write: a run of a job, and `by`, which differs for each thing that the run writes.

    A record keeps the claim of the latest run, and the first claim within one run.
    """

    run: str
    by: str


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """The state of one batch. `winners` is None until the batch is decided."""

    winners: tuple[str, ...] | None = None
    # Where the winners' entries are: these topics are notified of the decision.
    topics: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    # The topics that attempts write to, or were to write to: whole topics, or partitions where a role may write to
    # single partitions only. Records of older releases have none.
    about: tuple[str, ...] = ()
    # What the winners have written, as reported with the decision; None and "" if nothing was reported. A job that is
    # run again compares the two. Brokers do not.
    rows: int | None = None
    digest: str = ""
    claim: Claim | None = None
    # When a producer of the batch was last known to be connected to any topic, give or take a part of the lease, by
    # the clock of the store that holds the record.
    seen_ms: int = 0
    # The winners, or the dropped attempts. Computed once, because each topic of a batch asks the same record.
    _settled: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_decided(self) -> bool:
        return self.winners is not None

    @property
    def settles_something(self) -> bool:
        """Whether the record settles the fate of any attempt."""
        return self.is_decided or bool(self.dropped)

    @property
    def concerns(self) -> tuple[TopicName, ...]:
        """The topics that a role must be allowed to produce to, in order to read or change the record."""
        return tuple(map(TopicName.parse, self.about or self.topics))

    def is_about(self, topic: TopicName) -> bool:
        """Whether that topic, partition or segment is among them."""
        return not {str(topic), str(whole_topic(topic))}.isdisjoint(self.about or self.topics)

    def fates(self, attempts: Iterable[str]) -> dict[str, Fate]:
        if self._settled is None:
            settled = frozenset(self.dropped if self.winners is None else self.winners)
            object.__setattr__(self, "_settled", settled)
        known = self._settled or frozenset()
        among, others = (Fate.DROPPED, Fate.OPEN) if self.winners is None else (Fate.VISIBLE, Fate.DROPPED)
        return {attempt: among if attempt in known else others for attempt in attempts}

    def fate(self, attempt: str) -> Fate:
        return self.fates([attempt])[attempt]

    def bind(self, topics: Iterable[TopicName]) -> WriteRecord:
        """The record after adding these topics; the same object if it has them already or is decided."""
        about = tuple(dict.fromkeys((*self.about, *map(str, topics))))
        return self if self.is_decided or about == self.about else replace(self, about=about)

    def seen(self, now_ms: int) -> WriteRecord:
        """The record after a producer was seen at that time; the same object if it is decided."""
        return self if self.is_decided else replace(self, seen_ms=max(self.seen_ms, now_ms))

    def claimed(self, claim: Claim | None) -> WriteRecord:
        """The decided record after this run has claimed it; the same object if the run has claimed it before.

        A run that finds a claim of its own which it did not make has written two things under one name.
        """
        if claim is None or not self.is_decided or (self.claim is not None and self.claim.run == claim.run):
            return self
        return replace(self, claim=claim)

    def decide(
        self,
        winners: Iterable[str],
        topics: Iterable[str],
        *,
        rows: int | None = None,
        digest: str = "",
        claim: Claim | None = None,
    ) -> WriteRecord:
        """The record after the decision; unchanged if it was decided before. DroppedWinner if a winner was dropped."""
        if self.is_decided:
            return self.claimed(claim)
        chosen = tuple(dict.fromkeys(winners))
        lost = sorted(set(chosen) & set(self.dropped))
        if lost:
            raise DroppedWinner(
                f"attempt {lost[0]} was dropped before: its entries are gone; write the batch again under a new attempt"
            )
        return replace(
            self,
            winners=chosen,
            topics=tuple(dict.fromkeys(topics)),
            rows=rows,
            digest=digest,
            claim=claim,
        )

    def drop(self, attempts: Collection[str]) -> WriteRecord:
        """The record after dropping those attempts; unchanged if it is decided, when winners stay winners and others
        are dropped."""
        if self.is_decided:
            return self
        return replace(self, dropped=tuple(dict.fromkeys((*self.dropped, *attempts))))
