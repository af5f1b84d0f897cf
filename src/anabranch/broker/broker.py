"""One broker: the topics it has open, the connections it serves, and the upkeep of both.

A topic is opened at its first use and stays open until it is deleted, unloaded or loses its log. Opening fences the
former owner. Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial

import anabranch
from anabranch.broker.admin.across.linked import LinkedBrokers
from anabranch.broker.admin.across.unstored import unstored_elsewhere
from anabranch.broker.admin.elsewhere import Alone, Elsewhere
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.catalog.dynamic_config import DynamicConfig
from anabranch.broker.catalog.hashed_owners import HashedOwners
from anabranch.broker.catalog.owners import BrokerAddress, Owners, SoleOwner
from anabranch.broker.catalog.registry import BrokerRegistration, BrokerRegistry
from anabranch.broker.catalog.resources import MANAGED_LEDGERS, NotFound, Resources
from anabranch.broker.catalog.schemas import Schemas
from anabranch.broker.catalog.topic_policies import TopicPolicyStore
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.commands import Greeting, Requests
from anabranch.broker.connection.connections import ServedConnections
from anabranch.broker.connection.consumer_commands import ConsumerCommands
from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.connection.lookup_commands import LookupCommands
from anabranch.broker.connection.producer_commands import ProducerCommands
from anabranch.broker.connection.revocation import Revocation
from anabranch.broker.connection.schema_commands import SchemaCommands
from anabranch.broker.connection.session import ClientSession, SessionSettings
from anabranch.broker.connection.sign_in import SignIn
from anabranch.broker.connection.topic_lists import TopicLists
from anabranch.broker.errors import NotAllowedError, TopicNotFoundError
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.observe import metrics
from anabranch.broker.observe.log_probe import LogProbe
from anabranch.broker.observe.loop_share import LoopShare
from anabranch.broker.peers.directory import RegisteredPeers, peer_id
from anabranch.broker.peers.handshake import PeerIdentity
from anabranch.broker.peers.link import PeerTls
from anabranch.broker.peers.peers import Peers
from anabranch.broker.peers.remote_leaders import RemoteLeaders
from anabranch.broker.peers.remote_rest import RemoteRest
from anabranch.broker.peers.remote_scalable import RemoteClassic, RemoteHistory
from anabranch.broker.peers.remote_segments import PeerSegments, ServedSegments
from anabranch.broker.peers.remote_sessions import RemoteSessions
from anabranch.broker.peers.topic_moves import CallsOfMoves, ServedMoves, TopicMoves
from anabranch.broker.policy.effective import EffectivePolicies, LatestEffective, effective
from anabranch.broker.policy.limits import TopicLimits, limits_of
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.policy.retention import AT_ONCE, TrimPace
from anabranch.broker.runtime.background import Background, Work
from anabranch.broker.runtime.loop_watch import TurnTimes
from anabranch.broker.scalable.classic import ClassicTopics, controller_settings, scalable_topics
from anabranch.broker.scalable.load.history_topic import history_keep
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.broker.scalable.load.scaling import BrokerScaling
from anabranch.broker.scalable.naming import TopicNaming
from anabranch.broker.scalable.owner.registration import Registration
from anabranch.broker.scalable.owner.segments import RoutedSegments, SegmentOwner, unreachable
from anabranch.broker.scalable.owner.subscription_limits import SubscriptionLimits
from anabranch.broker.scalable.owner.sweep import sweep_leftovers
from anabranch.broker.scalable.sessions.commands import ScalableCommands
from anabranch.broker.scalable.sessions.consumer_sessions import ConsumerSessions
from anabranch.broker.security import grants
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.rights import AllowAll, Authorizer, Rights
from anabranch.broker.topic.services import TopicServices
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.broker.topics.disk_share import DiskShare
from anabranch.broker.topics.handing_over import HandOver
from anabranch.broker.topics.inactive import InactiveTopicSweep
from anabranch.broker.topics.open_topics import OpenTopics
from anabranch.broker.topics.write_upkeep import SWEEP_S, WriteUpkeep
from anabranch.broker.ui.recorder import Recorder
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.ports import Segments
from anabranch.controller.records import Records
from anabranch.controller.service import ScalableTopics
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import MetadataError, VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.histogram import Histogram, Recent
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.position import Incarnation, Position
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.model.segments import SegmentId, segment_of
from anabranch.storage.core.topic_record import TopicRecord, namespace_of
from anabranch.storage.port import LiveLedger, LogError, LogStore
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.living import living_in
from anabranch.storage.topic.taking_over import finish_delete

log = logging.getLogger(__name__)

PRODUCER_NAMES_PATH = "/counters/producer-name"
RATES_SECONDS = 10.0
# An owner that writes nothing notices within this time that another broker has fenced its ledgers.
FENCES_SECONDS = 5.0
# How often assignments to brokers that are gone are looked for.
DROP_STALE_S = 20.0
# How long a broker that is about to end may take to give its topics away.
DRAIN_MAX_S = 10.0
# How often the event loop's delay is measured.
LAG_S = 0.25
# Pulsar's buckets for this figure, in seconds.
QUOTA_CHECK_BOUNDS_S = (5, 10, 30, 60, 300)


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        log_store: LogStore,
        resources: Resources,
        *,
        service_url: str,
        http_url: str,
        now_ms: Callable[[], int],
        service_url_tls: str = "",
        http_url_tls: str = "",
        authentication: Authentication | None = None,
        authorizer: Authorizer | None = None,
        one_port: Addresses | None = None,
        owners: Owners | None = None,
        in_cluster: bool = False,
        remote_segments: Callable[[BrokerAddress], Segments] | None = None,
        moves: CallsOfMoves | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`config` may change while the broker runs, as far as its settings allow; everything else stays.

        `in_cluster`: it shares the topics with the other brokers that are registered in the same metadata. Else it owns
        everything, or what `owners` says. `one_port` has the only addresses that clients can reach, if they are those
        of all brokers."""
        self.config = config
        self.metadata = metadata
        self.log = log_store
        self.resources = resources
        self.service_url, self.service_url_tls = service_url, service_url_tls
        self.http_url, self.http_url_tls = http_url, http_url_tls
        # Names this start of the broker: the next one on the same address has another.
        self.run_id = random_bytes(8).hex()
        self.server_version = f"Anabranch {anabranch.__version__}"
        self.now_ms = now_ms
        self.started_ms = now_ms()
        self.loop = asyncio.get_running_loop()
        self.background = Background(self.loop)
        self.rights = Rights(authorizer or AllowAll())
        self._listeners = listeners.read(config.advertised_listeners, config.internal_listener_name)
        self._build_catalog(owners, in_cluster=in_cluster)
        self._build_peers(random_bytes, moves, elsewhere)
        self._build_connections()
        self._build_new_topics()
        self._build_scalable_topics(remote_segments)
        self._build_topics(has_one_port=one_port is not None)
        self._build_commands(authentication, one_port)
        self._build_figures()
        self._producer_names = iter(range(0))
        self.is_closing = False
        self._stop_watching_session: Callable[[], None] = lambda: None
        # Done once the log has failed: the broker serves nothing more and its process must be restarted.
        self.failed: asyncio.Future[LogError] = self.loop.create_future()

    # -- parts, each built of those before it

    def _current_config(self) -> BrokerConfig:
        return self.config

    def _build_catalog(self, owners: Owners | None, *, in_cluster: bool) -> None:
        """The stores of everything besides messages, and the owners of topics."""
        me = BrokerAddress(
            self.service_url, self.http_url, self.service_url_tls, self.http_url_tls, self._listeners
        )
        self.is_one_of_several = in_cluster or owners is not None
        self.registry = BrokerRegistry(
            self.metadata,
            BrokerRegistration(
                me,
                self.run_id,
                self.log.incarnation,
                self.server_version,
                self.started_ms,
                has_non_persistent_topics=self.config.enable_non_persistent_topics,
            ),
        )
        self.shared = HashedOwners(self.metadata, self.registry) if in_cluster and owners is None else None
        self.owners: Owners = owners or self.shared or SoleOwner(me)
        self.records = Records(self.metadata)
        self.schemas = Schemas(self.metadata)
        self.topic_policies = TopicPolicyStore(self.metadata)
        self.dynamic_config = DynamicConfig(self.metadata, self.config, self._reconfigure)
        self.write_records = WriteRecords(self.metadata, self.config.hidden_writes_lease_ms)

    def _build_peers(
        self,
        random_bytes: Callable[[int], bytes],
        moves: CallsOfMoves | None,
        elsewhere: Elsewhere | None,
    ) -> None:
        """The links to other brokers."""
        config = self.config
        self.peers = Peers(
            PeerIdentity(peer_id(self.service_url), self.run_id),
            self.metadata,
            RegisteredPeers(self.metadata),
            random_bytes,
            tls=PeerTls(
                config.broker_client_tls_enabled,
                config.broker_client_trust_certs_file_path,
                config.broker_client_certificate_file_path,
                config.broker_client_key_file_path,
                config.tls_hostname_verification_enabled,
            ),
            server_version=self.server_version,
        )
        remote = RemoteRest(self.peers)
        others = LinkedBrokers(self.registry, remote) if self.is_one_of_several else Alone()
        self.elsewhere: Elsewhere = elsewhere or others
        self.moves = moves or TopicMoves(self.peers, self._writer_of)

    def _writer_of(self, incarnation: Incarnation) -> str | None:
        """The id of the living broker that writes the log of that incarnation."""
        found = self.registry.by_incarnation(incarnation)
        return None if found is None else found.address.id

    def _build_connections(self) -> None:
        """The table of connections, still empty, and their settings."""
        config = self.config
        self.connections = ServedConnections(
            self.loop,
            self.log,
            ConnectionLimits(config.broker_max_connections, config.broker_max_connections_per_ip),
            unconfirmed_bytes_max=config.max_pending_publish_bytes,
        )
        self.sessions = self.connections.sessions
        self._session_settings = SessionSettings(
            message_bytes_max=config.max_message_size,
            keep_alive_s=config.keep_alive_interval_seconds,
            write_buffer_bytes=config.connection_write_buffer_bytes,
            unanswered_publishes_max=config.max_pending_publish_requests_per_connection,
        )

    def _build_new_topics(self) -> None:
        """The creation of topics, and non-persistent topics."""
        self.new_topics = NewTopics(
            self.resources,
            self.records,
            self.metadata,
            self._current_config,
            self.now_ms,
            self._is_open_unstored,
        )
        self.non_persistent = NonPersistentTopics(
            self.resources, self.owners, self.new_topics, self._current_config, self.loop, self.now_ms
        )

    def _segments_at(self, owner: BrokerAddress) -> Segments:
        """The segments of another broker."""
        return PeerSegments(self.peers, owner.service_url) if self.is_one_of_several else unreachable(owner)

    def _build_scalable_topics(self, remote_segments: Callable[[BrokerAddress], Segments] | None) -> None:
        """Scalable topics and their segments; some parts are None while scalable topics are turned off."""
        # What this broker does to the segments that it owns, and the same for every segment at any broker.
        self.segment_owner = SegmentOwner(self.metadata, self, self.new_topics, self.schemas, self.now_ms)
        self.segments: Segments = RoutedSegments(
            self.owners, self.segment_owner, remote_segments or self._segments_at
        )
        ServedSegments(self.segment_owner).serve(self.peers)
        self.subscription_limits = SubscriptionLimits(self.records, self._limits)
        self.scalable: ScalableTopics | None = None
        self.remote_sessions: RemoteSessions | None = None
        self.registration: Registration | None = None
        self.scaling: BrokerScaling | None = None
        if not self.config.scalable_topic_enabled:
            return
        far_classic, far_history = (
            (RemoteClassic(self.peers, self.owners), RemoteHistory(self.peers))
            if self.is_one_of_several
            else (None, None)
        )
        classic = ClassicTopics(self.resources, self, far_classic)
        candidates = RemoteLeaders(self.peers, self.owners) if self.is_one_of_several else None
        self.scalable = scalable_topics(
            self.metadata,
            self.segments,
            self.service_url,
            controller_settings(self.config, self.resources, self.topic_policies),
            classic,
            candidates,
        )
        if candidates is not None:
            candidates.serve(self.scalable)
        if self.is_one_of_several:
            self.remote_sessions = RemoteSessions(
                self.peers, self.owners, self.scalable, self.opened, self.background
            )
        self.registration = Registration(
            self.records, self.scalable.feed, self.segments, self.subscription_limits
        )
        self.scaling = BrokerScaling(
            self.config,
            self.scalable,
            self.metadata,
            self.resources,
            self.owners,
            self,
            self.new_topics,
            self.schemas,
            self.background,
            self.now_ms,
            self.loop.time,
            service_url=self.service_url,
            history_owner=far_history,
        )
        if far_classic is not None and far_history is not None:
            far_classic.serve(classic)
            far_history.serve(self.scaling.history)

    def _build_topics(self, *, has_one_port: bool) -> None:
        """The parts that open, keep and sweep topics."""
        self.topic_services = TopicServices(
            loop=self.loop,
            now_ms=self.now_ms,
            config=self._current_config,
            metadata=self.metadata,
            log_store=self.log,
            ledger_ids=LedgerIds(self.metadata),
            policies=self.topic_policies,
            effective=LatestEffective(self._current_config),
            write_records=self.write_records,
            rights=self.rights,
            background=self.background,
            compacting=asyncio.Semaphore(1),
            http_url=self.http_url,
            registration=self.registration,
            progressed=self.connections.progressed,
            segment_progressed=self.on_segment_progress,
            part_of=self.part_of,
            last_word=self.moves.last_word,
            trim_pace=self._trim_pace(),
        )
        self.open_topics = OpenTopics(
            self.topic_services,
            self.resources,
            self.records,
            self.owners,
            self.new_topics,
            own_keep=lambda name: history_keep(self.config, name),
            segment_opened=self._segment_opened,
        )
        self.hand_over = HandOver(
            self.open_topics,
            self.owners,
            self.log,
            self.background,
            self.moves.tell_open,
            names_owners=not has_one_port,
        )
        ServedMoves(self.hand_over).serve(self.peers)
        self.write_upkeep = WriteUpkeep(
            self.open_topics, self.write_records, self.metadata, self.owners, self._current_config
        )
        self.inactive_topics = InactiveTopicSweep(self.open_topics, self.delete_topic, self.now_ms)
        self.disk_share = DiskShare(self.topic_services, self.open_topics)

    def _trim_pace(self) -> TrimPace:
        if not self.is_one_of_several:
            return AT_ONCE
        return TrimPace(self.config.log_trim_bytes, self.config.log_trim_seconds)

    def _build_commands(self, authentication: Authentication | None, one_port: Addresses | None) -> None:
        """The commands of clients, their sign-in, and the revocation of their rights."""
        self.has_one_port = has_one_port = one_port is not None
        config, rights, scalable = self.config, self.rights, self.scalable
        self.sign_in = SignIn(
            authentication,
            self.now_ms,
            server_version=self.server_version,
            answer_max_s=config.authentication_refresh_check_seconds,
            has_rights=config.authorization_enabled,
            proxy_roles=config.proxy_roles,
        )
        naming = TopicNaming(scalable, self.non_persistent, self.new_topics, self.owners, self.check_lookup)
        schemas = SchemaCommands(
            naming, rights, self.schemas, self.policies, self.check_scalable, self.attachable, self.now_ms
        )
        registered = ConsumerSessions(
            scalable,
            self.metadata,
            rights,
            self.subscription_limits,
            self.opened,
            self.loop,
            service_url=self.service_url,
            elsewhere=self.remote_sessions,
        )
        if self.remote_sessions is not None:
            self.remote_sessions.serve(registered.departures)
        self.requests = Requests(
            Greeting(
                self.server_version,
                config.scalable_topic_enabled,
                one_port.http_url if one_port is not None else self.http_url,
                self.http_url_tls,
                has_one_port,
            ),
            self.sign_in,
            LookupCommands(naming, rights, self.addresses, has_one_port=has_one_port),
            ProducerCommands(
                naming, rights, schemas, self.log, self.attachable, self.new_producer_name, self.now_ms
            ),
            ConsumerCommands(
                naming,
                rights,
                schemas,
                registered,
                self.attachable,
                metadata_bytes_max=config.max_consumer_metadata_size,
            ),
            schemas,
            TopicLists(
                self.loop,
                self.metadata,
                self.resources,
                rights,
                self.non_persistent,
                self._unstored_elsewhere,
            ),
            ScalableCommands(
                scalable,
                registered,
                self.sessions,
                rights,
                self.resources,
                self.new_topics,
                self.owners,
                self.registry,
                default_segments=config.scalable_topic_default_segments,
                frame_bytes_max=config.max_message_size,
            ),
            self.peers.acceptor,
        )
        self.revocation = Revocation(
            self.metadata, rights, self.background, self.sessions, registered, self.requests.topic_lists
        )

    def _build_figures(self) -> None:
        """The measurements, for metrics and for the page."""
        self.loop_lag_s = 0.0
        self.loop_lags = Histogram()
        self.turns = TurnTimes()
        self.log_probe = LogProbe(self.log, self.topic_services.ledger_ids, self.loop.time)
        self.loop_share = LoopShare(self.loop.time, time.thread_time)
        self.quota_check_times = Histogram(QUOTA_CHECK_BOUNDS_S)
        self.publish_times = Recent(self.log.histograms().get("append", Histogram()))
        self.recorder = Recorder(self.loaded, self.scalable, self.now_ms, self.loop.time)
        self.page = PageSources(
            self.config,
            self.service_url,
            self.now_ms,
            self.metadata,
            self.resources,
            self.registry,
            self.rights,
            self.recorder,
            self.loaded,
            self.sessions,
            lambda: self.loop_lag_s,
            self.scalable,
            self.scaling,
            self.owners,
            self.elsewhere,
        )

    def _segment_opened(self, topic: TopicName) -> None:
        if self.scalable is not None:
            self.scalable.touch(topic)

    def addresses(self, listener: str = "") -> Addresses:
        """The addresses for clients that name this listener, or none. NotAllowedError if there is no such listener."""
        return self.registry.me.address.at(listener)

    def new_session(self) -> ClientSession:
        """A session for a connection that is being accepted."""
        return ClientSession(self.loop, self._session_settings, self.connections, self.requests)

    # -- life

    async def start(self) -> None:
        await self.registry.start()
        if self.is_one_of_several:
            await self.peers.start()
            self.registry.on_change(self._registrations_changed)
            self._registrations_changed()
        if self.shared is not None:
            await self.shared.start()
            self.background.every(DROP_STALE_S, self.shared.drop_stale)
        await self.dynamic_config.start()
        await self.topic_policies.start()
        self.topic_policies.on_change(self._topic_policies_changed)
        if self.scalable is not None:
            await self.scalable.start()
            assert self.scaling is not None
            self.scaling.start()
            self.owners.on_change(self.requests.scalable.owners_changed)
            scalable = self.scalable
            self.owners.on_change(
                lambda bundles: scalable.owners_changed({bundle.namespace for bundle in bundles})
            )
        self.owners.on_change(self._owners_changed)
        self._stop_watching_session = self.metadata.session.on_change(self.open_topics.session_changed)
        self.resources.on_policies_change(self._policies_changed)
        self.log.on_accepting_change(self._accepting_changed)
        self.log.on_end(self._log_ended)
        self.log.ask(living_in(self.metadata))
        self.background.until_done(self._tell_log_what_lives)
        self.background.every(FENCES_SECONDS, self._look_for_fences)
        self.background.every(self.config.keep_alive_interval_seconds / 3, self.connections.probe)
        self.background.every(self.config.authentication_refresh_check_seconds, self._check_identities)
        if not self.rights.are_open:
            self.background.until_done(self.revocation.follow_tenants)
        self.background.every(self.config.retention_check_interval_in_seconds, self._maintain_topics)
        interval = self.config.broker_service_compaction_monitor_interval_in_seconds
        self.background.every(interval, self._check_compaction)
        self.background.every(self.config.backlog_quota_check_interval_in_seconds, self.check_quotas)
        self.background.every(
            self.config.broker_delete_inactive_topics_frequency_seconds, self.inactive_topics.sweep
        )
        self.background.every(RATES_SECONDS, self._update_rates)
        self.background.until_done(self.write_upkeep.follow)
        self.background.until_done(self.requests.topic_lists.follow)
        self.background.every(self.config.hidden_writes_check_interval_seconds, self.write_upkeep.look)
        self.background.every(SWEEP_S, self.write_upkeep.sweep)
        self.background.every(self.config.scalable_topic_load_report_interval, self.recorder.sample)
        self.background.begin(self._measure_lag())

    def _registrations_changed(self) -> None:
        self.peers.living({name: found.run_id for name, found in self.registry.living().items()})

    @property
    def autoscaler(self) -> AutoScaler:
        """NotAllowedError while scalable topics are turned off."""
        return self._scaling_on().scaler

    @property
    def load_history(self) -> LoadHistory:
        """What flowed through the segments open here in the last hour."""
        return self._scaling_on().reporter.history

    def _scaling_on(self) -> BrokerScaling:
        if self.scaling is None:
            raise NotAllowedError("scalable topics are turned off here: set scalableTopicEnabled=true")
        return self.scaling

    async def drain(self) -> None:
        """Gives the topics to the other brokers, before this one is closed. What could not be given away in time is
        closed like everything else."""
        if not self.is_one_of_several or self.log.ended is not None or len(self.registry.living()) < 2:
            return
        log.info("giving %d topics to other brokers", len(self.loaded()))
        try:
            async with asyncio.timeout(DRAIN_MAX_S):
                await self.registry.drain()
                await self.hand_over.give_away()
        except (AnabranchError, TimeoutError) as error:
            log.warning("%d topics were not given away: %r", len(self.loaded()), error)

    async def close(self, *, others_stay: bool = True) -> None:
        """Ends cleanly: accepted messages are confirmed and answered, then every connection is closed. Other brokers of
        the cluster that stay get this one's topics first."""
        self.is_closing = True
        if self.shared is not None and others_stay:
            # The others own everything from now on: the clients of topics that are closed find them there.
            with contextlib.suppress(MetadataError):
                await self.registry.drain()
        self.open_topics.stop()
        self._stop_watching_session()
        await self.background.close()
        await self.requests.scalable.close()
        if self.scaling is not None:
            await self.scaling.close()
        if self.scalable is not None:
            await self.scalable.close()
        for topic in list(self.loaded().values()):
            await topic.close(self.hand_over.moved_to(topic.name))
        self.non_persistent.close_those()
        for session in list(self.sessions):
            session.close()
        await self.peers.close()
        await self.topic_policies.close()
        await self.dynamic_config.close()
        if self.shared is not None:
            await self.shared.close()
        await self.registry.close()
        await self.log_probe.close()
        await self.log.close()

    async def _tell_log_what_lives(self) -> None:
        live: list[LiveLedger] = []
        records: dict[str, TopicRecord] = {}
        for path, found in await self.metadata.scan(MANAGED_LEDGERS):
            record = TopicRecord.decode(found.value)
            if record.is_deleting:
                await finish_delete(path, record, found.version, self.log, self.metadata)
                continue
            records[path] = record
            live += record.live(path, namespace_of(path))
        self.log.retain(live)
        await sweep_leftovers(self.metadata, self.owners, self.segment_owner, records)

    def _log_ended(self) -> None:
        """The log has ended, and so has this broker: no client can publish or subscribe here any more."""
        if self.log.ended is not None and not self.is_closing and not self.failed.done():
            self.failed.set_result(self.log.ended)

    # -- topics

    def loaded(self) -> Mapping[TopicName, Topic]:
        return self.open_topics.all()

    def opened(self, name: TopicName) -> Topic | None:
        """The topic, if it is open."""
        return self.open_topics.get(name)

    async def topic(
        self,
        name: TopicName,
        *,
        create: bool = False,
        made_for: ScalableTopic | None = None,
        for_deletion: bool = False,
    ) -> Topic:
        """The open topic; opened or, if allowed, created first. One opening serves all callers that wait for it.

        `made_for` creates a missing segment of the topic with that record: only its owner may pass it. `for_deletion`
        also opens topics that may not be used any more: leftovers, and topics of a namespace that is being deleted.
        """
        return await self.open_topics.topic(name, create=create, made_for=made_for, for_deletion=for_deletion)

    async def attachable(self, name: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """The topic that producers and consumers of that name attach to."""
        if name.domain is Domain.NON_PERSISTENT:
            return await self.non_persistent.open(name, create=create)
        return await self.topic(name, create=create)

    async def _is_open_unstored(self, name: TopicName) -> bool:
        """Whether a non-persistent topic of that name is open, here or at another broker."""
        if self.non_persistent.opened(name) is not None:
            return True
        return self.elsewhere.has_others and str(name) in await self._unstored_elsewhere(name.namespace)

    async def _unstored_elsewhere(self, namespace: NamespaceName) -> list[str]:
        return await unstored_elsewhere(self.elsewhere, namespace)

    async def delete_topic(
        self, name: TopicName, *, force: bool = False, if_unused: Callable[[Topic], bool] | None = None
    ) -> None:
        """Refused while clients use the topic, unless forced; `if_unused` is another check of that."""
        topic = await self.topic(name)
        await topic.delete(force=force, if_unused=if_unused)
        if name.is_classic and not name.is_partition:
            await self.forget_topic(name)

    async def forget_topic(self, name: TopicName) -> None:
        """Removes what is stored about a deleted topic, partitioned or not, besides its log: it may be created
        again."""
        await self.schemas.delete(name)
        await self.topic_policies.forget(name)
        await self.records.remove_classic(scalable_name(name))
        await self.forget_grants(name)

    async def forget_grants(self, name: TopicName) -> None:
        """Removes the grants on a deleted topic."""
        # A namespace that is being deleted loses all its grants.
        with contextlib.suppress(NotFound):
            policies = await self.resources.policies(name.namespace)
            if grants.forget_topic(policies, name) is not policies:
                await self.resources.update_policies(
                    name.namespace, lambda found: grants.forget_topic(found, name)
                )

    async def discard_topic(self, name: TopicName) -> None:
        """Deletes what is stored under that name, if anything, even if it is in use or may not be used any more."""
        while await self.resources.topic_exists(name):
            try:
                topic = await self.topic(name, for_deletion=True)
            except TopicNotFoundError:
                # Its deletion began before.
                await self.finish_deleting(name)
                return
            if not topic.is_closed:
                await topic.delete(force=True)

    async def finish_deleting(self, name: TopicName) -> None:
        """Completes a deletion that was interrupted: the name is free again."""
        await self.open_topics.finish_deleting(name)

    async def unload_topic(self, name: TopicName) -> None:
        """Closes the topic; its clients reconnect and open it again."""
        topic = await self.topic(name)
        await topic.close()

    async def terminate_topic(self, name: TopicName) -> Position:
        return await (await self.topic(name)).terminate()

    async def skip_damage(self, name: TopicName) -> int:
        """Skips damaged entries where a reader of this topic has met them; returns how many were skipped."""
        return await (await self.topic(name)).skip_damage()

    async def topics(self, namespace: NamespaceName) -> list[str]:
        await self.resources.policies(namespace)
        return await self.resources.topics(namespace)

    async def check_lookup(self, name: TopicName) -> None:
        """Raises unless this broker may be named as the owner of that topic."""
        await self.resources.policies(name.namespace)
        if (
            name.domain is Domain.SEGMENT
            and not self.open_topics.is_opening(name)
            and not await self.resources.topic_exists(name)
        ):
            raise TopicNotFoundError(f"{name} does not exist")

    async def check_scalable(self, name: TopicName) -> None:
        """TopicNotFoundError unless there is a scalable topic of that name."""
        if await self.records.get(name) is None:
            raise TopicNotFoundError(f"{name} does not exist")

    async def has_scalable(self, name: TopicName) -> bool:
        """Whether there is a scalable topic of that name, given in any domain."""
        return await self.records.get(scalable_name(name)) is not None

    async def part_of(self, name: TopicName, record: TopicRecord) -> str:
        """The id of the topic that the log with that record is a partition of at present; "" if there is none.

        The log itself may have another id: it was created before the partitioned topic, or remained from a former
        one."""
        if not name.is_partition or await self.resources.classic_id(name) != record.topic_id:
            return ""
        scalable = await self.records.get(name.base)
        if scalable is not None:
            return scalable.layout.topic_id
        return (
            await self.resources.classic_id(name.base) if await self.resources.partitions(name.base) else ""
        )

    async def new_producer_name(self) -> str:
        for number in self._producer_names:
            return f"{self.config.cluster_name}-{number}"
        self._producer_names = iter(await self.metadata.next_ids(PRODUCER_NAMES_PATH, 1000))
        return await self.new_producer_name()

    def _policies_changed(self, namespace: NamespaceName, policies: NamespacePolicies | None) -> None:
        if policies is not None:
            for name, topic in self.loaded().items():
                if name.namespace == namespace:
                    topic.apply_policies(policies)
            self.non_persistent.policies_changed(namespace, policies)
        else:
            self.non_persistent.close_those(namespace)
        self.revocation.namespace_changed(namespace)

    def _topic_policies_changed(self, changed: TopicName) -> None:
        for name, topic in self.loaded().items():
            if name.base == changed:
                topic.in_force.changed()

    async def policies(self, topic: TopicName) -> EffectivePolicies:
        of_namespace = await self.resources.policies(topic.namespace)
        return effective(self.config, self.topic_policies.over(of_namespace, topic))

    async def _limits(self, topic: TopicName) -> TopicLimits:
        return limits_of(self.config, await self.policies(topic))

    def _reconfigure(self, config: BrokerConfig) -> None:
        self.config = config
        for topic in self.loaded().values():
            topic.in_force.changed()
        self.non_persistent.config_changed()

    async def check_quotas(self) -> None:
        """Checks the backlog of each open topic, and applies its quotas."""
        started = self.loop.time()
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                await self._guarded(topic, topic.quotas.check)
        self.quota_check_times.observe(self.loop.time() - started)

    def _owners_changed(self, bundles: frozenset[BundleName]) -> None:
        self.hand_over.owners_changed(bundles)
        self.non_persistent.owners_changed(bundles, self.hand_over.moved_to)

    def on_segment_progress(self, name: TopicName) -> None:
        """A subscription has reached the end of this sealed topic, or moved back: its controller checks again."""
        if self.scalable is None:
            return
        if name.domain is Domain.SEGMENT:
            topic, _, number = segment_of(name)
        else:
            # Classic topics become segments in the order of their partitions.
            topic, number = scalable_name(name.base), SegmentId(max(0, name.partition_index))
        controller = self.scalable.controllers.get(topic)
        if self.remote_sessions is None or (controller is not None and controller.is_leader):
            self.scalable.segment_progress(topic, number)
        else:
            self.remote_sessions.progressed(topic, name, number)

    async def _look_for_fences(self) -> None:
        """A topic without publishers would stay open here after another broker has opened it, and its consumers would
        wait for ever for what is published there."""
        self.log.look_for_fences()

    async def _maintain_topics(self) -> None:
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                if not topic.log_is_empty:
                    await self._guarded(topic, topic.maintain_by_and_by)
        await self.disk_share.give_back()

    async def _guarded(self, topic: Topic, work: Callable[[], Work]) -> None:
        """Runs the upkeep of one topic: its failure does not affect other topics."""
        try:
            await work()
        except VersionConflict:
            # Another broker changed the record: the topic is owned by that broker now.
            await self.open_topics.close_if_taken(topic)
        except (AnabranchError, OSError):
            # A topic that was closed or deleted meanwhile needs no upkeep any more.
            if not topic.is_closed:
                log.exception("%s: upkeep failed, trying again at the next round", topic.name)

    async def _check_compaction(self) -> None:
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                topic.upkeep.check_compaction()

    async def _update_rates(self) -> None:
        self.publish_times.turn()
        self.loop_share.turn()
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                try:
                    topic.update_rates(RATES_SECONDS)
                except Exception:  # A failure of one topic must not stop the rates of those behind it.
                    log.exception("%s: updating rates failed", topic.name)
        self.non_persistent.update_rates(RATES_SECONDS)

    # -- connections

    @property
    def connections_total(self) -> int:
        return self.connections.opened_total

    @property
    def connections_refused(self) -> int:
        return self.connections.refused_total

    @property
    def paused_connections(self) -> int:
        return self.connections.paused

    async def _check_identities(self) -> None:
        for session in list(self.sessions):
            self.sign_in.look(session)
        await self.revocation.look()

    def _accepting_changed(self, is_accepting: bool) -> None:
        if is_accepting:
            log.warning("disk space is available again: publishing resumes")
            return
        log.error("the disk is full but for the reserve: producers are closed until space is freed")
        for topic in self.loaded().values():
            topic.attached.close_all()
        self.background.begin(self._maintain_topics())

    async def _measure_lag(self) -> None:
        while True:
            before = self.loop.time()
            await asyncio.sleep(LAG_S)
            self.loop_lag_s = max(0.0, self.loop.time() - before - LAG_S)
            self.loop_lags.observe(self.loop_lag_s)

    # -- for the REST

    def admin_services(self) -> AdminServices:
        return AdminServices(
            current_config=self._current_config,
            metadata=self.metadata,
            log=self.log,
            resources=self.resources,
            registry=self.registry,
            owners=self.owners,
            shared=self.shared,
            has_one_port=self.has_one_port,
            elsewhere=self.elsewhere,
            sign_in=self.sign_in,
            rights=self.rights,
            schemas=self.schemas,
            topic_policies=self.topic_policies,
            dynamic_config=self.dynamic_config,
            write_records=self.write_records,
            records=self.records,
            segment_owner=self.segment_owner,
            scalable=self.scalable,
            registration=self.registration,
            current_autoscaler=lambda: self.autoscaler,
            open_topics=self.open_topics,
            new_topics=self.new_topics,
            non_persistent=self.non_persistent,
            sessions=self.sessions,
            connections_opened=lambda: self.connections_total,
            now_ms=self.now_ms,
            started_ms=self.started_ms,
            server_version=self.server_version,
            service_url=self.service_url,
            service_url_tls=self.service_url_tls,
            http_url=self.http_url,
            addresses=self.addresses,
            policies=self.policies,
            topics=self.topics,
            has_scalable=self.has_scalable,
            part_of=self.part_of,
            check_lookup=self.check_lookup,
            check_new_subscription=partial(self.subscription_limits.check_new, is_by_use=False),
            check_quotas=self.check_quotas,
            delete_topic=self.delete_topic,
            forget_topic=self.forget_topic,
            forget_grants=self.forget_grants,
            discard_topic=self.discard_topic,
            unload_topic=self.unload_topic,
            terminate_topic=self.terminate_topic,
            skip_damage=self.skip_damage,
            probe=self.log_probe.look,
            loop_share=lambda: self.loop_share.last,
            metrics=lambda: metrics.render(self),
        )
