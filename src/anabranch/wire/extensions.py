"""Extensions that our own clients and brokers exchange in fields that Pulsar leaves to applications.

A peer that does not know an extension ignores it, so each of them works with Pulsar too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from anabranch.model.segments import HashRange

_HASHES: Final = re.compile(r"[0-9a-f]{4}-[0-9a-f]{4}")

# In the metadata of a PRODUCER request: attach no producer, only answer with the last sequence id of that producer
# name. This works with a sealed segment too, which refuses producers (Pulsar answers TopicTerminatedError).
ASK_SEQUENCE_ID: Final = "anabranch.last-sequence-id"

# In the metadata of a reader's SUBSCRIBE, as `ledger:entry`: the first entry that the reader has not read; any other
# value for a reader that accepts losses. If retention has deleted that entry or a later one, the broker refuses with an
# error whose text begins with DATA_LOST, and it closes the reader if that happens later. Pulsar skips deleted entries.
# If neither that entry nor the one before it ever existed, the text begins with UNKNOWN_POSITION.
OWED_FROM: Final = "anabranch.owed-from"
DATA_LOST: Final = "anabranch.data-lost"
UNKNOWN_POSITION: Final = "anabranch.unknown-position"

# In the metadata of a reader's SUBSCRIBE: the id of the topic that it is to read; the SUBSCRIBE may name a segment of
# that topic. If the name belongs to another topic by now, the broker refuses with an error whose text begins with
# OTHER_TOPIC.
TOPIC_ID: Final = "anabranch.topic-id"
OTHER_TOPIC: Final = "anabranch.other-topic"

# In the metadata of a reader's SUBSCRIBE, as `0000-3fff,8000-bfff`: the ranges of bucket hashes (PIP-486) that it is to
# read, rising and apart. Entries whose stamp meets none of them are not sent, but for the last one where several are
# passed over: so the reader learns how far it has come. It must look at the stamps itself: Pulsar sends everything.
WANTED_HASHES: Final = "anabranch.wanted-hashes"

# In the metadata of a PRODUCER request, all three together: the producer's entries stay hidden from readers until the
# write is decided. A write is a name and the number of a batch; an attempt is the 32 hexadecimal digits of a UUID,
# whose halves are txnid_most_bits and txnid_least_bits in each entry's metadata. The texts of refusals, of producers
# and of sends, begin with the words below.
WRITE: Final = "anabranch.write"
WRITE_BATCH: Final = "anabranch.batch"
WRITE_ATTEMPT: Final = "anabranch.attempt"
WRITE_DECIDED: Final = "anabranch.write-decided"
ATTEMPT_DROPPED: Final = "anabranch.attempt-dropped"

# ConsumerBusy begins with this text when the consumers of a subscription are of another type. The words are Pulsar's,
# and our broker uses them too. Only the text distinguishes this case from an exclusive subscription that is in use for
# a moment.
OTHER_TYPE: Final = "Subscription is of different type"


def position_text(ledger: int, entry: int) -> str:
    return f"{ledger}:{entry}"


def read_position(text: str) -> tuple[int, int] | None:
    """The position that `position_text` wrote as `text`; None for any other text."""
    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (ledger, entry)):
        return None
    return int(ledger), int(entry)


def hashes_text(ranges: Iterable[HashRange]) -> str:
    return ",".join(map(str, ranges))


def read_hashes(text: str) -> tuple[HashRange, ...] | None:
    """The ranges that `hashes_text` wrote as `text`; None for any other text."""
    parts = text.split(",")
    if not all(_HASHES.fullmatch(part) for part in parts):
        return None
    found = [(int(part[:4], 16), int(part[5:], 16)) for part in parts]
    if any(start > end for start, end in found) or any(a[1] >= b[0] for a, b in pairwise(found)):
        return None
    return tuple(HashRange(start, end) for start, end in found)
