"""Values that settings and policies share: what each may be set to."""

from __future__ import annotations

from typing import Final, Literal

BUNDLES_MAX: Final = 4096

Strategy = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
# Whether a topic is kept as a table: not at all, with its values as bytes, or with the fields of its schema.
TableMode = Literal["off", "raw", "decoded"]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
