"""The columns of a topic's table, as Arrow types. Pure.

A row is a message. A raw table has exactly `RAW`. A decoded table has the fields of the topic's schema behind these:
`value` is null where a message was decoded, and `undecoded` has the bytes of a message that was not. In a raw table
`undecoded` is null, so that both kinds of rows stand in one table, and its mode can change.

`segment`, `ledger`, `entry` and `index` are a message's position; `index` is -1 outside of a batch, as in Spark's
source. `order by segment, ledger, entry, index` is the order of publishing for each key. `key_hash` is the hash, 0 to
65535, that says which segment a key belongs to; it is null without a key. `schema_version` is the version of the
topic's schema that the producer named, -1 for none. Times outside of the years 1 to 9999 are null.

Each column has a field id in the Parquet files, and so have the parts of nested columns. An id is never used again for
another column, so that other formats of tables can be views of the same files.
"""

from __future__ import annotations

from typing import Final, Literal

import pyarrow as pa

Mode = Literal["raw", "decoded"]

# The column that partitions the table: the day of `publish_time` in UTC. It is in the names of folders, not in files.
DAY: Final = "day"
VALUE: Final = "value"
UNDECODED: Final = "undecoded"
# The name of the decoded column where the topic's schema is no record.
DECODED: Final = "decoded"
# Columns of the topic's schema begin with this where their names are taken.
PREFIX: Final = "value_"

ID: Final = b"PARQUET:field_id"
# Ids of decoded columns start here. Those below belong to columns that every table has.
FIRST_DECODED_ID: Final = 1000

_TIME: Final = pa.timestamp("us", "UTC")


def numbered(field: pa.Field, number: int) -> pa.Field:
    """The field with that id."""
    return field.with_metadata({ID: str(number).encode()})


def number_of(field: pa.Field) -> int:
    """The id of a field; 0 if it has none."""
    return int((field.metadata or {}).get(ID, b"0"))


_PROPERTIES: Final = pa.map_(
    numbered(pa.field("key", pa.string(), nullable=False), 4), numbered(pa.field("value", pa.string()), 5)
)
RAW: Final = pa.schema(
    [
        numbered(pa.field(name, kind, nullable=is_nullable), number)
        for name, kind, is_nullable, number in (
            ("key", pa.binary(), True, 1),
            ("value", pa.binary(), True, 2),
            ("properties", _PROPERTIES, True, 3),
            ("topic", pa.string(), True, 6),
            ("segment", pa.int64(), True, 7),
            ("ledger", pa.int64(), True, 8),
            ("entry", pa.int64(), True, 9),
            ("index", pa.int32(), True, 10),
            ("key_hash", pa.int32(), True, 11),
            ("publish_time", _TIME, True, 12),
            ("event_time", _TIME, True, 13),
            ("sequence_id", pa.int64(), True, 14),
            ("schema_version", pa.int64(), True, 15),
            (UNDECODED, pa.binary(), True, 16),
        )
    ]
)
"""The columns of a raw table, in order."""

POSITION: Final = ("segment", "ledger", "entry", "index")
"""The columns that every file is sorted by. A row group has rows of one segment only."""
