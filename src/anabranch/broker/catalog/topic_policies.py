"""The policies of single topics: stored per topic, kept in memory, with notifications for listeners.

    /admin/topic-policies/{tenant}/{ns}/{domain}/{topic}      TopicPolicies; parts share their topic's

A scalable topic's are stored under the name of the classic topic that it may have been migrated from: the two cannot
exist beside each other, and a migration keeps them.

All of them are in memory from the start, so that opening a topic needs no request to the store; there are few.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from anabranch.broker.catalog.resources import refused
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.policy.stored_json import InvalidValue
from anabranch.broker.policy.topic import NO_TOPIC_POLICIES, TopicPolicies
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.port import MetadataStore, Watch
from anabranch.model.names import Domain, InvalidName, TopicName

log = logging.getLogger(__name__)

TOPIC_POLICIES = "/admin/topic-policies"

Listener = Callable[[TopicName], None]


def policy_holder(name: TopicName) -> TopicName:
    """The topic under whose name the policies of that topic, partition or segment are stored."""
    if name.is_classic:
        return name.base
    if "/" not in name.local:
        classic = TopicName(Domain.PERSISTENT, name.namespace, name.local)
        if not classic.is_partition:
            return classic
    # No classic topic can have this name.
    return TopicName(Domain.TOPIC, name.namespace, name.local)


class TopicPolicyStore:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: dict[TopicName, TopicPolicies] = {}
        self._listeners: list[Listener] = []
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # The watch comes first: changes made while the policies are read cause another read.
        self._watch = self._metadata.watch(TOPIC_POLICIES)
        await self._read_all()
        self._watching = asyncio.create_task(self._follow(self._watch))  # Awaited by `close`.

    async def close(self) -> None:
        if self._watch is not None and self._watching is not None:
            self._watch.close()
            await self._watching

    def of(self, topic: TopicName) -> TopicPolicies:
        return self._known.get(policy_holder(topic), NO_TOPIC_POLICIES)

    def all(self) -> Mapping[TopicName, TopicPolicies]:
        """The policies of all topics that have any, by the names that `policy_holder` gives."""
        return dict(self._known)

    def over(self, policies: NamespacePolicies, topic: TopicName) -> NamespacePolicies:
        """The namespace's policies with those of this topic, or of the topic that it is a part of, over them."""
        found = self._known.get(policy_holder(topic))
        return policies if found is None else found.over(policies)

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def change(self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies]) -> None:
        """Stores `change(policies)`; `change` runs again whenever another writer was faster."""
        path = _path(topic)
        while True:
            found = await self._metadata.get(path)
            before = (
                TopicPolicies.decode(found.value) if found is not None and found.value else NO_TOPIC_POLICIES
            )
            after = change(before)
            try:
                after.over(NamespacePolicies()).checked()
                value = TopicPolicies.readable(msgspec.json.encode(after))
                if found is None:
                    await self._metadata.create(path, value)
                else:
                    await self._metadata.put(path, value, if_version=found.version)
            except InvalidValue as error:
                raise refused(error) from None
            except (AlreadyExists, VersionConflict):
                continue
            self._learn(policy_holder(topic), after)
            return

    async def refresh(self, topic: TopicName) -> None:
        """Reads the topic's policies again: another broker may have changed them a moment ago."""
        await self._read(_path(topic))

    async def forget(self, topic: TopicName) -> None:
        """Removes the topic's policies: it is deleted, or is to have only its namespace's."""
        if await self._metadata.delete(_path(topic)):
            self._learn(policy_holder(topic), NO_TOPIC_POLICIES)

    # -- changes by other brokers

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            try:
                if changes.everything:
                    await self._read_all()
                    continue
                for path in changes.paths:
                    await self._read(path)
            except Exception:
                # A store that did not answer announces everything again once it does.
                log.exception("reading changed policies of topics failed, the old ones stay in force")

    async def _read_all(self) -> None:
        found = dict(await self._metadata.scan(TOPIC_POLICIES))
        gone = [topic for topic in self._known if _path(topic) not in found]
        for path in [*found, *map(_path, gone)]:
            await self._read(path)

    async def _read(self, path: str) -> None:
        try:
            topic = TopicName.from_storage_path(path.removeprefix(TOPIC_POLICIES + "/"))
        except InvalidName:
            return  # The path is a folder.
        found = await self._metadata.get(path, fresh=True)
        is_set = found is not None and found.value
        self._learn(topic, TopicPolicies.decode(found.value) if found and is_set else NO_TOPIC_POLICIES)

    def _learn(self, topic: TopicName, policies: TopicPolicies) -> None:
        if self._known.get(topic, NO_TOPIC_POLICIES) == policies:
            return
        if policies == NO_TOPIC_POLICIES:
            del self._known[topic]
        else:
            self._known[topic] = policies
        for listener in self._listeners:
            listener(topic)


def _path(topic: TopicName) -> str:
    return f"{TOPIC_POLICIES}/{policy_holder(topic).storage_path}"
