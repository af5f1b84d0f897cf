"""What a caller of `Client.table` may ask for, checked before anything is opened. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from anabranch.client.errors import BadArgument
from anabranch.model.cut import Cut

TablePart = Literal["all", "history", "tail"]
# A version of the table, the version that was newest at a time, or a checkpoint of the topic.
AsOf = int | datetime | bytes
_PARTS: Final = get_args(TablePart)


@dataclass(frozen=True, slots=True)
class TableAsked:
    part: TablePart = "all"
    version: int | None = None
    at: datetime | None = None
    until: Cut | None = None
    url: str | None = None  # None: a broker says where the table is.
    storage_options: Mapping[str, str] = field(default_factory=dict)
    may_be_missing: bool = False  # Whether a table that is not there yet is no mistake.

    @property
    def needs_log(self) -> bool:
        """Whether the topic itself is read; else its table alone is."""
        return self.part != "history" and self.version is None and self.at is None


def asked(
    part: TablePart, as_of: AsOf | None, table_url: str | None, storage_options: Mapping[str, str] | None
) -> TableAsked:
    """Raises BadArgument, or BadCheckpoint, for what cannot be meant."""
    if part not in _PARTS:
        raise BadArgument(f"part={part!r}: choose one of {', '.join(_PARTS)}")
    if table_url is not None and not (isinstance(table_url, str) and table_url.strip()):
        raise BadArgument(f"table_url={table_url!r}: give a folder, or a URL such as s3://lake/orders")
    version = at = until = None
    match as_of:
        case None:
            pass
        case bool():
            raise _bad(as_of)
        case int() if as_of >= 0:
            version = as_of
        case datetime():
            if as_of.tzinfo is None:
                raise BadArgument(
                    f"as_of={as_of!r} has no time zone: give datetime(..., tzinfo=UTC), for instance"
                )
            at = as_of
        case bytes() | bytearray() | memoryview():
            until = Cut.decode(bytes(as_of))
        case _:
            raise _bad(as_of)
    if part == "tail" and (version is not None or at is not None):
        raise BadArgument(f"as_of={as_of!r} is a version of the table, which has no tail: leave part out")
    return TableAsked(part, version, at, until, table_url, dict(storage_options or {}))


def _bad(as_of: object) -> BadArgument:
    return BadArgument(
        f"as_of={as_of!r}: give a version of the table, a datetime, or the bytes of a checkpoint"
    )
