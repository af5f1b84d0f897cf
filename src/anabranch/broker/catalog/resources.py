"""Tenants, clusters, namespaces and partitioned topics: what exists, kept in the metadata store.

    /admin/clusters/{cluster}                                   Cluster
    /admin/tenants/{tenant}                                     Tenant
    /admin/namespaces/{tenant}/{namespace}                      Policies
    /admin/partitioned-topics/{tenant}/{ns}/{domain}/{topic}    PartitionedTopic
    /managed-ledgers/{tenant}/{ns}/{domain}/{topic}             a topic's log record, written by the log itself
    /managed-ledgers/{tenant}/{ns}/segment/{topic}/{segment}    the same for a segment of a scalable topic

Policies are cached and kept fresh by a watch; everything else is read on request, since requests are rare. What clients
need when they connect again is answered as last read while the store is in doubt (`metadata/last_reads.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from anabranch.broker.catalog.registry import BROKERS
from anabranch.broker.policy.namespace import (
    Bundles,
    ClusterRecord,
    NamespacePolicies,
    PartitionedTopic,
    Tenant,
    encode_policies,
)
from anabranch.broker.policy.stored_json import InvalidValue, JsonStruct
from anabranch.controller.records import new_topic_id
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import AlreadyExists, NotEmpty, VersionConflict
from anabranch.metadata.last_reads import LastReads
from anabranch.metadata.port import Changes, MetadataStore, Versioned, Watch
from anabranch.model import scalable
from anabranch.model.leaders_topics import is_leaders
from anabranch.model.names import (
    PUBLIC_DEFAULT,
    SYSTEM_NAMESPACE,
    Domain,
    NamespaceName,
    TopicName,
    check_entity,
    decode_local,
)
from anabranch.storage.core.topic_record import TopicRecord

log = logging.getLogger(__name__)

NAMES_PER_TURN = 500
CLUSTERS = "/admin/clusters"
TENANTS = "/admin/tenants"
NAMESPACES = "/admin/namespaces"
PARTITIONED = "/admin/partitioned-topics"
MANAGED_LEDGERS = "/managed-ledgers"
CLASSIC_DOMAINS = (Domain.PERSISTENT, Domain.NON_PERSISTENT)

PoliciesListener = Callable[[NamespaceName, NamespacePolicies | None], None]
T = TypeVar("T", bound=JsonStruct)


class ResourceError(AnabranchError):
    """A refusal about what exists. `status` is the HTTP status that admin clients expect for it."""

    status = 400


class NotFound(ResourceError):
    """The tenant, namespace, cluster or partitioned topic does not exist."""

    status = 404
    code = 11  # TopicNotFound


class Conflict(ResourceError):
    """The resource exists already, is not empty, or is being deleted."""

    status = 409
    code = 22  # NotAllowedError


class Refused(ResourceError):
    """The request can never succeed: a bad value, or one that this system does not allow."""

    status = 412
    code = 22  # NotAllowedError


def refused(error: InvalidValue) -> Refused:
    """The error as an answer to an admin client."""
    answer = Refused(str(error))
    answer.status = error.status
    return answer


class NotAcceptable(Refused):
    """An impossible number of partitions; admin clients expect this status for it."""

    status = 406


class Unprocessable(Refused):
    """Fewer partitions than exist; admin clients expect this status for it."""

    status = 422


class NamespaceNotFound(NotFound):
    def __init__(self, namespace: NamespaceName) -> None:
        super().__init__(f"Namespace {namespace} does not exist")


def topic_record_path(name: TopicName) -> str:
    """The path of the topic's log record."""
    return f"{MANAGED_LEDGERS}/{name.storage_path}"


