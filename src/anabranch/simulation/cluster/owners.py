"""Which simulated broker owns a topic.

Every broker computes the owners from the brokers that it sees registered, so for a while after a change two may
disagree: the log's fence keeps that harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import Callable
from typing import Final

from anabranch.broker.catalog.owners import BROKERS, BrokerAddress, OwnersListener
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.names import NamespaceName, TopicName

RETRY_S: Final = 0.2


class RegisteredOwners:
    """Implements `Owners`: a topic belongs to the registered broker for which the hash of both names is highest."""

    def __init__(self, metadata: MetadataStore, me: BrokerAddress) -> None:
        self._metadata = metadata
        self._me = me
        self._known: dict[str, BrokerAddress] = {me.service_url: me}
        self._spaces: set[NamespaceName] = set()  # Those that owners were asked for.
        self._callbacks: list[OwnersListener] = []

    def start(self) -> None:
        watch = self._metadata.watch(BROKERS)
        # The task ends with its host.
        self._following = asyncio.get_running_loop().create_task(self._follow(watch))

    async def _follow(self, watch: object) -> None:
        await self._read()
        async for _ in watch:  # type: ignore[attr-defined]  # A Watch.
            await self._read()

    async def _read(self) -> None:
        while True:
            with contextlib.suppress(MetadataError):
                found: dict[str, BrokerAddress] = {}
                for name in await self._metadata.children(BROKERS):
                    node = await self._metadata.get(f"{BROKERS}/{name}")
                    if node is not None and node.value:
                        value = json.loads(node.value)
                        url = value["pulsarServiceUrl"]
                        found[url] = BrokerAddress(url, value["webServiceUrl"])
                break
            await asyncio.sleep(RETRY_S)
        if found.keys() != self._known.keys():
            self._known = found
            for callback in list(self._callbacks):
                callback(frozenset(BundleName(space, "0x00000000_0xffffffff") for space in self._spaces))

    def owner(self, topic: TopicName) -> BrokerAddress:
        self._spaces.add(topic.namespace)
        if not self._known:
            return self._me
        name = str(topic)
        best = max(sorted(self._known), key=lambda url: zlib.crc32(f"{url} {name}".encode()))
        return self._known[best]

    async def resolve(self, topic: TopicName) -> BrokerAddress:
        return self.owner(topic)

    def is_mine(self, topic: TopicName) -> bool:
        return self.owner(topic).service_url == self._me.service_url

    def on_change(self, callback: OwnersListener) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None
