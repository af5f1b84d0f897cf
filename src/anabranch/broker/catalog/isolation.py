"""Isolation policies and failure domains of clusters: stored, and those of this broker's cluster followed in memory.

    /admin/clusters/{cluster}/namespaceIsolationPolicies        all policies of the cluster by name, as one object
    /admin/clusters/{cluster}/failureDomains                    all its domains by name: a broker is in one at most

`broker/balance/placement.py` says what follows from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from anabranch.balance.core.isolation import (
    BadIsolation,
    FailureDomain,
    IsolationPolicy,
    already_elsewhere,
    decode_domains,
    decode_policies,
    encode_domains,
    encode_policies,
)
from anabranch.broker.catalog.resources import CLUSTERS, Conflict, NotFound
from anabranch.metadata.errors import AlreadyExists, VersionConflict
from anabranch.metadata.followed import FollowedRecords
from anabranch.metadata.port import MetadataStore, Versioned
from anabranch.model.names import check_entity

log = logging.getLogger(__name__)

T = TypeVar("T")
NO_VERSION: Final = -1


class _Kept(Generic[T]):
    """One record of a cluster: values by name."""

    def __init__(
        self,
        metadata: MetadataStore,
        node: str,
        decode: Callable[[bytes], dict[str, T]],
        encode: Callable[[Mapping[str, T]], bytes],
    ) -> None:
        self._metadata = metadata
        self._node = node
        self._decode = decode
        self._encode = encode
        self._version = NO_VERSION
        self.values: dict[str, T] = {}

    def path(self, cluster: str) -> str:
        return f"{_cluster_path(cluster)}/{self._node}"

    async def of(self, cluster: str) -> dict[str, T] | None:
        """None if nothing was ever stored."""
        found = await self._metadata.get(self.path(cluster), fresh=True)
        return None if found is None else self._values(found)

    async def change(self, cluster: str, change: Callable[[dict[str, T]], dict[str, T]]) -> Versioned:
        """Stores `change(values)`; `change` runs again whenever another writer was faster."""
        path = self.path(cluster)
        while True:
            found = await self._metadata.get(path, fresh=True)
            value = self._encode(change({} if found is None else self._values(found)))
            try:
                if found is None:
                    return await self._metadata.create(path, value)
                return await self._metadata.put(path, value, if_version=found.version)
            except (AlreadyExists, VersionConflict):
                continue

    def read(self, found: Versioned | None) -> bool:
        """Keeps the values of the record in memory; whether they are others than before. A record that is older than
        what is known is left out: this broker may have stored a newer one since."""
        if found is not None and found.version <= self._version:
            return False
        try:
            values = {} if found is None else self._values(found)
        except BadIsolation as error:
            log.warning("%s cannot be read, what was read before stays in force: %s", self._node, error)
            return False
        self._version = NO_VERSION if found is None else found.version
        before, self.values = self.values, values
        return before != values

    def _values(self, found: Versioned) -> dict[str, T]:
        return self._decode(found.value) if found.value else {}


class IsolationStore:
    """Between `start` and `close` it follows the policies and domains of this broker's cluster."""

    def __init__(self, metadata: MetadataStore, cluster: str) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._policies = _Kept(metadata, "namespaceIsolationPolicies", decode_policies, encode_policies)
        self._domains = _Kept(metadata, "failureDomains", decode_domains, encode_domains)
        self._listeners: list[Callable[[], None]] = []
        self._followed = FollowedRecords(metadata, _cluster_path(cluster), self._read)

    async def start(self) -> None:
        await self._followed.start()

    async def close(self) -> None:
        await self._followed.close()

    # -- those of this broker's cluster, as last read

    @property
    def policies(self) -> Mapping[str, IsolationPolicy]:
        return MappingProxyType(self._policies.values)

    @property
    def domains(self) -> Mapping[str, FailureDomain]:
        return MappingProxyType(self._domains.values)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls `callback`, on the event loop, whenever `policies` or `domains` has changed."""
        self._listeners.append(callback)

    async def refresh(self) -> None:
        """Reads the policies now: another broker may have changed them a moment ago."""
        path = self._policies.path(self._cluster)
        self._read({path: await self._metadata.get(path, fresh=True)})

    # -- policies

    async def policies_of(self, cluster: str) -> dict[str, IsolationPolicy] | None:
        """None if no policy was ever set there."""
        return await self._policies.of(cluster)

    async def set_policy(self, cluster: str, name: str, policy: IsolationPolicy) -> IsolationPolicy | None:
        """The policy in whose place it is."""
        before: list[IsolationPolicy | None] = []

        def change(policies: dict[str, IsolationPolicy]) -> dict[str, IsolationPolicy]:
            before.append(policies.get(name))
            return {**policies, name: policy}

        self._learn(self._policies.path(cluster), await self._policies.change(cluster, change))
        return before[-1]

    async def delete_policy(self, cluster: str, name: str) -> None:
        """Whether or not there is one, as in Pulsar."""
        stored = await self._policies.change(cluster, lambda policies: _without(policies, name))
        self._learn(self._policies.path(cluster), stored)

    # -- failure domains

    async def domains_of(self, cluster: str) -> dict[str, FailureDomain]:
        return await self._domains.of(cluster) or {}

    async def set_domain(self, cluster: str, name: str, domain: FailureDomain) -> None:
        """Conflict if one of its brokers is in another domain."""

        def change(domains: dict[str, FailureDomain]) -> dict[str, FailureDomain]:
            if (shared := already_elsewhere(name, domain, domains)) is not None:
                other, brokers = shared
                raise Conflict(f"[{', '.join(brokers)}] already exists in {other}")
            return {**domains, name: domain}

        self._learn(self._domains.path(cluster), await self._domains.change(cluster, change))

    async def delete_domain(self, cluster: str, name: str) -> None:
        """NotFound if there is none."""

        def change(domains: dict[str, FailureDomain]) -> dict[str, FailureDomain]:
            if name not in domains:
                raise NotFound(f"Domain-name {name} or cluster {cluster} does not exist")
            return _without(domains, name)

        self._learn(self._domains.path(cluster), await self._domains.change(cluster, change))

    async def forget(self, cluster: str) -> None:
        """Removes what is stored of a cluster that is about to be deleted."""
        for path in (self._policies.path(cluster), self._domains.path(cluster)):
            await self._metadata.delete(path)

    # -- what is kept in memory

    def _learn(self, path: str, stored: Versioned) -> None:
        """What this broker has stored itself: it obeys at once, and not when the watch has told."""
        self._read({path: stored})

    def _read(self, records: Mapping[str, Versioned | None]) -> None:
        is_changed = False
        for kept in (self._policies, self._domains):
            if (path := kept.path(self._cluster)) in records:
                is_changed |= kept.read(records[path])
        if is_changed:
            for callback in list(self._listeners):
                callback()


def _without(values: dict[str, T], name: str) -> dict[str, T]:
    return {key: value for key, value in values.items() if key != name}


def _cluster_path(cluster: str) -> str:
    return f"{CLUSTERS}/{check_entity('cluster', cluster)}"
