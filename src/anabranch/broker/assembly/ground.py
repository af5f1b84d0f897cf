"""What the parts of a broker are built on: its stores, its catalog, the owners of topics, links to other brokers.

Only the modules that put a broker together take the whole of it. A part takes what it uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.broker.assembly.balance_parts import BalanceParts
from anabranch.broker.balance.balancer import Balancer
from anabranch.broker.catalog.followed_bundles import FollowedBundles
from anabranch.broker.catalog.hashed_owners import HashedOwners
from anabranch.broker.catalog.isolation import IsolationStore
from anabranch.broker.catalog.owners import BrokerAddress, Owners, SharedOwners, SoleOwner
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.load_managers import BALANCED
from anabranch.broker.peers.directory import RegisteredPeers, peer_id
from anabranch.broker.peers.handshake import PeerIdentity
from anabranch.broker.peers.link import PeerTls
from anabranch.broker.peers.peers import Peers
from anabranch.broker.runtime.background import Background
from anabranch.broker.security.rights import Rights
from anabranch.controller.records import Records
from anabranch.metadata.port import MetadataStore
from anabranch.model.position import Incarnation
from anabranch.storage.port import LogStore


class Ground:
    def __init__(
        self,
        current_config: Callable[[], BrokerConfig],
        metadata: MetadataStore,
        log_store: LogStore,
        resources: Resources,
        me: BrokerAddress,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        random_bytes: Callable[[int], bytes],
        rights: Rights,
        *,
        server_version: str,
        owners: Owners | None,
        in_cluster: bool,
        brokers_expected: int,
    ) -> None:
        """`in_cluster`: the broker shares the topics with those that are registered in the same metadata. Else it owns
        everything, or what `owners` says."""
        config = current_config()
        self.current_config = current_config
        self.metadata = metadata
        self.log = log_store
        self.resources = resources
        self.me = me
        self.loop = loop
        self.now_ms = now_ms
        self.started_ms = now_ms()
        self.background = Background(loop)
        self.rights = rights
        self.server_version = server_version
        self.is_one_of_several = in_cluster or owners is not None
        # Names this start of the broker: the next one on the same address has another.
        self.run_id = random_bytes(8).hex()
        self.registry = BrokerRegistry(
            metadata,
            BrokerRegistration(
                me,
                self.run_id,
                log_store.incarnation,
                server_version,
                self.started_ms,
                has_non_persistent_topics=config.enable_non_persistent_topics,
            ),
        )
        self.records = Records(metadata)
        self.schemas = Schemas(metadata)
        self.topic_policies = TopicPolicyStore(metadata)
        self.isolation = IsolationStore(metadata, resources.cluster)
        self.peers = Peers(
            PeerIdentity(peer_id(me.service_url), self.run_id),
            metadata,
            RegisteredPeers(metadata),
            random_bytes,
            tls=PeerTls(
                config.broker_client_tls_enabled,
                config.broker_client_trust_certs_file_path,
                config.broker_client_certificate_file_path,
                config.broker_client_key_file_path,
                config.tls_hostname_verification_enabled,
            ),
            server_version=server_version,
        )
        # Where several brokers share the topics, one of these says who owns what.
        self.hashed: HashedOwners | None = None
        self.balance: BalanceParts | None = None
        if in_cluster and owners is None:
            if config.load_manager_class_name == BALANCED:
                self.balance = BalanceParts(
                    metadata,
                    self.registry,
                    self.peers,
                    resources,
                    self.isolation,
                    current_config,
                    now_ms,
                    loop.time,
                    random_bytes,
                    brokers_expected=brokers_expected,
                )
            else:
                self.hashed = HashedOwners(metadata, self.registry)
        self.balancer: Balancer | None = None if self.balance is None else self.balance.balancer
        self.shared: SharedOwners | None = self.hashed if self.balancer is None else self.balancer.owners
        found = self.hashed if self.balancer is None else self.balancer.owners
        # The boundaries of all bundles, as the owners follow them.
        self.ranges: FollowedBundles | None = None if found is None else found.bundles
        self.owners: Owners = owners or self.shared or SoleOwner(me)

    @property
    def service_url(self) -> str:
        return self.me.service_url

    @property
    def http_url(self) -> str:
        return self.me.http_url

    def writer_of(self, incarnation: Incarnation) -> str | None:
        """The id of the living broker that writes the log of that incarnation."""
        found = self.registry.by_incarnation(incarnation)
        return None if found is None else found.address.id
