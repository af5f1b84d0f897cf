"""Holds entries back until the schema version that they were written with is known.

In nearly all cases it is known, and an entry passes at once. The first entry of a version makes its segment wait for
one request to the broker; later entries wait too, so that order is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from anabranch.client.errors import RequestRefused, SchemaMismatch
from anabranch.client.message import ReceivedEntry
from anabranch.client.schema.schemas import Schema, learn_version
from anabranch.client.transport.attachment import Backoff
from anabranch.client.transport.pool import Connections
from anabranch.errors import AnabranchError

log = logging.getLogger(__name__)


class VersionGate:
    """Stands in front of a consumer's inbox, for one segment. `put` passes entries on, in order."""

    def __init__(
        self,
        schema: Schema[Any],
        connections: Connections,
        topic: str,
        put: Callable[[ReceivedEntry], None],
        backoff: Backoff,
    ) -> None:
        self._schema = schema
        self._connections = connections
        self._topic = topic
        self._put = put
        self._backoff = backoff
        self._held: deque[ReceivedEntry] = deque()
        self._learning: asyncio.Task[None] | None = None

    def put(self, entry: ReceivedEntry) -> None:
        if not self._held and self._schema.knows(entry.metadata.schema_version):
            self._put(entry)
            return
        self._held.append(entry)
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._learn())  # Ended by `close`.

    def drop(self) -> None:
        """Forgets the entries that it holds: the broker will send them again."""
        self._held.clear()

    async def close(self) -> None:
        self.abort()
        if self._learning is not None:
            await asyncio.gather(self._learning, return_exceptions=True)

    def abort(self) -> None:
        self.drop()
        if self._learning is not None:
            self._learning.cancel()

    async def _learn(self) -> None:
        while self._held:
            version = self._held[0].metadata.schema_version
            if self._schema.knows(version):
                self._put(self._held.popleft())
                continue
            try:
                await learn_version(self._schema, self._connections, self._topic, version)
                self._backoff.reset()
            except AnabranchError as error:
                if error.retryable or not isinstance(error, RequestRefused | SchemaMismatch):
                    log.debug(
                        "%s: fetching version %s of the schema failed: %s", self._topic, version.hex(), error
                    )
                    await self._backoff.wait()
                    continue
                # Each of its values raises an error when it is read; payloads can be read.
                log.warning(
                    "%s: fetching version %s of the schema failed: %s", self._topic, version.hex(), error
                )
                self._schema.refuse(version, error)
