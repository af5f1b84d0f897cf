"""Parts of the load that find faults which are not repaired yet: each is switched on by its line here."""

from __future__ import annotations

from typing import Final

# F1: the wheel's batches by key on a topic with deduplication.
KEY_BATCHES_ONCE: Final = True
# C5: chunked messages with deduplication, by producers that come back, and across splits.
CHUNKS_ONCE: Final = True
# C10: hidden writes on topics that are deleted when nobody uses them.
BRIEF_TOPICS: Final = True
# C12, C13: connections that break while others wait for the same subscription, and readers that are refused.
WAITING: Final = True
