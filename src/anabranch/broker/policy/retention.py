"""Which entries of a topic may be trimmed: a decision over figures, and the little reading it needs. It reads no clock.

An entry may be trimmed when every durable subscription has acknowledged it (or there is none) and retention does not
keep it. Retention keeps the newest entries: those younger than its time and within its size; -1 is no bound. With a
retention of zero, consumed entries still linger for a while, so that a seek back or a reader that comes a moment later
finds them; when too many bytes linger, or the disk is low, they are trimmed. Entries that only the broker's default
keeps are trimmed when the disk is low, too, and the oldest of them when the log takes too much (`disk_share.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.model.position import Position
from anabranch.storage.port import LogDamagedError
from anabranch.storage.topic.topic_log import TopicLog

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Keep:
    """Which consumed entries are kept. None is no bound; an entry must be within both bounds."""

    seconds: float | None
    bytes: int | None


NOTHING = Keep(0, 0)


@dataclass(frozen=True, slots=True)
class TrimPace:
    """How much must come together before a log is trimmed. Each trim changes the topic's record.

    A record that every broker follows is not changed every few seconds for each active topic: where several brokers
    share the metadata, a trim waits until it gives up a whole ledger, this many bytes, or has waited for this long.
    """

    bytes: int
    seconds: float

    def is_due(self, trimmed_bytes: int, waited_s: float, *, gives_up_ledger: bool) -> bool:
        return gives_up_ledger or trimmed_bytes >= self.bytes or waited_s >= self.seconds


AT_ONCE = TrimPace(0, 0)


def keep_of(minutes: int, megabytes: int, linger: Keep) -> Keep:
    """Pulsar's retention policy (-1 for ever, 0 nothing) as bounds; zero means the lingering time."""
    if minutes == 0 or megabytes == 0:
        return linger
    return Keep(
        None if minutes < 0 else minutes * 60,
        None if megabytes < 0 else megabytes * MEGABYTE,
    )


class Oldest:
    """When the first kept entry of a log was published. Read once for each entry that becomes the first.

    The time is by its producer's clock, which may be wrong in either direction: so this only saves a search, and orders
    topics.
    """

    def __init__(self) -> None:
        self._of: Position | None = None
        self._ms = 0

    async def ms(self, log: TopicLog) -> int | None:
        """The publish time in milliseconds; None for an empty log, or if it is unknown."""
        first = log.kept_first
        if first >= log.kept_end:
            return None
        if first != self._of:
            try:
                found = await log.published_at(first)
            except LogDamagedError:
                return None  # As if it were unknown: a search may find a way around the damage.
            if found is None:
                return None
            self._of, self._ms = first, found
        return self._ms


async def trim_target(
    log: TopicLog, consumed: Position, keep: Keep, now_ms: int, oldest: Oldest | None = None
) -> Position:
    """The position below which everything may be trimmed; `log.first` or less if nothing may.

    With `oldest`, a log whose first entry is not old enough is not searched: most logs, most of the time.
    """
    consumed = min(log.normalise(consumed), log.end)
    if consumed <= log.kept_first or (keep.seconds is None and keep.bytes is None):
        return log.first
    if keep.seconds == 0 or keep.bytes == 0:
        return consumed
    by_age = by_size = log.first
    if keep.bytes is not None and log.size_bytes > keep.bytes:
        share = 1 - keep.bytes / log.size_bytes
        by_size = log.position_at(int(log.entries * share))
    if keep.seconds is not None:
        before_ms = int(now_ms - keep.seconds * 1000)
        first_ms = await oldest.ms(log) if oldest is not None else None
        # A publish time in the future tells nothing about the entries behind it.
        if first_ms is None or not before_ms <= first_ms <= now_ms:
            by_age = await log.find_by_publish_time(before_ms)
    return min(consumed, max(by_age, by_size))
