"""The options of producers as type checkers are told them, but for the schema, which says what may be sent.

Their defaults and meanings are documented at `Client.producer`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from anabranch.client.crypto.encryption import Encryption
from anabranch.client.hidden_writes.write import Write
from anabranch.client.producing.batching import Access, Batching, Compression
from anabranch.client.producing.core.lanes import Routing


class ProducerOptions(TypedDict, total=False):
    name: str | None
    compression: Compression
    batching: bool | Batching
    routing: Routing
    access: Access
    chunking: bool
    encryption: Encryption | None
    send_timeout_s: float | None
    create: bool
    properties: Mapping[str, str] | None
    write: Write | None
