"""The kinds of trouble that a run may have beside its main load. Each seed draws some of them."""

from __future__ import annotations

import random
from enum import Enum
from typing import Final

from anabranch.simulation.world.older import Knowledge


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
    # Counts in runs that do not draw the kind before.
    CHANNEL_TOPIC = (
        "the same, with the states of bundles in a topic of the leader instead of the metadata store"
    )
    CROWD = "more stream consumers than segments, which take their time, and segments sealed under producers in doubt"
    OBJECTS = "the log is in an object store, whose answers are late, lost or wrong"
    CHECKPOINTS = "members of a checkpoint group that share segments and die, on a topic of their own"


# The percentage of runs in which a kind takes part.
SHARE_PERCENT: Final = 40


# The budgets of entry buckets that runs have, and how many stream consumers on how many active segments.
BUDGETS: Final = (1, 2, 4, 7)
READERS_MAX: Final = 6
ACTIVE_MAX: Final = (2, 3, 6)


class DrawnCrowd:
    """Who shares what in the run with this seed."""

    def __init__(self, seed: int, kinds: frozenset[TroubleKind]) -> None:
        chance = random.Random(f"{seed} crowd")
        self.budget = chance.choice(BUDGETS)
        self.active_max = chance.choice(ACTIVE_MAX)
        # Consumers of the stream. In a quarter of the runs one or two of them know nothing of buckets.
        self.readers = [Knowledge.ALL] * chance.randint(2, READERS_MAX)
        if chance.random() < 0.25:
            self.readers[: chance.randint(1, 2)] = [Knowledge.NOTHING]
        # In a third of the runs one producer's entries have no range of hashes, or one over several buckets.
        self.producers = [Knowledge.ALL, Knowledge.ALL]
        if chance.random() < 1 / 3:
            self.producers[1] = chance.choice((Knowledge.NOTHING, Knowledge.RANGES))
        # How long at most a consumer takes for a message.
        self.takes_s = 0.0
        if TroubleKind.CROWD in kinds:
            self.budget = chance.choice(BUDGETS[2:])
            self.active_max = 2
            self.readers = self.readers + [Knowledge.ALL] * (READERS_MAX - len(self.readers))
            self.takes_s = chance.choice((0.02, 0.1, 0.3))


BALANCED: Final = frozenset((TroubleKind.BALANCER, TroubleKind.CHANNEL_TOPIC))


def is_balanced(kinds: frozenset[TroubleKind]) -> bool:
    """Whether brokers have the load balancer."""
    return not BALANCED.isdisjoint(kinds)


def has_channel_topic(kinds: frozenset[TroubleKind]) -> bool:
    """Whether the bundle state channel is a topic."""
    return BALANCED & kinds == {TroubleKind.CHANNEL_TOPIC}


def drawn(seed: int) -> frozenset[TroubleKind]:
    """The kinds that a run with this seed has."""
    chance = random.Random(f"{seed} kinds")
    return frozenset(kind for kind in TroubleKind if chance.uniform(0, 100) < SHARE_PERCENT)
