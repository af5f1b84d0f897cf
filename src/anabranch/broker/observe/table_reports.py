"""What the table writer last reported of each table, for metrics and for people who ask. In memory: a report is as old
as its writer is silent, and an old one says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from anabranch.broker.observe.metrics_page import Page, escaped

SILENT_MAX_MS: Final = 180_000


class TableReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One table, as its writer knows it. A lag of -1 means that the writer has not caught up since it started."""

    topic: str
    url: str = ""
    mode: str = ""
    version: int = -1
    rows: int = 0
    bytes: int = 0
    files: int = 0
    undecoded: int = 0  # Since the writer started.
    lag_seconds: float = -1.0
    error: str = ""


class TableReports:
    def __init__(self) -> None:
        self._known: dict[str, tuple[int, TableReport]] = {}

    def heard(self, reports: Iterable[TableReport], now_ms: int) -> None:
        self._known = {name: one for name, one in self._known.items() if now_ms - one[0] < SILENT_MAX_MS}
        self._known |= {report.topic: (now_ms, report) for report in reports}

    def of(self, now_ms: int) -> dict[str, TableReport]:
        """The reports that are not too old, by topic."""
        return {
            name: report for name, (at_ms, report) in self._known.items() if now_ms - at_ms < SILENT_MAX_MS
        }


def add_tables(page: Page, cluster: str, reports: Iterable[TableReport]) -> None:
    """The lines of tables whose writer reports to this broker."""
    for report in reports:
        labels = f'{cluster},topic="{escaped(report.topic)}"'
        page.add_all(
            labels,
            {
                "anabranch_table_lag_seconds": report.lag_seconds,
                "anabranch_table_files": report.files,
                "anabranch_table_bytes": report.bytes,
                "anabranch_table_rows": report.rows,
                "anabranch_table_version": report.version,
                "anabranch_table_undecoded_total": report.undecoded,
                "anabranch_table_failing": int(bool(report.error)),
            },
        )
