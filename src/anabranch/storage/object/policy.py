"""The bounds within which the log in an object store works: what it may cost, keep in memory and wait for."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.storage.object.core.choice import RewritePolicy
from anabranch.storage.object.core.numbers import WINDOW


@dataclass(frozen=True, slots=True)
class ObjectLogPolicy:
    # A commit is put when it is that large, whatever the budget says.
    commit_bytes_max: int = 4 << 20
    # Creations of commit objects a second, and how many a quiet log may make at once. 0: no bound.
    puts_per_second: float = 10.0
    puts_burst: int = 20
    window: int = WINDOW
    # A creation is asked for twice when it takes longer than nearly all did, and longer than this.
    hedge_seconds: float = 0.02
    # How long to wait before a request that failed is made again, at first and at most.
    retry_seconds: float = 0.05
    retry_seconds_max: float = 1.0
    # After how much a checkpoint is written.
    checkpoint_bytes: int = 64 << 20
    checkpoint_seconds: float = 60.0
    # Every so many checkpoints, one has all ledgers; those between have what changed.
    full_checkpoint_every: int = 8
    # How often a log that writes nothing looks for fences: a request each time.
    look_seconds: float = 30.0
    # How long taking ledgers may take, and how long the end of a log waits for the store.
    take_seconds: float = 60.0
    close_seconds: float = 10.0
    # How often unneeded objects are looked for, and how long they are kept: readers may be on their way.
    reclaim_seconds: float = 600.0
    delete_delay_seconds: float = 1800.0
    # What is rewritten, and how many bytes of objects are read for that in a second; 0: nothing is rewritten.
    rewrite: RewritePolicy = RewritePolicy()  # noqa: RUF009 - a frozen value
    rewrite_bytes_per_second: float = 16 << 20
    # A log with more runs than this has no maps, and is not rewritten.
    map_rows_max: int = 2_000_000
    # After so many checkpoints a map has what they tell, and they are deleted.
    map_states: int = 64
    # How long a log must be without a registered writer before others look after it, and how often the records that it
    # names are read again.
    dead_seconds: float = 3600.0
    ask_seconds: float = 6 * 3600.0
    # How long a ledger must be out of its record to be dead: a change may be on its way that names it.
    grace_seconds: float = 10.0
    # Recently confirmed entries, and blocks of objects that were read.
    cache_bytes: int = 64 << 20
    block_cache_bytes: int = 128 << 20
    block_bytes: int = 1 << 20
    # How many blocks are read ahead for a reader that reads on.
    ahead_blocks_max: int = 8

    def retry_after(self, failures: int) -> float:
        """Seconds until the next attempt, after so many failures. The first one is repeated at once: an answer that was
        lost is found by asking again."""
        if failures <= 1:
            return 0.0
        return float(min(self.retry_seconds * 2 ** min(failures - 2, 10), self.retry_seconds_max))