class Resources:
    """What exists, according to the store. `start` begins watching; `close` ends it."""

    def __init__(
        self,
        metadata: MetadataStore,
        cluster: str = "standalone",
        *,
        bundles: int = 4,
        defaults_yield: bool = False,
    ) -> None:
        """`defaults_yield`: defaults that the first start created, and that are unchanged, may be created once more by
        a client.

        Where rights are checked, Pulsar's standalone fails to create its own tenant and namespace, and set-up scripts
        rely on that: they create them, with the permissions that they need.
        """
        self.cluster = cluster
        self._defaults_yield = defaults_yield
        # The values and versions of the defaults that may be created once more, by path.
        self._defaults: dict[str, tuple[bytes, int]] = {}
        self._metadata = metadata
        self._last = LastReads(metadata)
        self._bundles = Bundles.even(bundles)
        self._policies: dict[NamespaceName, NamespacePolicies] = {}
        # Raised by every change seen or made, so that the result of an earlier read is not cached after it.
        self._changes = 0
        self._listeners: list[PoliciesListener] = []
        self._watch: Watch | None = None
        self._watching: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        self._watch = self._metadata.watch(NAMESPACES)
        self._watching = asyncio.create_task(self._follow(self._watch))  # Awaited by `close`.

    async def close(self) -> None:
        if self._watch is not None and self._watching is not None:
            self._watch.close()
            await self._watching

    async def bootstrap(self, data: ClusterRecord, *, me: str = "") -> None:
        """Creates the defaults at a first start. The cluster's record comes last, so an interrupted first start is
        repeated.

        `me` is the id of a broker that shares the cluster with others. The record says how the cluster is reached: the
        first broker of all that run writes it, and those that start while others are registered leave it as it is."""
        path = f"{CLUSTERS}/{check_entity('cluster', self.cluster)}"
        found = await self._metadata.get(path, fresh=True)
        if found is None:
            for namespace in (PUBLIC_DEFAULT, SYSTEM_NAMESPACE):
                with contextlib.suppress(Conflict):
                    await self.create_tenant(namespace.tenant)
                with contextlib.suppress(Conflict):
                    await self.create_namespace(namespace)
        others = set(await self._metadata.children(BROKERS)) - {me} if me else set()
        if found is None or (found.value != msgspec.json.encode(data) and not others):
            # Ports may differ from the last start's; the record says how the cluster is reached now.
            await self._metadata.put(path, msgspec.json.encode(data))
        if self._defaults_yield:
            await self._remember_defaults(path, data)

    async def _remember_defaults(self, path: str, data: ClusterRecord) -> None:
        """With their versions: of several brokers each has its own memory of what has yielded, and a record that was
        created once more through another one may have the default's value."""
        defaults = {
            path: msgspec.json.encode(data),
            _tenant_path(PUBLIC_DEFAULT.tenant): msgspec.json.encode(self._default_tenant()),
            _namespace_path(PUBLIC_DEFAULT): encode_policies(self._default_policies()),
        }
        for default, value in defaults.items():
            found = await self._metadata.get(default, fresh=True)
            if found is not None and found.value == value:
                self._defaults[default] = (value, found.version)

    def _default_tenant(self) -> Tenant:
        return Tenant(allowed_clusters=(self.cluster,))

    def _default_policies(self) -> NamespacePolicies:
        return NamespacePolicies(bundles=self._bundles, replication_clusters=(self.cluster,))

    # -- clusters

    async def clusters(self) -> list[str]:
        return await self._metadata.children(CLUSTERS)

    async def cluster_data(self, name: str) -> ClusterRecord:
        return await self._get(
            f"{CLUSTERS}/{check_entity('cluster', name)}", ClusterRecord, f"Cluster {name}"
        )

    async def put_cluster(self, name: str, data: ClusterRecord, *, create: bool) -> None:
        await self._put(f"{CLUSTERS}/{check_entity('cluster', name)}", data, f"Cluster {name}", create=create)

    async def delete_cluster(self, name: str) -> None:
        if name == self.cluster:
            raise Refused(f"Cluster {name} is this broker's own and cannot be deleted")
        await self._delete(f"{CLUSTERS}/{check_entity('cluster', name)}", f"Cluster {name}")

    # -- tenants

    async def tenants(self) -> list[str]:
        return await self._metadata.children(TENANTS)

    async def tenant(self, name: str) -> Tenant:
        found = await self._last.get(_tenant_path(name))
        if found is None or not found.value:
            raise NotFound(f"Tenant {name} does not exist")
        return Tenant.decode(found.value)

    async def create_tenant(self, name: str, data: Tenant | None = None) -> None:
        await self._put_tenant(name, data or self._default_tenant(), create=True)

    async def update_tenant(self, name: str, data: Tenant) -> None:
        await self._put_tenant(name, data, create=False)

    async def _put_tenant(self, name: str, data: Tenant, *, create: bool) -> None:
        unknown = set(data.allowed_clusters) - {self.cluster, *await self.clusters()}
        if unknown:
            raise Refused(f"Clusters do not exist: {', '.join(sorted(unknown))}")
        await self._put(_tenant_path(name), data, f"Tenant {name}", create=create)

    async def delete_tenant(self, name: str) -> None:
        if left := await self.namespaces(name):
            raise Conflict(f"The tenant still has active namespaces: {', '.join(map(str, left[:3]))}")
        await self._delete(_tenant_path(name), f"Tenant {name}")
        await self._sweep((f"{NAMESPACES}/{name}", f"{PARTITIONED}/{name}", f"{MANAGED_LEDGERS}/{name}"))

    # -- namespaces

    async def namespaces(self, tenant: str) -> list[NamespaceName]:
        """The tenant's namespaces, including those being deleted."""
        await self.tenant(tenant)
        return [
            NamespaceName(tenant, name) for name in await self._metadata.children(f"{NAMESPACES}/{tenant}")
        ]

    async def create_namespace(
        self, namespace: NamespaceName, policies: NamespacePolicies | None = None
    ) -> None:
        await self.tenant(namespace.tenant)
        policies = policies or self._default_policies()
        if not policies.replication_clusters:
            policies = msgspec.structs.replace(policies, replication_clusters=(self.cluster,))
        try:
            value = encode_policies(policies.checked())
            await self._create(_namespace_path(namespace), value)
        except InvalidValue as error:
            raise refused(error) from None
        except AlreadyExists:
            raise Conflict(f"Namespace {namespace} already exists") from None
        self._changes += 1
        if namespace in self._policies:  # A default that yielded.
            self._learn(namespace, policies)

    async def policies(self, namespace: NamespaceName) -> NamespacePolicies:
        """The policies set on the namespace; raises NamespaceNotFound also while it is being deleted."""
        if (cached := self._policies.get(namespace)) is not None:
            return cached
        changes = self._changes
        policies = await self._read_policies(namespace)
        if policies is None or policies.deleted:
            raise NamespaceNotFound(namespace)
        if changes == self._changes and self._watch is not None:
            self._policies[namespace] = policies
        return policies

    async def refresh(self, namespace: NamespaceName) -> None:
        """Reads the cached policies again: another broker may have changed them a moment ago."""
        if namespace in self._policies:
            await self._reread(namespace)

    async def update_policies(
        self, namespace: NamespaceName, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies:
        """Stores `change(policies)`; `change` runs again whenever another writer was faster."""

        def living(policies: NamespacePolicies) -> NamespacePolicies:
            if policies.deleted:
                raise NamespaceNotFound(namespace)
            return change(policies)

        return await self._change_policies(namespace, living)

    async def _change_policies(
        self, namespace: NamespaceName, change: Callable[[NamespacePolicies], NamespacePolicies]
    ) -> NamespacePolicies:
        path = _namespace_path(namespace)
        while True:
            found = await self._metadata.get(path, fresh=True)
            if found is None:
                raise NamespaceNotFound(namespace)
            before = NamespacePolicies.decode(found.value)
            try:
                after = change(before).checked()
                await self._metadata.put(path, encode_policies(after, found.value), if_version=found.version)
            except InvalidValue as error:
                raise refused(error) from None
            except VersionConflict:
                continue
            self._learn(namespace, after)
            return after

    async def begin_delete_namespace(
        self, namespace: NamespaceName, *, force: bool = False
    ) -> list[TopicName]:
        """Stops creation of topics in the namespace and returns those left; raises Conflict if there are any, unless
        forced.

        The caller deletes them and then calls `delete_namespace`. Both may be repeated after a crash.
        """
        await self._change_policies(namespace, lambda p: msgspec.structs.replace(p, deleted=True))
        # Read only now: a request that creates a topic reads the policies first and is refused from here on.
        left = [
            *await self.topic_names(namespace),
            *await self.partitioned_names(namespace),
            *await self.scalable_names(namespace),
        ]
        if left and not force:
            await self._change_policies(namespace, lambda p: msgspec.structs.replace(p, deleted=False))
            raise Conflict("Cannot delete non empty namespace")
        return left

    async def is_deleting(self, namespace: NamespaceName) -> bool:
        """Whether the namespace is gone or being deleted, as the store says: another broker may have begun to delete it
        a moment ago, and the cached policies do not tell yet.

        Ask this once a new topic is stored. A deletion stores its mark before it lists the topics that are left, so
        either it finds the new topic, or the broker that made the topic finds the mark."""
        found = await self._metadata.get(_namespace_path(namespace), fresh=True)
        return found is None or not found.value or NamespacePolicies.decode(found.value).deleted

    async def take_back(self, topic: TopicName) -> None:
        """Removes the record of a topic that was created a moment ago and never opened."""
        path = topic_record_path(topic)
        found = await self._metadata.get(path)
        if found is not None and found.value and not TopicRecord.decode(found.value).ledgers:
            with contextlib.suppress(VersionConflict):
                await self._metadata.delete(path, if_version=found.version)

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        """Removes an empty namespace; raises Conflict if it is not empty."""
        await self.begin_delete_namespace(namespace)
        await self._delete(_namespace_path(namespace), f"Namespace {namespace}")
        folder = f"{MANAGED_LEDGERS}/{namespace}/{Domain.SEGMENT.value}"
        await self._sweep(f"{folder}/{parent}" for parent in await self._metadata.children(folder))
        for root in (PARTITIONED, MANAGED_LEDGERS):
            await self._sweep((*(f"{root}/{namespace}/{d.value}" for d in Domain), f"{root}/{namespace}"))
        await self._sweep((scalable.namespace_path(namespace),))

    def on_policies_change(self, listener: PoliciesListener) -> Callable[[], None]:
        """Calls `listener` with (namespace, policies or None once deleted) at each change. Returns a function to
        stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- topics

    async def topic_names(
        self, namespace: NamespaceName, domains: Iterable[Domain] = (Domain.PERSISTENT,)
    ) -> list[TopicName]:
        """Every topic with a log in the namespace, including partitions."""
        return await self._names(MANAGED_LEDGERS, namespace, domains)

    async def segment_names(self, namespace: NamespaceName) -> list[TopicName]:
        """Every segment with a log, including those that no topic's record names any more."""
        folder = f"{MANAGED_LEDGERS}/{namespace}/{Domain.SEGMENT.value}"
        return [
            TopicName(Domain.SEGMENT, namespace, decode_local(parent), segment)
            for parent in await self._metadata.children(folder)
            for segment in await self._metadata.children(f"{folder}/{parent}")
        ]

    async def topics(self, namespace: NamespaceName) -> list[str]:
        return [str(name) for name in await self.topic_names(namespace)]

    async def topic_exists(self, topic: TopicName) -> bool:
        # Fresh: the topic may have been created through another broker a moment ago.
        return await self._last.exists(topic_record_path(topic))

    def note_topic(self, topic: TopicName) -> None:
        """The topic is open, so that it exists."""
        self._last.note(topic_record_path(topic), Versioned(b"", 0, 0, 0))

    async def scalable_names(self, namespace: NamespaceName) -> list[TopicName]:
        """Every stored scalable topic, whether or not this broker serves scalable topics."""
        folder = scalable.namespace_path(namespace)
        names = [
            TopicName(Domain.TOPIC, namespace, decode_local(child))
            for child in await self._metadata.children(folder)
        ]
        # A node without a value is a folder that a deleted topic left behind.
        records = [await self._metadata.get(scalable.topic_path(name)) for name in names]
        return [name for name, record in zip(names, records, strict=True) if record and record.value]

    # -- partitioned topics

    async def partitioned_names(
        self, namespace: NamespaceName, domains: Iterable[Domain] = CLASSIC_DOMAINS
    ) -> list[TopicName]:
        return await self._names(PARTITIONED, namespace, domains)

    async def partitions(self, topic: TopicName) -> int:
        """The number of partitions; 0 if the topic is not partitioned (or does not exist)."""
        found = await self._last.get(_partitioned_path(topic))
        return PartitionedTopic.decode(found.value).partitions if found else 0

    async def partitioned_topic(self, topic: TopicName) -> PartitionedTopic:
        return await self._get(_partitioned_path(topic), PartitionedTopic, f"Partitioned topic {topic}")

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Creates the record; the partitions themselves are topics that the caller creates."""
        if is_leaders(topic):
            raise Refused(f"{topic} is written by brokers only: it cannot be partitioned")
        if topic.is_partition:
            raise Refused(f"Partitioned topic name {topic} must not end in -partition-N")
        if partitions < 1:
            raise NotAcceptable("Number of partitions should be more than 0")
        await self.policies(topic.namespace)
        if await self.topic_exists(topic):
            raise Conflict(f"This topic already exists: {topic}")
        record = PartitionedTopic(partitions=partitions, properties=properties or {}, topic_id=new_topic_id())
        await self._put(_partitioned_path(topic), record, "This topic", create=True)
        if await self.is_deleting(topic.namespace):
            await self._metadata.delete(_partitioned_path(topic))
            raise NamespaceNotFound(topic.namespace)

    async def change_partitioned(
        self, topic: TopicName, change: Callable[[PartitionedTopic], PartitionedTopic]
    ) -> None:
        """Stores `change(record)`; `change` runs again whenever another writer was faster."""
        path = _partitioned_path(topic)
        while True:
            found = await self._metadata.get(path, fresh=True)
            if found is None:
                raise NotFound(f"Partitioned topic {topic} does not exist")
            after = change(PartitionedTopic.decode(found.value))
            with contextlib.suppress(VersionConflict):
                await self._metadata.put(path, msgspec.json.encode(after), if_version=found.version)
                return

    async def update_partitioned(self, topic: TopicName, partitions: int) -> int:
        """Raises the number of partitions and returns the former one; a lower number is refused."""
        path = _partitioned_path(topic)
        while True:
            found = await self._metadata.get(path, fresh=True)
            if found is None:
                raise Conflict(f"Topic {topic} is not a partitioned topic")
            before = PartitionedTopic.decode(found.value)
            if partitions < before.partitions:
                raise Unprocessable(
                    f"Number of partitions {partitions} must not be less than the present {before.partitions}"
                )
            after = msgspec.structs.replace(before, partitions=partitions)
            try:
                await self._metadata.put(path, msgspec.json.encode(after), if_version=found.version)
            except VersionConflict:
                continue
            return before.partitions

    async def delete_partitioned(self, topic: TopicName) -> None:
        await self._delete(_partitioned_path(topic), f"Partitioned topic {topic}")

    async def id_for(self, topic: TopicName) -> str:
        """The id for a classic topic about to be created: a partition gets that of its partitioned topic."""
        if topic.is_partition:
            found = await self._metadata.get(_partitioned_path(topic.base), fresh=True)
            if found is not None:
                return PartitionedTopic.decode(found.value).topic_id
        return new_topic_id()

    async def classic_id(self, topic: TopicName) -> str:
        """The id of a classic topic, partitioned or not; "" if it has none, or there is no such topic."""
        found = await self._metadata.get(_partitioned_path(topic), fresh=True)
        if found is not None:
            return PartitionedTopic.decode(found.value).topic_id
        found = await self._metadata.get(topic_record_path(topic), fresh=True)
        return TopicRecord.decode(found.value).topic_id if found is not None and found.value else ""

    # -- the store

    async def _names(self, root: str, namespace: NamespaceName, domains: Iterable[Domain]) -> list[TopicName]:
        names: list[TopicName] = []
        for domain in domains:
            children = await self._metadata.children(f"{root}/{namespace}/{domain.value}")
            for first in range(0, len(children), NAMES_PER_TURN):
                some = children[first : first + NAMES_PER_TURN]
                names += [TopicName(domain, namespace, decode_local(child)) for child in some]
                if len(some) == NAMES_PER_TURN:
                    # A hundred thousand names must not delay publishes.
                    await asyncio.sleep(0)
        return names

    async def _get(self, path: str, kind: type[T], what: str) -> T:
        found = await self._metadata.get(path, fresh=True)
        if found is None or not found.value:
            raise NotFound(f"{what} does not exist")
        return kind.decode(found.value)

    async def _create(self, path: str, value: bytes) -> None:
        """Creates the node; raises AlreadyExists if it exists, unless it is an unchanged default."""
        try:
            await self._metadata.create(path, value)
        except AlreadyExists:
            found = await self._metadata.get(path, fresh=True)
            if found is None or (found.value, found.version) != self._defaults.pop(path, None):
                raise
            with contextlib.suppress(VersionConflict):
                await self._metadata.put(path, value, if_version=found.version)
                return
            raise

    async def _put(self, path: str, value: JsonStruct, what: str, *, create: bool) -> None:
        try:
            if create:
                await self._create(path, msgspec.json.encode(value))
                return
            found = await self._metadata.get(path, fresh=True)
            if found is None:
                raise NotFound(f"{what} does not exist")
            await self._metadata.put(path, msgspec.json.encode(value), if_version=found.version)
        except AlreadyExists:
            raise Conflict(f"{what} already exists") from None
        except VersionConflict:
            raise Conflict(f"{what} was changed by another request at the same time; try again") from None

    async def _delete(self, path: str, what: str) -> None:
        if not await self._metadata.delete(path):
            raise NotFound(f"{what} does not exist")

    async def _sweep(self, paths: Iterable[str]) -> None:
        """Removes folders that are empty by now; one that is not empty is in use by another writer."""
        for path in paths:
            with contextlib.suppress(NotEmpty):
                await self._metadata.delete(path)

    async def _read_policies(self, namespace: NamespaceName) -> NamespacePolicies | None:
        found = await self._metadata.get(_namespace_path(namespace), fresh=True)
        return NamespacePolicies.decode(found.value) if found and found.value else None

    # -- the cache

    async def _follow(self, watch: Watch) -> None:
        async for changes in watch:
            try:
                await self._refresh(changes)
            except Exception:
                # A store that did not answer announces everything again once it does; a record that cannot be read
                # leaves the last good policies in force.
                log.exception("reading changed policies failed, the old ones stay in force")

    async def _refresh(self, changes: Changes) -> None:
        paths = {_namespace_path(namespace): namespace for namespace in self._policies}
        for path, namespace in paths.items():
            if changes.everything or path in changes.paths:
                await self._reread(namespace)
        self._changes += 1

    async def _reread(self, namespace: NamespaceName) -> None:
        while True:
            changes = self._changes
            policies = await self._read_policies(namespace)
            # An update of our own may have overtaken the read: never cache an older value after a newer one.
            if changes == self._changes:
                self._learn(namespace, policies)
                return

    def _learn(self, namespace: NamespaceName, policies: NamespacePolicies | None) -> None:
        self._changes += 1
        if policies is not None and policies.deleted:
            policies = None
        if self._policies.get(namespace) == policies:
            return
        if policies is None:
            del self._policies[namespace]
        elif self._watch is not None:
            self._policies[namespace] = policies
        for listener in tuple(self._listeners):
            listener(namespace, policies)


def _tenant_path(name: str) -> str:
    return f"{TENANTS}/{check_entity('tenant', name)}"


def _namespace_path(namespace: NamespaceName) -> str:
    return f"{NAMESPACES}/{namespace}"


def _partitioned_path(topic: TopicName) -> str:
    return f"{PARTITIONED}/{topic.storage_path}"
