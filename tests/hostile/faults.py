"""Cases by which the hostile client has found faults. Each of them runs in `make test`.

The numbers are those of `docs/faults.md`.
"""

from __future__ import annotations

from typing import Final

FOUND: Final[dict[str, tuple[str, ...]]] = {
    "C2": ("producing/SEND-batch/sequence_id=-1", "producing-exclusive/PRODUCER-exclusive/topic_epoch=-1"),
    "C3": ("producing/SEND/num_messages=-1",),
    "C6": (
        "producing-dedup/SEND/entry=garbage-metadata",
        "producing-expiring/SEND/entry=garbage-metadata",
    ),
    "C7": ("producing-segment/SEND-batch/payload=zstd-bomb",),
    "C8": ("consuming-shared/ACK/message_id.batch_size=i32-max+message_id.ack_set=1",),
    "C11": ("producing/SEND/metadata.compacted_batch_indexes=-1",),
    "C12": ("connected-to-consume/SUBSCRIBE-sticky/keySharedMeta.hashRanges=absent",),
    "C15": ("producing/SEND/num_messages=i32-max",),
    "C18": ("consuming-failover/SUBSCRIBE/subscription_properties.value=largest",),
    "C19": ("producing-segment/SEND/metadata.partition_key=not-utf8",),
    # A command could be as large as a frame, and was read and checked in one turn: a second, and 180 MiB.
    "H1": ("connected-to-consume/LOOKUP/properties=largest-many",),
    # A version of a schema was taken for a number whatever its length, and the number put into an error's text.
    "H2": ("connected-to-consume/GET_SCHEMA/schema_version=largest",),
    # So could the metadata of an entry, which every reader of it, and the upkeep of its topic, reads anew.
    "H3": ("producing/SEND/metadata.properties=largest-empties",),
    # An acknowledgement that comes before its consumer was encoded again to learn its size: not all can be.
    "H4": ("pending/ACK-cumulative/ack_type=wrong-wire-type",),
}
