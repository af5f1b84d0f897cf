"""The bundles and the anti-affinity group of every namespace, followed in memory: both stand in the policies of
namespaces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from anabranch.broker.catalog.resources import NAMESPACES, NamespaceNotFound
from anabranch.broker.errors import NotReadyError
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.model.bundles import BundleName, BundleRanges
from anabranch.model.names import InvalidName, NamespaceName, TopicName

log = logging.getLogger(__name__)

# What is called with the namespaces whose boundaries have changed, and with what they were before; None for a namespace
# that had none.
RangesListener = Callable[[Mapping[NamespaceName, BundleRanges | None]], None]


class FollowedBundles:
    def __init__(self, metadata: MetadataStore, listener: RangesListener) -> None:
        self._metadata = metadata
        self._listener = listener
        self._records = FollowedRecords(metadata, NAMESPACES, self._read)
        self._ranges: dict[NamespaceName, BundleRanges] = {}
        self._groups: dict[str, str] = {}
        self._groups_listeners: list[Callable[[], None]] = []
        # How often each namespace was read.
        self._reads: Counter[NamespaceName] = Counter()

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()

    @property
    def ranges(self) -> Mapping[NamespaceName, BundleRanges]:
        """The boundaries of each namespace, as last read."""
        return MappingProxyType(self._ranges)

    @property
    def groups(self) -> Mapping[str, str]:
        """The anti-affinity group of each namespace that has one, as last read."""
        return MappingProxyType(self._groups)

    def on_groups(self, callback: Callable[[], None]) -> None:
        """Calls `callback`, on the event loop, whenever `groups` has changed."""
        self._groups_listeners.append(callback)

    def of(self, topic: TopicName) -> BundleName | None:
        """The topic's bundle; None while the boundaries of its namespace's are not known."""
        ranges = self._ranges.get(topic.namespace)
        return None if ranges is None else ranges.of(topic)

    def has(self, bundle: BundleName) -> bool:
        """Whether the bundle's namespace has it, by what was last read."""
        ranges = self._ranges.get(bundle.namespace)
        return ranges is not None and ranges.bundle(bundle.namespace, bundle.range) == bundle

    async def learn(self, namespace: NamespaceName) -> None:
        """Reads the namespace now: the watch may not have told of it yet. NamespaceNotFound if it does not exist."""
        before = self._reads[namespace]
        try:
            found = await self._metadata.get(f"{NAMESPACES}/{namespace}", fresh=True)
        except MetadataError as error:
            raise NotReadyError(f"{namespace}: its bundles cannot be read: {error}") from error
        if found is None or not found.value:
            raise NamespaceNotFound(namespace)
        if self._reads[namespace] == before:
            # Else the watch has told of it meanwhile, and may have told something newer.
            self._read({f"{NAMESPACES}/{namespace}": found})

    def _read(self, records: Mapping[str, Versioned | None]) -> None:
        changed: dict[NamespaceName, BundleRanges | None] = {}
        groups = dict(self._groups)
        for path, node in records.items():
            namespace = _namespace(path)
            if namespace is None:
                continue
            self._reads[namespace] += 1
            try:
                policies = None if node is None else NamespacePolicies.decode(node.value)
                ranges = None if policies is None else policies.bundles.ranges
            except (msgspec.MsgspecError, ValueError) as error:
                log.warning("%s: the policies cannot be read, its bundles stay as they were: %s", path, error)
                continue
            groups.pop(str(namespace), None)
            if policies is not None and policies.anti_affinity_group is not None:
                groups[str(namespace)] = policies.anti_affinity_group
            before = self._ranges.get(namespace)
            if before == ranges:
                continue
            changed[namespace] = before
            if ranges is None:
                self._ranges.pop(namespace, None)
            else:
                self._ranges[namespace] = ranges
        if groups != self._groups:
            self._groups = groups
            for callback in self._groups_listeners:
                callback()
        self._listener(changed)


def _namespace(path: str) -> NamespaceName | None:
    """The namespace of that path; None for a tenant's folder."""
    try:
        return NamespaceName.parse(path.removeprefix(NAMESPACES + "/"))
    except InvalidName:
        return None
