"""The bundles of every namespace, followed in memory: the boundaries stand in the policies of namespaces."""

from __future__ import annotations

import logging
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

    async def start(self) -> None:
        await self._records.start()

    async def close(self) -> None:
        await self._records.close()

    @property
    def ranges(self) -> Mapping[NamespaceName, BundleRanges]:
        """The boundaries of each namespace, as last read."""
        return MappingProxyType(self._ranges)

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
        before = self._ranges.get(namespace)
        try:
            found = await self._metadata.get(f"{NAMESPACES}/{namespace}", fresh=True)
        except MetadataError as error:
            raise NotReadyError(f"{namespace}: its bundles cannot be read: {error}") from error
        if found is None or not found.value:
            raise NamespaceNotFound(namespace)
        if self._ranges.get(namespace) is before:
            # Else the watch has told of it meanwhile, and may have told something newer.
            self._read({f"{NAMESPACES}/{namespace}": found})

    def _read(self, records: Mapping[str, Versioned | None]) -> None:
        changed: dict[NamespaceName, BundleRanges | None] = {}
        for path, node in records.items():
            namespace = _namespace(path)
            if namespace is None:
                continue
            try:
                ranges = None if node is None else NamespacePolicies.decode(node.value).bundles.ranges
            except (msgspec.MsgspecError, ValueError) as error:
                log.warning("%s: the policies cannot be read, its bundles stay as they were: %s", path, error)
                continue
            before = self._ranges.get(namespace)
            if before == ranges:
                continue
            changed[namespace] = before
            if ranges is None:
                self._ranges.pop(namespace, None)
            else:
                self._ranges[namespace] = ranges
        self._listener(changed)


def _namespace(path: str) -> NamespaceName | None:
    """The namespace of that path; None for a tenant's folder."""
    try:
        return NamespaceName.parse(path.removeprefix(NAMESPACES + "/"))
    except InvalidName:
        return None
