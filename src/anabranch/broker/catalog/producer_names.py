"""Names of producers that have none of their own: unique in the cluster, whichever broker gives them."""

from __future__ import annotations

from typing import Final

from anabranch.metadata.port import MetadataStore

PRODUCER_NAMES_PATH: Final = "/counters/producer-name"
# How many numbers a broker reserves at once.
RESERVED: Final = 1000


class ProducerNames:
    def __init__(self, metadata: MetadataStore, cluster_name: str) -> None:
        self._metadata = metadata
        self._cluster_name = cluster_name
        self._numbers = iter(range(0))

    async def new(self) -> str:
        for number in self._numbers:
            return f"{self._cluster_name}-{number}"
        self._numbers = iter(await self._metadata.next_ids(PRODUCER_NAMES_PATH, RESERVED))
        return await self.new()
