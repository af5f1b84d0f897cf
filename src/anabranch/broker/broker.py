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
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path

import anabranch
from anabranch.broker.admin.across.linked import LinkedBrokers
from anabranch.broker.admin.across.unstored import unstored_elsewhere
from anabranch.broker.admin.elsewhere import Alone, Elsewhere
from anabranch.broker.admin.services import AdminServices
from anabranch.broker.assembly.admin_parts import admin_services
from anabranch.broker.assembly.balance_parts import LoadSources
from anabranch.broker.assembly.client_parts import ClientParts
from anabranch.broker.assembly.ground import Ground
from anabranch.broker.assembly.scalable_parts import ScalableParts
from anabranch.broker.assembly.topic_parts import TopicParts
from anabranch.broker.balance.load.bundle_figures import MeasuredTopic
from anabranch.broker.balance.load.usage import ResourceMeter
from anabranch.broker.balance.load.view_topics import ViewTopics
from anabranch.broker.catalog.dynamic_config import DynamicConfig
from anabranch.broker.catalog.owners import BrokerAddress, Owners
from anabranch.broker.catalog.registry import writers_in
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.catalog.topic_policies import policy_holder
from anabranch.broker.config import listeners
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.listeners import Addresses
from anabranch.broker.connection.connections import ServedConnections
from anabranch.broker.connection.limits import ConnectionLimits
from anabranch.broker.connection.session import ClientSession, SessionSettings
from anabranch.broker.hidden_writes.records import WriteRecords
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.observe import metrics
from anabranch.broker.observe.log_probe import LogProbe
from anabranch.broker.observe.loop_lag import LoopLag
from anabranch.broker.observe.loop_share import LoopShare
from anabranch.broker.observe.table_reports import TableReports
from anabranch.broker.observe.troubles import Troubles, troubles
from anabranch.broker.peers.remote_rest import RemoteRest
from anabranch.broker.peers.topic_moves import CallsOfMoves, TopicMoves
from anabranch.broker.policy.effective import EffectivePolicies, effective
from anabranch.broker.policy.limits import TopicLimits, limits_of
from anabranch.broker.policy.namespace import NamespacePolicies
from anabranch.broker.runtime.loop_watch import TurnTimes
from anabranch.broker.scalable.load.recent import LoadHistory
from anabranch.broker.scalable.owner.sweep import sweep_leftovers
from anabranch.broker.security.authentication import Authentication
from anabranch.broker.security.rights import AllowAll, Authorizer, Rights
from anabranch.broker.topic.topic import Topic
from anabranch.broker.topics.creation import NewTopics
from anabranch.broker.topics.live_ledgers import tell_log_what_lives
from anabranch.broker.topics.write_upkeep import SWEEP_S
from anabranch.broker.ui import last_hour
from anabranch.broker.ui.recorder import Recorder
from anabranch.broker.ui.sources import PageSources
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.ports import Segments
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import MetadataError
from anabranch.metadata.port import MetadataStore
from anabranch.model.bundles import BundleName
from anabranch.model.histogram import Histogram, Recent
from anabranch.model.leaders_topics import CHANNEL_TOPIC, is_leaders
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.scalable import ScalableTopic
from anabranch.storage.port import LogError, LogStore
from anabranch.storage.topic.living import living_in

log = logging.getLogger(__name__)

