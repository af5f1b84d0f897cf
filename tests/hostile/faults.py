"""Faults that the hostile client has found, and by which cases. Each of these cases runs in `make test`.

`OPEN` are those that are not repaired yet: their cases must still fail, so that a repaired one is taken out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Empty once everything is repaired. The numbers are those of `docs/faults.md`.
OPEN: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class Fault:
    number: str
    # Run by their names, each against a broker of its own while the fault is open.
    examples: tuple[str, ...]
    # Of the sample that runs against one broker, what is left out while the fault is open: parts of cases' names.
    touched: str


FAULTS: Final = (
    Fault(
        "C2",
        ("producing/SEND-batch/sequence_id=-1", "producing-exclusive/PRODUCER-exclusive/topic_epoch=-1"),
        r"sequence_id=(-1|i64)|topic_epoch=(-1|i64)",
    ),
    Fault("C3", ("producing/SEND/num_messages=-1",), r"/SEND[^/]*/.*num_messages="),
    Fault(
        "C6",
        ("producing-dedup/SEND/entry=garbage-metadata", "producing-expiring/SEND/entry=garbage-metadata"),
        r"/SEND[^/]*/.*(entry=|metadata\.|payload=)",
    ),
    Fault("C7", ("producing-segment/SEND-batch/payload=zstd-bomb",), r"payload=zstd-bomb"),
    Fault(
        "C8",
        ("consuming-shared/ACK/message_id.batch_size=i32-max+message_id.ack_set=1",),
        r"/(ACK|SEEK).*(ack_set|batch_size)",
    ),
    Fault("C11", ("producing/SEND/metadata.compacted_batch_indexes=-1",), r"compacted_batch_indexes="),
    Fault(
        "C12",
        ("connected-to-consume/SUBSCRIBE-sticky/keySharedMeta.hashRanges=absent",),
        r"/SUBSCRIBE-(sticky|reader)/",
    ),
    Fault("C15", ("producing/SEND/num_messages=i32-max",), r"/SEND[^/]*/.*num_messages="),
    Fault(
        "C18",
        ("consuming-failover/SUBSCRIBE/subscription_properties.value=largest",),
        r"subscription_properties",
    ),
    Fault("C19", ("producing-segment/SEND/metadata.partition_key=not-utf8",), r"partition_key=not-utf8"),
    # A command may be as large as a frame, and is read and checked in one turn: a second, and 180 MiB.
    Fault("H1", ("connected-to-consume/LOOKUP/properties=largest-many",), r"=largest"),
    # So may the metadata of an entry, which every reader of it, and the upkeep of its topic, reads anew.
    Fault("H3", ("producing/SEND/metadata.properties=largest-empties",), r"metadata\..*=largest"),
    # A version of a schema is taken for a number whatever its length, and the number is put into an error's text.
    Fault("H2", ("connected-to-consume/GET_SCHEMA/schema_version=largest",), r"schema_version=largest"),
    # An acknowledgement that comes before its consumer was encoded again to learn its size: not all can be.
    Fault("H4", ("pending/ACK-cumulative/ack_type=wrong-wire-type",), r"^pending/ACK.*ack_type="),
)


def is_touched(case: str) -> str | None:
    """The open fault that the case runs into, if there is one."""
    return next((one.number for one in FAULTS if one.number in OPEN and re.search(one.touched, case)), None)
