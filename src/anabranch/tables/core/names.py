"""Where a topic's table lies, and the names of its files. Pure.

    <tables URL>/<tenant>/<namespace>/<topic>/<topic id>/day=2026-11-19/hot-0-00000000000000000007-7-7-1f3a….parquet

A file's name says what it is, in order: its kind; the number of its run, which a hole in the topic's data raises; the
one version of the table that may name it; the first and the last version whose new rows it has; and a random part. So
a file can be told from rubbish without a clock: if the version in its name exists and did not add it, no version ever
will.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal
from urllib.parse import quote, unquote

from anabranch.errors import AnabranchError

Kind = Literal["hot", "hour", "days"]
"""Written with its rows' commit; merged once an hour; merged once its day is over."""

NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
_DOMAIN: Final = re.compile(r"(topic|persistent)://([^/]+)/([^/]+)/(.+)")
_FILE: Final = re.compile(
    r"day=([^/]+)/(hot|hour|days)-([0-9]+)-([0-9]{20})-([0-9]+)-([0-9]+)-([0-9a-z]+)\.parquet"
)


class NoTable(AnabranchError):
    """A topic has no table, or there is none at a place."""


def table_path(topic: str, topic_id: str) -> str:
    """Where the table of that topic lies below the URL of all tables. Raises NoTable."""
    found = _DOMAIN.fullmatch(topic)
    if found is None:
        raise NoTable(f"{topic} is not a persistent or scalable topic, and only these have tables")
    domain, *parts = found.groups()
    # A classic topic and a scalable one may have the same name.
    folder = "" if domain == "topic" else "classic/"
    return folder + "/".join(quote(part, safe="") for part in (*parts, topic_id or "no-id"))


def table_url(base: str, topic: str, topic_id: str) -> str:
    return f"{base.rstrip('/')}/{table_path(topic, topic_id)}"


def day_name(day: date | None) -> str:
    return NO_DAY if day is None else day.isoformat()


@dataclass(frozen=True, slots=True)
class FileName:
    """What the path of a file says of it, relative to its table."""

    day: date | None
    kind: Kind
    run: int  # Files of different runs have a hole between them.
    version: int  # The version that adds the file.
    first: int  # The versions whose rows it has.
    last: int
    chance: str  # So that two writers of one version never share a name.

    @property
    def path(self) -> str:
        return (
            f"day={day_name(self.day)}/{self.kind}-{self.run}-{self.version:020}-{self.first}-{self.last}-"
            f"{self.chance}.parquet"
        )

    @staticmethod
    def parse(path: str) -> FileName | None:
        """What the path says; None if no table writer named it."""
        found = _FILE.fullmatch(unquote(path))
        if found is None:
            return None
        day, kind, run, version, first, last, chance = found.groups()
        try:
            when = None if day == NO_DAY else date.fromisoformat(day)
        except ValueError:
            return None
        return FileName(when, _KINDS[kind], int(run), int(version), int(first), int(last), chance)


_KINDS: Final[dict[str, Kind]] = {"hot": "hot", "hour": "hour", "days": "days"}