RATES_SECONDS = 10.0
# An owner that writes nothing notices within this time that another broker has fenced its ledgers.
FENCES_SECONDS = 5.0
# How often assignments to brokers that are gone are looked for.
DROP_STALE_S = 20.0
# How long a broker that is about to end may take to give its topics away.
DRAIN_MAX_S = 10.0


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
        brokers_expected: int = 0,
        remote_segments: Callable[[BrokerAddress], Segments] | None = None,
        moves: CallsOfMoves | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        elsewhere: Elsewhere | None = None,
        measured: Callable[[Broker, LoadSources], LoadSources] = lambda broker, found: found,
        last_hour: Path | None = None,
    ) -> None:
        """`config` may change while the broker runs, as far as its settings allow; everything else stays.

        `in_cluster`: it shares the topics with the other brokers that are registered in the same metadata. Else it owns
        everything, or what `owners` says. `brokers_expected` are there once all of them have started, 0 if that is not
        known. `one_port` has the only addresses that clients can reach, if they are those
        of all brokers. `measured` may replace what the load balancer measures. The page's last hour is written to the
        file `last_hour`, if there is one, and read from it at the start."""
        self._last_hour = last_hour
        self.config = config
        self.metadata = metadata
        self.log = log_store
        self.resources = resources
        self.service_url, self.service_url_tls = service_url, service_url_tls
        self.http_url, self.http_url_tls = http_url, http_url_tls
        self.now_ms = now_ms
        self.loop = asyncio.get_running_loop()
        self.rights = Rights(authorizer or AllowAll())
        self.has_one_port = one_port is not None
        named = listeners.read(config.advertised_listeners, config.internal_listener_name)
        self.ground = Ground(
            self._current_config,
            metadata,
            log_store,
            resources,
            BrokerAddress(service_url, http_url, service_url_tls, http_url_tls, named),
            self.loop,
            now_ms,
            random_bytes,
            self.rights,
            server_version=f"Anabranch {anabranch.__version__}",
            owners=owners,
            in_cluster=in_cluster,
            brokers_expected=brokers_expected,
        )
        self._name_ground()
        self._build_stores()
        self._build_neighbours(moves, elsewhere)
        self._build_connections()
        self._build_new_topics()
        self._build_scalable_topics(remote_segments)
        self._build_topics()
        self._build_commands(authentication, one_port)
        self._build_figures()
        self._build_balance(measured)
        self.is_closing = False
        self._stop_watching_session: Callable[[], None] = lambda: None
        # Done once the log has failed: the broker serves nothing more and its process must be restarted.
        self.failed: asyncio.Future[LogError] = self.loop.create_future()

    # -- parts, each built of those before it

    def _current_config(self) -> BrokerConfig:
        return self.config

    def _name_ground(self) -> None:
        """The parts of the ground, by the names that the rest of the broker uses."""
        ground = self.ground
        self.run_id, self.started_ms = ground.run_id, ground.started_ms
        self.server_version = ground.server_version
        self.background = ground.background
        self.is_one_of_several = ground.is_one_of_several
        self.registry, self.shared, self.owners = ground.registry, ground.shared, ground.owners
        self.balancer = ground.balancer
        self.records, self.schemas, self.peers = ground.records, ground.schemas, ground.peers
        self.topic_policies = ground.topic_policies

    def _build_stores(self) -> None:
        """Settings that change while the broker runs, and the records of hidden writes."""
        self.dynamic_config = DynamicConfig(self.metadata, self.config, self._reconfigure)
        self.write_records = WriteRecords(self.metadata, self.config.hidden_writes_lease_ms)

    def _build_neighbours(self, moves: CallsOfMoves | None, elsewhere: Elsewhere | None) -> None:
        """The REST of other brokers, and the topics that come from them."""
        remote = RemoteRest(self.peers)
        others = LinkedBrokers(self.registry, remote) if self.is_one_of_several else Alone()
        self.elsewhere: Elsewhere = elsewhere or others
        self.moves = moves or TopicMoves(self.peers, self.ground.writer_of)

    def _build_connections(self) -> None:
        """The table of connections, still empty, and their settings."""
        config = self.config
        self.connections = ServedConnections(
            self.loop,
            self.log,
            ConnectionLimits(config.broker_max_connections, config.broker_max_connections_per_ip),
            unconfirmed_bytes_max=config.max_pending_publish_bytes,
            may_have_peers=self.is_one_of_several,
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
            self.resources,
            self.owners,
            self.new_topics,
            self._current_config,
            self.loop,
            self.now_ms,
            is_of_brokers=is_leaders,
        )

    def _build_scalable_topics(self, remote_segments: Callable[[BrokerAddress], Segments] | None) -> None:
        """Scalable topics and their segments; some parts are None while scalable topics are turned off."""
        parts = self._scalable_parts = ScalableParts(
            self.ground, self, self.new_topics, self._limits, remote_segments
        )
        self.segment_owner, self.segments = parts.segment_owner, parts.segments
        self.subscription_limits = parts.subscription_limits
        self.scalable, self.remote_sessions = parts.topics, parts.remote_sessions
        self.registration, self.scaling = parts.registration, parts.scaling

    def _build_topics(self) -> None:
        """The parts that open, keep, hand over and delete topics."""
        parts = self._topic_parts = TopicParts(
            self.ground,
            self._scalable_parts,
            self.new_topics,
            self.write_records,
            self.moves,
            self.connections.progressed,
            names_owners=not self.has_one_port,
        )
        self.known, self.open_topics, self.operations = parts.known, parts.open, parts.operations
        self.topic_services, self.hand_over = parts.services, parts.hand_over
        self.write_upkeep, self.inactive_topics = parts.write_upkeep, parts.inactive
        self.disk_share, self.rounds = parts.disk_share, parts.rounds

    def _build_commands(self, authentication: Authentication | None, one_port: Addresses | None) -> None:
        """The commands of clients, their sign-in, and the revocation of their rights."""
        parts = self._client_parts = ClientParts(
            self.ground,
            self._scalable_parts,
            self.non_persistent,
            self.new_topics,
            self.known,
            self.sessions,
            attachable=self.attachable,
            opened=self.opened,
            policies=self.policies,
            unstored_elsewhere=self._unstored_elsewhere,
            authentication=authentication,
            one_port=one_port,
        )
        self.sign_in, self.requests, self.revocation = parts.sign_in, parts.requests, parts.revocation

    def _build_figures(self) -> None:
        """The measurements, for metrics and for the page."""
        self.loop_lag = LoopLag(self.loop)
        self.loop_lags = self.loop_lag.times
        self.turns = TurnTimes()
        self.log_probe = LogProbe(self.log, self.topic_services.ledger_ids, self.loop.time)
        self.loop_share = LoopShare(self.loop.time, time.thread_time)
        self.quota_check_times = self.rounds.quota_check_times
        self.topic_pauses = self.open_topics.pauses
        self.publish_times = Recent(self.log.histograms().get("append", Histogram()))
        self.table_reports = TableReports()
        self.recorder = Recorder(self.loaded, self.scalable, self.now_ms, self.loop.time)
        self.open_topics.on_open(self.recorder.opened)
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
            lambda: self.loop_lag.last_s,
            self.scalable,
            self.scaling,
            self.owners,
            self.ground.shared,
            self.ground.ranges,
            self.balancer,
            self.elsewhere,
            self.troubles,
            self.topic,
            self.schemas,
        )

    def _build_balance(self, measured: Callable[[Broker, LoadSources], LoadSources]) -> None:
        """What the load balancer measures, if there is one."""
        if (balance := self.ground.balance) is None:
            return
        share = self.loop_share
        meter = ResourceMeter(self._current_config, lambda: share.last, self.log, self.loop.time)
        found = LoadSources(balance.settings, self._measured_topics, meter.look, self.now_ms)
        views = ViewTopics(self.non_persistent, self.registry.me.id, self.now_ms)
        history = None if self.scaling is None else self.scaling.history
        balance.measure(measured(self, found), self._channel_topic, views.publish, history)

    def _measured_topics(self) -> Iterable[MeasuredTopic]:
        return chain(self.loaded().values(), self.non_persistent.loaded())

    async def _channel_topic(self) -> Topic:
        await self.new_topics.create(CHANNEL_TOPIC)
        return await self.topic(CHANNEL_TOPIC)

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
        if (hashed := self.ground.hashed) is not None:
            await hashed.start()
            self.background.every(DROP_STALE_S, hashed.drop_stale)
        await self.dynamic_config.start()
        await self.topic_policies.start()
        self.topic_policies.on_change(self._topic_policies_changed)
        if (balance := self.ground.balance) is not None:
            # The leader opens the topic of the channel, as any topic is opened.
            await balance.start(self.background)
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
        self.log.ask(living_in(self.metadata), writers_in(self.metadata))
        self.background.until_done(self._tell_log_what_lives)
        self.background.every(FENCES_SECONDS, self._look_for_fences)
        self.background.every(self.config.keep_alive_interval_seconds / 3, self.connections.probe)
        self.background.every(self.config.authentication_refresh_check_seconds, self._check_identities)
        if not self.rights.are_open:
            self.background.until_done(self.revocation.follow_tenants)
        self.background.every(self.config.retention_check_interval_in_seconds, self.rounds.maintain)
        interval = self.config.broker_service_compaction_monitor_interval_in_seconds
        self.background.every(interval, self.rounds.check_compaction)
        self.background.every(self.config.backlog_quota_check_interval_in_seconds, self.rounds.check_quotas)
        self.background.every(
            self.config.broker_delete_inactive_topics_frequency_seconds, self.inactive_topics.sweep
        )
        self.background.every(RATES_SECONDS, self._update_rates)
        self.background.until_done(self.write_upkeep.follow)
        self.background.until_done(self.requests.topic_lists.follow)
        self.background.every(self.config.hidden_writes_check_interval_seconds, self.write_upkeep.look)
        self.background.every(SWEEP_S, self.write_upkeep.sweep)
        if self._last_hour is not None:
            await self._restore_last_hour(self._last_hour)
            self.background.every(last_hour.SAVE_S, self._save_last_hour)
        self.background.every(self.config.scalable_topic_load_report_interval, self.recorder.sample)
        self.background.begin(self.loop_lag.measure())

    async def _restore_last_hour(self, path: Path) -> None:
        if (found := await last_hour.load(path)) is None:
            return
        if self.is_one_of_several:
            # Another broker may own a topic by now, and count what waits there.
            found.waiting = {}
        last_hour.restore(found, self.recorder, self._page_loads, self.now_ms())

    async def _save_last_hour(self, *, is_clean: bool = False) -> None:
        assert self._last_hour is not None
        told = last_hour.image(self.recorder, self._page_loads, self.now_ms(), is_clean=is_clean)
        await last_hour.save(self._last_hour, told)

    @property
    def _page_loads(self) -> LoadHistory | None:
        return None if self.scaling is None else self.scaling.reporter.history

    async def troubles(self) -> Troubles:
        """The disk, and who is held back by what here."""
        return await troubles(self.log, self.loaded(), lambda: self.paused_connections)

    def unopened(self) -> Mapping[TopicName, Mapping[str, int]]:
        """What waits, by subscription, in topics that have not been opened since the start, as far as that is known."""
        return self.recorder.unopened()

    def _registrations_changed(self) -> None:
        self.peers.living({name: found.run_id for name, found in self.registry.living().items()})

    @property
    def autoscaler(self) -> AutoScaler:
        """NotAllowedError while scalable topics are turned off."""
        return self._scalable_parts.scaling_on().scaler

    @property
    def load_history(self) -> LoadHistory:
        """What flowed through the segments open here in the last hour."""
        return self._scalable_parts.scaling_on().reporter.history

    async def drain(self) -> None:
        """Gives the topics to the other brokers, before this one is closed. What could not be given away in time is
        closed like everything else."""
        if not self.is_one_of_several or self.log.ended is not None or len(self.registry.living()) < 2:
            return
        log.info("giving %d topics to other brokers", len(self.loaded()))
        try:
            async with asyncio.timeout(DRAIN_MAX_S):
                await self.registry.drain()
                if self.balancer is not None:
                    await self.balancer.drain()
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
        if self.balancer is not None:
            await self.balancer.stop()
        await self.background.close()
        if self._last_hour is not None:
            await self.recorder.sample()
        if (balance := self.ground.balance) is not None and balance.work is not None and others_stay:
            await balance.work.close()
        await self.requests.scalable.close()
        if self.scaling is not None:
            await self.scaling.close()
        if self.scalable is not None:
            await self.scalable.close()
        topics = list(self.loaded().values())
        for topic in topics:
            await topic.close(self.hand_over.moved_to(topic.name))
        if self._last_hour is not None:
            self.recorder.closed(topics)
            await self._save_last_hour(is_clean=self.log.ended is None)
        self.non_persistent.close_those()
        for session in list(self.sessions):
            session.close()
        await self.peers.close()
        await self.topic_policies.close()
        await self.dynamic_config.close()
        if (hashed := self.ground.hashed) is not None:
            await hashed.close()
        if (balance := self.ground.balance) is not None:
            await balance.close()
        await self.registry.close()
        await self.log_probe.close()
        await self.log.close()

    async def _tell_log_what_lives(self) -> None:
        records = await tell_log_what_lives(self.metadata, self.log)
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

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Refused while clients use the topic, unless forced."""
        await self.operations.delete(name, force=force)

    async def discard_topic(self, name: TopicName) -> None:
        """Deletes what is stored under that name, if anything, even if it is in use or may not be used any more."""
        await self.operations.discard(name)

    async def unload_topic(self, name: TopicName) -> None:
        """Closes the topic; its clients reconnect and open it again."""
        await self.operations.unload(name)

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
            if policy_holder(name) == changed:
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

    def _owners_changed(self, bundles: frozenset[BundleName]) -> None:
        self.hand_over.owners_changed(bundles)
        self.non_persistent.owners_changed(bundles, self.hand_over.moved_to)

    async def _look_for_fences(self) -> None:
        """A topic without publishers would stay open here after another broker has opened it, and its consumers would
        wait for ever for what is published there."""
        self.log.look_for_fences()

    async def _update_rates(self) -> None:
        self.publish_times.turn()
        self.loop_share.turn()
        await self.rounds.update_rates(RATES_SECONDS)
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
        self.background.begin(self.rounds.maintain())

    # -- for the REST

    def admin_services(self) -> AdminServices:
        return admin_services(
            self.ground,
            self._topic_parts,
            self._scalable_parts,
            self._client_parts,
            self.connections,
            self.new_topics,
            self.non_persistent,
            self.dynamic_config,
            self.write_records,
            self.elsewhere,
            has_one_port=self.has_one_port,
            policies=self.policies,
            probe=self.log_probe.look,
            loop_share=lambda: self.loop_share.last,
            table_reports=self.table_reports,
            metrics=lambda: metrics.render(
                self, None if self.ground.balance is None else self.ground.balance.work
            ),
            troubles=self.troubles,
        )
