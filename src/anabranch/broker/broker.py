"""One broker: the topics it has open, the connections it serves, and the upkeep of both.

A topic is opened at its first use and stays open until it is deleted, unloaded or loses its log. Opening fences
whoever had it before. Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

import anabranch
from anabranch.broker import listeners, permissions
from anabranch.broker.authentication import Authentication
from anabranch.broker.authorization import AllowAll, Authorizer, Rights
from anabranch.broker.background import Background, Work
from anabranch.broker.config import BrokerConfig
from anabranch.broker.connection_limits import ConnectionLimits
from anabranch.broker.disk_share import DiskShare
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.errors import NotAllowedError, TopicNotFoundError
from anabranch.broker.inactive_topics import InactiveTopicSweep
from anabranch.broker.listeners import Addresses
from anabranch.broker.loop_watch import TurnTimes
from anabranch.broker.new_topics import NewTopics
from anabranch.broker.non_persistent.topic import NonPersistentTopic
from anabranch.broker.non_persistent.topics import NonPersistentTopics
from anabranch.broker.open_topics import OpenTopics
from anabranch.broker.owners import BrokerRegistry, Owner, Owners, SoleOwner
from anabranch.broker.policies import Policies
from anabranch.broker.requests import Requests
from anabranch.broker.resources import MANAGED_LEDGERS, NotFound, Resources, topic_record_path
from anabranch.broker.revocation import Revocation
from anabranch.broker.scalable.classic import scalable_topics
from anabranch.broker.scalable.load_history import LoadHistory
from anabranch.broker.scalable.owner import RoutedSegments, SegmentOwner, unreachable
from anabranch.broker.scalable.registration import Registration
from anabranch.broker.scalable.scaling import Scaling
from anabranch.broker.scalable.sweep import sweep_leftovers
from anabranch.broker.schemas import Schemas, with_schema_defaults
from anabranch.broker.session import Session
from anabranch.broker.sign_in import SignIn
from anabranch.broker.topic import Topic
from anabranch.broker.topic_policies import TopicPolicyStore
from anabranch.broker.ui.recorder import Recorder
from anabranch.broker.write_records import WriteRecords
from anabranch.broker.write_upkeep import SWEEP_S, WriteUpkeep
from anabranch.controller.autoscaler import AutoScaler
from anabranch.controller.ports import Segments
from anabranch.controller.records import Records
from anabranch.errors import AnabranchError
from anabranch.metadata.errors import VersionConflict
from anabranch.metadata.port import MetadataStore
from anabranch.model.histogram import Histogram, Recent
from anabranch.model.names import Domain, NamespaceName, TopicName
from anabranch.model.position import Incarnation, LedgerId, Position
from anabranch.model.scalable import ScalableTopic, scalable_name
from anabranch.model.segments import SegmentId, segment_of
from anabranch.storage.ledger_ids import LedgerIds
from anabranch.storage.port import LogError, LogStore
from anabranch.storage.topic_log import finish_delete
from anabranch.storage.topic_record import TopicRecord

log = logging.getLogger(__name__)

PRODUCER_NAMES_PATH = "/counters/producer-name"
# Never past the keep-alive: pings, acks and flow share the socket with publishes.
PAUSE_MAX_S = 5.0
RATES_SECONDS = 10.0
# For so long at most an owner that writes nothing does not know that its ledgers were taken.
FENCES_SECONDS = 5.0
# How often the event loop's delay is measured.
LAG_S = 0.25
# Pulsar's own for this figure, in seconds.
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
        owners: Owners | None = None,
        remote_segments: Callable[[Owner], Segments] = unreachable,
    ) -> None:
        self.config = config
        self.metadata = metadata
        self.log = log_store
        self.resources = resources
        self.sign_in = SignIn(
            authentication,
            now_ms,
            answer_max_s=config.authentication_refresh_check_seconds,
            has_rights=config.authorization_enabled,
            proxy_roles=config.proxy_roles,
        )
        self.rights = Rights(authorizer or AllowAll())
        self.revocation = Revocation(self)
        self.schemas = Schemas(metadata)
        self.write_records = WriteRecords(metadata, config.hidden_writes_lease_ms)
        self.write_upkeep = WriteUpkeep(self)
        self.service_url = service_url
        self.service_url_tls = service_url_tls
        self.http_url = http_url
        self.http_url_tls = http_url_tls
        self._listeners = listeners.read(config.advertised_listeners, config.internal_listener_name)
        self.now_ms = now_ms
        self.started_ms = now_ms()
        me = Owner(service_url, http_url, service_url_tls)
        self.owners: Owners = owners or SoleOwner(me)
        self.registry = BrokerRegistry(metadata, me, self.started_ms)
        # What this broker does to the segments it owns, and the same for every segment wherever it is.
        self.records = Records(metadata)
        self.segment_owner = SegmentOwner(self)
        self.segments: Segments = RoutedSegments(self.owners, self.segment_owner, remote_segments)
        # All None while scalable topics are turned off.
        self.scalable = scalable_topics(self) if config.scalable_topic_enabled else None
        self.registration = (
            Registration(self, self.scalable.feed, self.segments) if self.scalable is not None else None
        )
        self.non_persistent = NonPersistentTopics(self)
        self.server_version = f"Anabranch {anabranch.__version__}"
        self.loop = asyncio.get_running_loop()
        self.requests = Requests(self)
        self.sessions: dict[Session, None] = {}  # In the order of their opening.
        self.connections_total = 0
        self.connection_limits = ConnectionLimits(
            config.broker_max_connections, config.broker_max_connections_per_ip
        )
        self.connections_refused = 0
        self.loop_lag_s = 0.0
        self.loop_lags = Histogram()
        self.turns = TurnTimes()
        self.quota_check_times = Histogram(QUOTA_CHECK_BOUNDS_S)
        self.publish_times = Recent(log_store.histograms().get("append", Histogram()))
        self.topic_policies = TopicPolicyStore(metadata)
        self.dynamic_config = DynamicConfig(metadata, config, self._reconfigure)
        self.inactive_topics = InactiveTopicSweep(self)
        self.disk_share = DiskShare(self)
        self.open_topics = OpenTopics(self)
        self.new_topics = NewTopics(self)
        self.ledger_ids = LedgerIds(metadata)
        self._producer_names = iter(range(0))
        self._paused: dict[Session, None] = {}
        self._resuming: asyncio.TimerHandle | None = None
        self.background = Background(self.loop)
        self.is_closing = False
        # One at a time: each takes the memory of a table of keys.
        self.compacting = asyncio.Semaphore(1)
        self._stop_watching_session: Callable[[], None] = lambda: None
        self.scaling = Scaling(self, self.scalable) if self.scalable is not None else None
        self.recorder = Recorder(self)
        # Done once the log has ended under us: the broker serves nothing more and its process must start anew.
        self.failed: asyncio.Future[LogError] = self.loop.create_future()

    def addresses(self, listener: str = "") -> Addresses:
        """Where clients are sent that name this listener, or none. NotAllowedError if there is none of that name."""
        if not listener:
            return Addresses(self.service_url, self.service_url_tls, self.http_url, self.http_url_tls)
        found = self._listeners.get(listener)
        if found is None:
            raise NotAllowedError(
                f"this broker has no listener named {listener}: see its advertisedListeners"
            )
        return found

    def http_url_for(self, has_tls: bool) -> str:
        """Where a client that came with or without TLS is sent for REST."""
        return self.http_url_tls if has_tls and self.http_url_tls else self.http_url

    # -- life

    async def start(self) -> None:
        await self.registry.start()
        await self.dynamic_config.start()
        await self.topic_policies.start()
        self.topic_policies.on_change(self._topic_policies_changed)
        if self.scalable is not None:
            await self.scalable.start()
            assert self.scaling is not None
            self.scaling.start()
            self.owners.on_change(self.requests.scalable.owners_changed)
        self.owners.on_change(self._owners_changed)
        self._stop_watching_session = self.metadata.session.on_change(self.open_topics.session_changed)
        self.resources.on_policies_change(self._policies_changed)
        self.log.on_accepting_change(self._accepting_changed)
        self.log.on_end(self._log_ended)
        self.background.until_done(self._tell_log_what_lives)
        self.background.every(FENCES_SECONDS, self._look_for_fences)
        self.background.every(self.config.keep_alive_interval_seconds / 3, self._check_connections)
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
        self.background.every(self.recorder.interval_s, self.recorder.sample)
        self.background.begin(self._measure_lag())

    @property
    def autoscaler(self) -> AutoScaler:
        """NotAllowedError while scalable topics are turned off."""
        return self._scaling().scaler

    @property
    def load_history(self) -> LoadHistory:
        """What flowed through the segments open here, for the last hour."""
        return self._scaling().reporter.history

    def _scaling(self) -> Scaling:
        if self.scaling is None:
            raise NotAllowedError("scalable topics are turned off here: set scalableTopicEnabled=true")
        return self.scaling

    async def close(self) -> None:
        """Ends cleanly: what was accepted is confirmed and answered, then every connection is closed."""
        self.is_closing = True
        self._stop_watching_session()
        await self.background.close()
        await self.requests.scalable.close()
        if self.scaling is not None:
            await self.scaling.close()
        if self.scalable is not None:
            await self.scalable.close()
        for topic in list(self.loaded().values()):
            await topic.close()
        self.non_persistent.close_those()
        for session in list(self.sessions):
            session.close()
        await self.topic_policies.close()
        await self.dynamic_config.close()
        await self.registry.close()
        await self.log.close()

    async def _tell_log_what_lives(self) -> None:
        live = []
        records: dict[str, TopicRecord] = {}
        for path, found in await self.metadata.scan(MANAGED_LEDGERS):
            record = TopicRecord.decode(found.value)
            if record.is_deleting:
                await finish_delete(path, record, found.version, self.log, self.metadata)
                continue
            records[path] = record
            tenant, namespace = path.removeprefix(MANAGED_LEDGERS + "/").split("/")[:2]
            for ledger in record.ledgers:
                is_cut = ledger.id == record.trimmed[0]
                live.append(
                    (
                        LedgerId(ledger.id),
                        Incarnation(ledger.incarnation),
                        record.trimmed[1] if is_cut else 0,
                        ledger.end,
                        f"{tenant}/{namespace}",
                    )
                )
            if (left := record.compacted) is not None:
                home = f"{tenant}/{namespace}"
                live.append((LedgerId(left.id), Incarnation(left.incarnation), 0, left.end, home))
        self.log.retain(live)
        await sweep_leftovers(self, records)

    def _log_ended(self) -> None:
        """The log is over, and so is this broker: nobody can publish or subscribe here any more."""
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
        """The open topic; opened or, if allowed, created first. One opening serves everyone who waits for it.

        `made_for` makes a missing segment of the topic with that record: only its owner may say so. `for_deletion`
        also opens what nobody may use any more: leftovers, and topics of a namespace that is going.
        """
        return await self.open_topics.topic(name, create=create, made_for=made_for, for_deletion=for_deletion)

    async def attachable(self, name: TopicName, *, create: bool) -> Topic | NonPersistentTopic:
        """What producers and consumers of that name attach to."""
        if name.domain is Domain.NON_PERSISTENT:
            return await self.non_persistent.open(name, create=create)
        return await self.topic(name, create=create)

    async def topic_exists(self, name: TopicName) -> bool:
        if name.domain is Domain.NON_PERSISTENT:
            return self.non_persistent.opened(name) is not None
        return await self.resources.topic_exists(name)

    async def delete_topic(
        self, name: TopicName, *, force: bool = False, if_unused: Callable[[Topic], bool] | None = None
    ) -> None:
        """Refused while somebody uses it, unless forced; `if_unused` judges that in another way."""
        topic = await self.topic(name)
        await topic.delete(force=force, if_unused=if_unused)
        if name.is_classic and not name.is_partition:
            await self.forget_topic(name)

    async def forget_topic(self, name: TopicName) -> None:
        """Removes what is kept of a deleted topic, partitioned or not, besides its log: it may be made anew."""
        await self.schemas.delete(name)
        await self.topic_policies.forget(name)
        await self.records.remove_classic(scalable_name(name))
        await self.forget_grants(name)

    async def forget_grants(self, name: TopicName) -> None:
        """What was granted on a topic that is gone."""
        # A namespace that is being deleted goes with all its grants.
        with contextlib.suppress(NotFound):
            policies = await self.resources.policies(name.namespace)
            if permissions.forget_topic(policies, name) is not policies:
                await self.resources.update_policies(
                    name.namespace, lambda found: permissions.forget_topic(found, name)
                )

    async def discard_topic(self, name: TopicName) -> None:
        """Removes what is stored under that name, whoever uses it and whether or not anybody may; if anything is."""
        while await self.resources.topic_exists(name):
            try:
                topic = await self.topic(name, for_deletion=True)
            except TopicNotFoundError:
                # Its deletion has begun before.
                await self.finish_deleting(name)
                return
            if not topic.is_closed:
                await topic.delete(force=True)

    async def finish_deleting(self, name: TopicName) -> None:
        """Ends a deletion that was begun and cut short: the name is free again."""
        path = topic_record_path(name)
        found = await self.metadata.get(path)
        if found is not None and (record := TopicRecord.decode(found.value)).is_deleting:
            await finish_delete(path, record, found.version, self.log, self.metadata)

    async def unload_topic(self, name: TopicName) -> None:
        """Closes the topic; its clients come back and open it again."""
        topic = await self.topic(name)
        await topic.close()

    async def terminate_topic(self, name: TopicName) -> Position:
        return await (await self.topic(name)).terminate()

    async def skip_damage(self, name: TopicName) -> int:
        """Steps over damaged entries wherever a reader of this topic has met them; returns how many were given up."""
        return await (await self.topic(name)).skip_damage()

    async def topics(self, namespace: NamespaceName) -> list[str]:
        await self.resources.policies(namespace)
        return await self.resources.topics(namespace)

    async def check_lookup(self, name: TopicName) -> None:
        """Whether this broker may be named as the owner of that topic."""
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
        """Whether there is a scalable topic of that name, in whatever domain it is given."""
        return await self.records.get(scalable_name(name)) is not None

    async def part_of(self, name: TopicName, record: TopicRecord) -> str:
        """The id of the topic that the log with that record is a partition of at present; "" if it is of none.

        The log may have another id itself: it was made before the partitioned topic, or was left of a former one."""
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

    def _policies_changed(self, namespace: NamespaceName, policies: Policies | None) -> None:
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
                topic.upkeep.policies_changed()

    async def policies(self, topic: TopicName) -> Policies:
        """Those in force for the topic: its own, its namespace's, and what the configuration says of schemas."""
        policies = self.topic_policies.over(await self.resources.policies(topic.namespace), topic)
        return with_schema_defaults(policies, self.config)

    def _reconfigure(self, config: BrokerConfig) -> None:
        self.config = config
        for topic in self.loaded().values():
            topic.upkeep.policies_changed()
        self.non_persistent.config_changed()

    async def check_quotas(self) -> None:
        """Looks at the backlog of each open topic, and does what its quotas say."""
        started = self.loop.time()
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                await self._guarded(topic, topic.upkeep.quotas.check)
        self.quota_check_times.observe(self.loop.time() - started)

    def _owners_changed(self) -> None:
        self.open_topics.owners_changed()
        self.non_persistent.owners_changed()

    def on_segment_progress(self, name: TopicName) -> None:
        """Somebody has got to the end of this sealed topic, or back from it: its controller looks again."""
        if self.scalable is None:
            return
        if name.domain is Domain.SEGMENT:
            topic, _, number = segment_of(name)
        else:
            # Classic topics become segments in the order of their partitions.
            topic, number = scalable_name(name.base), SegmentId(max(0, name.partition_index))
        self.scalable.segment_progress(topic, number)

    async def _look_for_fences(self) -> None:
        """A topic that nobody writes to would stay open here after another broker has taken it, and its consumers
        would wait for ever for what is published there."""
        self.log.look_for_fences()

    async def _maintain_topics(self) -> None:
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                if not topic.is_bare:
                    await self._guarded(topic, topic.maintain)
        await self.disk_share.give_back()

    async def _guarded(self, topic: Topic, work: Callable[[], Work]) -> None:
        """One topic's upkeep: what goes wrong with it is no other topic's business."""
        try:
            await work()
        except VersionConflict:
            # Its record was changed by somebody else: the topic is another broker's by now.
            await self.open_topics.close_if_taken(topic)
        except (AnabranchError, OSError):
            # Of a topic that was closed or deleted meanwhile nothing is expected any more.
            if not topic.is_closed:
                log.exception("upkeep of %s failed", topic.name)

    async def _check_compaction(self) -> None:
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                topic.upkeep.check_compaction()

    async def next_ledger_id(self) -> int:
        """An id that no ledger ever had."""
        return await self.ledger_ids.next(0)

    async def _update_rates(self) -> None:
        self.publish_times.turn()
        async for topics in self.open_topics.in_turns():
            for topic in topics:
                try:
                    topic.update_rates(RATES_SECONDS)
                except Exception:  # One topic's trouble: the rates of those behind it are worth as much.
                    log.exception("%s: updating its rates failed", topic.name)
        self.non_persistent.update_rates(RATES_SECONDS)

    # -- connections

    def session_opened(self, session: Session) -> None:
        """NotAllowedError if there are as many as there may be; it is to be closed then."""
        self.sessions[session] = None
        self.connections_total += 1
        self.connection_limits.opened(session.host)

    def session_closed(self, session: Session) -> None:
        if session in self.sessions:
            self.connection_limits.closed(session.host)
        self.sessions.pop(session, None)
        self._paused.pop(session, None)

    async def _check_connections(self) -> None:
        now = self.loop.time()
        for session in list(self.sessions):
            session.tick(now)

    async def _check_identities(self) -> None:
        for session in list(self.sessions):
            self.sign_in.look(session)
        await self.revocation.look()

    # -- back-pressure

    @property
    def is_congested(self) -> bool:
        """Reading from publishers pauses here, and resumes below half of it."""
        return self.log.unconfirmed_bytes > self.config.max_pending_publish_bytes

    def pause(self, session: Session) -> None:
        session.pause_reading()
        self._paused[session] = None
        if self._resuming is None:
            self._resuming = self.loop.call_later(PAUSE_MAX_S, self._resume_some)

    @property
    def paused_connections(self) -> int:
        return len(self._paused)

    def progressed(self) -> None:
        """Something was confirmed: readers that waited for it may go on."""
        if self._paused and self.log.unconfirmed_bytes * 2 < self.config.max_pending_publish_bytes:
            self._resume_all()

    def _resume_some(self) -> None:
        """Pings, acks and flow share the socket with publishes, so nobody is left unread for long; but where the disk
        hangs, only as many are read as fit into a second time the limit, those that have waited longest first.
        """
        self._resuming = None
        room = 2 * self.config.max_pending_publish_bytes - self.log.unconfirmed_bytes
        for session in list(self._paused):
            if room <= 0:
                break
            room -= session.read_bytes
            del self._paused[session]
            session.resume_reading()
        if self._paused and self._resuming is None:
            self._resuming = self.loop.call_later(PAUSE_MAX_S, self._resume_some)

    def _resume_all(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        paused, self._paused = self._paused, {}
        for session in paused:
            session.resume_reading()

    def _accepting_changed(self, is_accepting: bool) -> None:
        if is_accepting:
            log.warning("disk space is available again: publishing resumes")
            return
        log.error("only the disk reserve is left: producers are closed until space is freed")
        for topic in self.loaded().values():
            topic.attached.close_all()
        self.background.begin(self._maintain_topics())

    async def _measure_lag(self) -> None:
        while True:
            before = self.loop.time()
            await asyncio.sleep(LAG_S)
            self.loop_lag_s = max(0.0, self.loop.time() - before - LAG_S)
            self.loop_lags.observe(self.loop_lag_s)
