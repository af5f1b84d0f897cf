"""Reading and writing the records of scalable topics. No decisions: only the store's habits, in one place.

A node with an empty value is a folder that the creation of a child made, and counts as absent. A subscription's record
of another generation is a leftover of a deleted topic of the same name, and counts as absent too.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from anabranch.controller.core.errors import TooBusy, TopicExists, TopicMissing
from anabranch.controller.election import is_leader, resign
from anabranch.metadata.errors import AlreadyExists, NotEmpty, VersionConflict
from anabranch.metadata.last_reads import LastReads
from anabranch.metadata.port import MetadataStore
from anabranch.model.names import NamespaceName, TopicName, decode_local
from anabranch.model.scalable import (
    CONSUMERS,
    CONTROLLER,
    SUBSCRIPTIONS,
    ConsumerRecord,
    ScalableTopic,
    SubscriptionRecord,
    consumer_path,
    namespace_path,
    subscription_path,
    topic_path,
)

GENERATIONS = "/counters/scalable-topic"
# A record is read again at every lookup of a segment and before every effect, and its bytes are mostly the same: a
# hundred segments take 4 ms to decode and 20 us to compare.
DECODED_MAX: Final = 128
_decoded: OrderedDict[bytes, ScalableTopic] = OrderedDict()
Versioned = tuple[ScalableTopic, int]


def new_topic_id() -> str:
    """An id for a topic that is being made: no other topic, of any name and in any store, has it."""
    return secrets.token_hex(16)


def _decode(value: bytes) -> ScalableTopic:
    record = _decoded.get(value)
    if record is None:
        record = ScalableTopic.decode(value)
    _note_decoded(value, record)
    return record


def _note_decoded(value: bytes, record: ScalableTopic) -> None:
    """Remembers the decoded record of these bytes, for later reads; called after writes too, which are read soon."""
    _decoded[value] = record
    _decoded.move_to_end(value)
    if len(_decoded) > DECODED_MAX:
        _decoded.popitem(last=False)


async def last_record(reads: LastReads, topic: TopicName) -> ScalableTopic | None:
    """The record of the topic, in any form of its name; as last read while the store is in doubt. None if there is
    none."""
    found = await reads.get(topic_path(topic))
    return None if found is None or not found.value else _decode(found.value)


class Records:
    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    # -- topics

    async def new_generation(self) -> int:
        # 0 stands for a classic topic, which has no record.
        return await self._metadata.next_id(GENERATIONS) + 1

    async def topic(self, topic: TopicName, *, fresh: bool = False) -> Versioned | None:
        """The record and its version, read again from the store. Any form of the topic's name will do.

        That there is no record is always read afresh: the topic may have been created through another broker a moment
        ago, and clients give up a topic that does not exist.
        """
        found = await self._metadata.get(topic_path(topic), fresh=fresh)
        if not fresh and (found is None or not found.value):
            found = await self._metadata.get(topic_path(topic), fresh=True)
        return None if found is None or not found.value else (_decode(found.value), found.version)

    async def get(self, topic: TopicName, *, fresh: bool = False) -> ScalableTopic | None:
        found = await self.topic(topic, fresh=fresh)
        return None if found is None else found[0]

    async def create_topic(self, topic: TopicName, record: ScalableTopic) -> int:
        """Creates the record and returns its version. TopicExists if the name is taken."""
        path, value = topic_path(topic), record.encode()
        try:
            return (await self._metadata.create(path, value)).version
        except AlreadyExists:
            found = await self._metadata.get(path)
        if found is not None and found.value:
            if ScalableTopic.decode(found.value).generation == record.generation:
                return found.version  # The record is ours: the answer to an earlier attempt was lost.
            raise TopicExists(f"{topic} exists already")
        try:
            written = await self._metadata.put(
                path, value, if_version=None if found is None else found.version
            )
        except VersionConflict:
            raise TopicExists(f"{topic} exists already") from None
        return written.version

    async def remove_new(self, topic: TopicName, if_version: int) -> None:
        """Removes a record that has been used for nothing, if it still has that version: if it has another, it is being
        deleted already. TooBusy if something was stored below it."""
        try:
            await self._metadata.delete(topic_path(topic), if_version=if_version)
        except VersionConflict:
            return
        except NotEmpty:
            raise TooBusy(f"something was written below {topic} while it was removed") from None

    async def store_topic(self, topic: TopicName, record: ScalableTopic, if_version: int) -> int:
        """Stores the record and returns the new version; VersionConflict if the stored record has changed."""
        found = await self.topic(topic, fresh=True)
        # A topic deleted and made again starts over with its versions, and one may be the same by chance.
        if found is None or found[0].generation != record.generation:
            raise VersionConflict(topic_path(topic), if_version, None if found is None else found[1])
        value = record.encode()
        written = await self._metadata.put(topic_path(topic), value, if_version=if_version)
        _note_decoded(value, record)
        return written.version

    async def update_topic(
        self, topic: TopicName, change: Callable[[ScalableTopic], ScalableTopic]
    ) -> ScalableTopic:
        """Stores the record changed by `change`; tries again after every conflict."""
        while True:
            found = await self.topic(topic)
            if found is None:
                raise TopicMissing(f"{topic} does not exist")
            record, version = found
            changed = change(record)
            if changed == record:
                return record
            try:
                await self.store_topic(topic, changed, version)
            except VersionConflict:
                continue
            return changed

    async def topics(self, namespace: NamespaceName, properties: Mapping[str, str]) -> list[TopicName]:
        """The topics with all these properties, sorted, without topics being deleted."""
        found = []
        folder = namespace_path(namespace)
        for child in await self._metadata.children(folder):
            node = await self._metadata.get(f"{folder}/{child}")
            if node is None or not node.value:
                continue
            record = ScalableTopic.decode(node.value)
            if not record.is_deleting and properties.items() <= record.properties.items():
                found.append(TopicName.parse(f"topic://{namespace}/{decode_local(child)}"))
        return sorted(found)

    async def remove_topic(self, topic: TopicName) -> None:
        """Removes everything below the record first, so that a half-done removal is still marked as such."""
        path = topic_path(topic)
        for child in await self._metadata.children(path):
            if child != CONTROLLER:
                await self._remove_tree(f"{path}/{child}")
        # The leadership record goes last: as long as it exists, no other broker starts the same work.
        await resign(self._metadata, topic)
        try:
            await self._metadata.delete(path)
        except NotEmpty:
            raise TooBusy(f"something was written below {topic} while it was removed") from None

    async def remove_classic(self, topic: TopicName) -> None:
        """Removes the leftovers of a deleted classic topic's consumers: a topic made later starts without consumers.

        Nothing is removed of a scalable topic of that name, nor what a migration has stored for the topic to come.
        """
        if await self.get(topic) is not None:
            return
        path = topic_path(topic)
        folder = f"{path}/{SUBSCRIPTIONS}"
        for child in await self._metadata.children(folder):
            found = await self._metadata.get(f"{folder}/{child}")
            if found is None or (found.value and SubscriptionRecord.decode(found.value).generation):
                continue
            await self._remove_tree(f"{folder}/{child}")
        for empty in (folder, path):
            with contextlib.suppress(NotEmpty, VersionConflict):
                if (node := await self._metadata.get(empty)) is not None and not node.value:
                    await self._metadata.delete(empty, if_version=node.version)

    async def _remove_tree(self, path: str) -> None:
        for child in await self._metadata.children(path):
            await self._remove_tree(f"{path}/{child}")
        try:
            await self._metadata.delete(path)
        except NotEmpty:
            await self._remove_tree(path)

    # -- subscriptions

    async def subscription(self, topic: TopicName, generation: int, name: str) -> SubscriptionRecord | None:
        found = await self._metadata.get(subscription_path(topic, name))
        if found is None or not found.value:
            return None
        record = SubscriptionRecord.decode(found.value)
        return record if record.generation == generation else None

    async def has_subscription(self, topic: TopicName, name: str) -> bool:
        """Whether a subscription of any generation has this name."""
        found = await self._metadata.get(subscription_path(topic, name))
        return found is not None and bool(found.value)

    async def subscriptions(self, topic: TopicName, generation: int) -> tuple[SubscriptionRecord, ...]:
        folder = f"{topic_path(topic)}/{SUBSCRIPTIONS}"
        records = []
        for child in await self._metadata.children(folder):
            node = await self._metadata.get(f"{folder}/{child}")
            if node is not None and node.value:
                record = SubscriptionRecord.decode(node.value)
                if record.generation == generation:
                    records.append(record)
        return tuple(sorted(records, key=lambda r: r.name))

    async def register_subscription(self, topic: TopicName, record: SubscriptionRecord) -> SubscriptionRecord:
        """The stored record: this one, or the existing one, with the initial position filled in."""
        return (await self.register(topic, record))[0]

    async def register(self, topic: TopicName, record: SubscriptionRecord) -> tuple[SubscriptionRecord, bool]:
        """As `register_subscription`, and whether this call stored the record or its initial position."""
        path = subscription_path(topic, record.name)
        while True:
            found = await self._metadata.get(path)
            stored = SubscriptionRecord.decode(found.value) if found is not None and found.value else None
            wanted = record
            if stored is not None and stored.generation == record.generation:
                if stored.initial is not None or record.initial is None or stored.is_deleting:
                    return stored, False
                wanted = replace(stored, initial=record.initial)
            try:
                if found is None:
                    await self._metadata.create(path, wanted.encode())
                else:
                    await self._metadata.put(path, wanted.encode(), if_version=found.version)
            except (AlreadyExists, VersionConflict):
                continue
            return wanted, True

    async def store_subscription(self, topic: TopicName, record: SubscriptionRecord) -> None:
        await self._metadata.put(subscription_path(topic, record.name), record.encode())

    async def change_subscription(self, topic: TopicName, record: SubscriptionRecord) -> None:
        """Stores the record over the subscription of the same topic. A subscription deleted meanwhile is not stored
        again."""
        path = subscription_path(topic, record.name)
        while True:
            found = await self._metadata.get(path)
            if found is None or not found.value:
                return
            if SubscriptionRecord.decode(found.value).generation != record.generation:
                return
            try:
                await self._metadata.put(path, record.encode(), if_version=found.version)
                return
            except VersionConflict:
                continue

    async def remove_subscription(self, topic: TopicName, name: str) -> None:
        """Removes a subscription that is marked as deleting, with its sessions. One that was made again since stays."""
        path = subscription_path(topic, name)
        found = await self._metadata.get(path)
        if found is None or (found.value and not SubscriptionRecord.decode(found.value).is_deleting):
            return
        for child in await self._metadata.children(path):
            await self._remove_tree(f"{path}/{child}")
        with contextlib.suppress(VersionConflict):
            await self._metadata.delete(path, if_version=found.version)

    # -- sessions

    async def consumers(self, topic: TopicName, subscription: str) -> tuple[tuple[ConsumerRecord, int], ...]:
        """The stored consumers, each with its version."""
        folder = f"{subscription_path(topic, subscription)}/{CONSUMERS}"
        records = []
        for child in await self._metadata.children(folder):
            node = await self._metadata.get(f"{folder}/{child}")
            if node is not None and node.value:
                records.append((ConsumerRecord.decode(node.value), node.version))
        return tuple(records)

    async def consumer_version(self, topic: TopicName, subscription: str, name: str) -> int | None:
        """The version of that consumer's stored record; None if there is none."""
        found = await self._metadata.get(consumer_path(topic, subscription, name))
        return None if found is None else found.version

    async def store_consumer(
        self, topic: TopicName, subscription: str, record: ConsumerRecord, if_version: int | None
    ) -> int:
        """Stores the record and returns its new version. VersionConflict unless it is at that version, or absent if
        that is None."""
        path = consumer_path(topic, subscription, record.name)
        if if_version is not None:
            return (await self._metadata.put(path, record.encode(), if_version=if_version)).version
        try:
            return (await self._metadata.create(path, record.encode())).version
        except AlreadyExists:
            raise VersionConflict(path, -1, None) from None

    async def remove_consumer(
        self, topic: TopicName, subscription: str, name: str, if_version: int | None
    ) -> None:
        """Removes the record. VersionConflict if it is at another version."""
        await self._metadata.delete(consumer_path(topic, subscription, name), if_version=if_version)

    async def is_led_here(self, topic: TopicName) -> bool:
        """Whether this broker leads the topic, read again from the store."""
        return await is_leader(self._metadata, topic)
