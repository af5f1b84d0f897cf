"""What a table writer is told: where tables are, how often it commits, how files are merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from anabranch.client.security import NOBODY, Security
from anabranch.tables.core.merging import MergeRules
from anabranch.tables.core.place import TablesPlace

COMMIT_S: Final = 60.0
COMMIT_BYTES: Final = 64 << 20
RETENTION_HOURS: Final = 7 * 24


@dataclass(frozen=True, slots=True)
class WriterSettings:
    service_url: str
    place: TablesPlace
    admin_url: str = ""  # "": the broker says it.
    commit_s: float = COMMIT_S
    commit_bytes: int = COMMIT_BYTES  # Of messages, before compression.
    rules: MergeRules = field(default_factory=MergeRules)
    merge_every_s: float = 300.0  # How often each table is looked at for files to merge.
    # How long files stay that were merged into others: queries may be reading them, and earlier versions need them.
    retention_hours: int = RETENTION_HOURS
    security: Security = NOBODY
    timeout_s: float = 60.0
    drafts: str | None = None  # A folder for unfinished files; None: the system's for temporary files.
