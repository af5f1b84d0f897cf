"""The kinds of trouble that a run may have beside its main load. Each seed draws some of them."""

from __future__ import annotations

import random
from enum import Enum
from typing import Final


class TroubleKind(Enum):
    CHUNKS = "messages in chunks, with connections cut and segments split between them"
    KEY_BATCHES = "a batch of each key with interleaved ids, on a classic topic with deduplication"
    BRIEF_TOPICS = "hidden writes of a slow driver on topics that are deleted when they are not used"
    WAITING = "connections that break while others wait for the outcome of the same request"
    GROUP = "members of one client that leave a group and come back under their names"
    LEAKS = "everybody leaves in the end, and nothing of anybody may stay attached"
    LOG_ENDS = "a broker's log ends under load"
    SPOILT = "a topic whose state cannot be encoded, and subscriptions that raise when they are told"
    BEHIND = "brokers read metadata from servers that are up to half a second behind"
    MOVES = "an operator moves bundles of topics from broker to broker, and splits them"
    BALANCER = (
        "owners by the bundle state channel, with moves, unloads and splits, and leaders that are replaced"
    )
    OBJECTS = "the log is in an object store, whose answers are late, lost or wrong"


# The percentage of runs in which a kind takes part.
SHARE_PERCENT: Final = 40


def drawn(seed: int) -> frozenset[TroubleKind]:
    """The kinds that a run with this seed has."""
    chance = random.Random(f"{seed} kinds")
    return frozenset(kind for kind in TroubleKind if chance.uniform(0, 100) < SHARE_PERCENT)
