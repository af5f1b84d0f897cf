"""What our own clients and brokers say to each other in fields that Pulsar leaves to applications.

A peer that does not know a word answers as if it had not been said, so each of them works with Pulsar too.
"""

from __future__ import annotations

from typing import Final

# In the metadata of a PRODUCER request: attach nothing, but answer with the last sequence id of that producer name. The
# way to ask a sealed segment, which refuses producers: Pulsar answers TopicTerminatedError.
ASK_SEQUENCE_ID: Final = "anabranch.last-sequence-id"

# In the metadata of a reader's SUBSCRIBE, as `ledger:entry`: the first entry it has not read; anything else for a
# reader of what there is. If that entry or a later one was given up by retention, the broker refuses with an error
# whose text begins with DATA_LOST, and it closes the reader if that happens later. Pulsar skips what is gone. If that
# entry never was there, nor the one before it, the text begins with UNKNOWN_POSITION.
OWED_FROM: Final = "anabranch.owed-from"
DATA_LOST: Final = "anabranch.data-lost"
UNKNOWN_POSITION: Final = "anabranch.unknown-position"

# In the metadata of a reader's SUBSCRIBE: the id of the topic it is to read, of which this may be a segment. If there
# is another one of that name by now, the broker refuses with an error whose text begins with OTHER_TOPIC.
TOPIC_ID: Final = "anabranch.topic-id"
OTHER_TOPIC: Final = "anabranch.other-topic"

# In the metadata of a PRODUCER request, all three: its entries stay hidden from readers until the write is decided. A
# write is a name and a batch's number, an attempt the 32 hexadecimal digits of a UUID, whose halves each entry's
# metadata has as txnid_most_bits and txnid_least_bits. Refusals, of producers and of sends, begin with the words below.
WRITE: Final = "anabranch.write"
WRITE_BATCH: Final = "anabranch.batch"
WRITE_ATTEMPT: Final = "anabranch.attempt"
WRITE_DECIDED: Final = "anabranch.write-decided"
ATTEMPT_DROPPED: Final = "anabranch.attempt-dropped"

# Begins the text of the answer ConsumerBusy when the consumers of a subscription are of another type: Pulsar's words,
# which our broker says too. They alone tell it from an exclusive subscription that somebody holds for a moment.
OTHER_TYPE: Final = "Subscription is of different type"


def position_text(ledger: int, entry: int) -> str:
    return f"{ledger}:{entry}"


def read_position(text: str) -> tuple[int, int] | None:
    """None for what `position_text` would not write."""
    ledger, colon, entry = text.partition(":")
    if not colon or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (ledger, entry)):
        return None
    return int(ledger), int(entry)
