"""Several brokers over one metadata store and one log medium, and the operations on them.

A broker is killed (its memory is gone, its connections break, its session lives on until it times out), started again
under a new incarnation, paused for shorter or longer than its session, cut off from the store, or parted from others.
Brokers, sessions, logs and controllers are the real ones; only the loop, the network and the stores are simulated.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from msgspec.structs import replace

from anabranch.balance.core.settings import BalanceSettings
from anabranch.broker.assembly.balance_parts import LoadSources
from anabranch.broker.balance.load.usage import ResourceShares
from anabranch.broker.broker import Broker
from anabranch.broker.catalog.owners import broker_id
from anabranch.broker.catalog.resources import Resources
from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.config.load_managers import BALANCED, METADATA, TOPIC
from anabranch.broker.policy.namespace import ClusterRecord as ClusterData
from anabranch.errors import AnabranchError
from anabranch.metadata.port import SessionState
from anabranch.model.position import Incarnation
from anabranch.simulation.cluster.balance_sabotage import corrupt_balancer
from anabranch.simulation.cluster.node import PORT, Node
from anabranch.simulation.cluster.sabotage import BAD_LOGS, OldReads, Sabotage, corrupt
from anabranch.simulation.machine.bucket import SimBucket, SimObjectLog
from anabranch.simulation.machine.disk import DiskWeather, SlowLog
from anabranch.simulation.machine.followers import LAG_MAX_S
from anabranch.simulation.machine.loop import Host, SimLoop, context_of
from anabranch.simulation.machine.network import Network, NetworkLink
from anabranch.simulation.machine.store import Store, StoreWeather, WatchedMetadata
from anabranch.storage.memory import MemoryMedium

T = TypeVar("T")

SESSION_TIMEOUT_S: Final = 4.0
CONFIG: Final = BrokerConfig(
    broker_deduplication_enabled=True,
    scalable_topic_consumer_session_grace_period_seconds=3,
    # A run of minutes would see no effect of a week's retention.
    default_retention_time_in_minutes=0,
    retention_check_interval_in_seconds=7,
    log_trim_seconds=20,
    broker_delete_inactive_topics_frequency_seconds=1,
    connection_write_buffer_bytes=64 * 1024,
    max_message_size=16 * 1024,
)
# With the load balancer. Its waits are short, so that repairs happen within a run.
BALANCED_CONFIG: Final = replace(
    CONFIG,
    load_manager_class_name=BALANCED,
    load_manager_service_unit_state_table_view_class_name=METADATA,
    load_balancer_in_flight_service_unit_state_waiting_time_in_millis=6_000,
    load_balancer_service_unit_state_monitor_interval_in_seconds=2,
    load_balancer_service_unit_state_tombstone_delay_time_in_seconds=10,
    load_balancer_metadata_stable_seconds=4,
    # What the balancer does by itself, often enough for a run.
    load_balancer_report_update_min_interval_millis=500,
    load_balancer_history_resource_percentage=0.0,
    load_balancer_broker_load_target_std=0.1,
    load_balancer_shedding_interval_minutes=0.05,
    load_balancer_shedding_condition_hit_count_threshold=1,
    load_balance_shedding_delay_in_seconds=3,
    load_balancer_shedding_grace_period_minutes=0,
    load_balancer_split_interval_minutes=0.05,
    load_balancer_namespace_bundle_split_condition_hit_count_threshold=1,
    load_balancer_namespace_bundle_max_topics=3,
    load_balancer_namespace_maximum_bundles=16,
)
CHANNEL_TOPIC_CONFIG: Final = replace(
    BALANCED_CONFIG, load_manager_service_unit_state_table_view_class_name=TOPIC
)

# What keeps a simulated broker wholly busy.
BUSY_BYTES_PER_S: Final = 20_000.0


class Cluster:
    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        chance: random.Random,
        names: Iterable[str],
        look: Callable[[Iterable[str]], None],
        note: Callable[[str], None],
        sabotage: frozenset[Sabotage] = frozenset(),
        config: BrokerConfig = CONFIG,
        lags: random.Random | None = None,
        objects: random.Random | None = None,
    ) -> None:
        """With `lags`, each session reads from a server that is as far behind as they say; with `objects`, the log is
        in an object store that does what they say."""
        self._lags = lags
        self._sabotage = sabotage
        self._config = config
        self.loop = loop
        self.network = network
        self.chance = chance
        self.note = note
        self.nodes = [Node(name) for name in names]
        self.metadata = WatchedMetadata(loop.now_ms, look)
        self.medium = MemoryMedium()
        self.bucket = SimBucket(loop, objects) if objects is not None else None
        self.seed = chance.getrandbits(64)
        self.weather = StoreWeather()
        self.disks = DiskWeather()
        # Balancers move and split nothing by themselves any more.
        self.is_calm = False
        # When a broker last came up, by the loop's time.
        self.last_start_s = 0.0

    @property
    def up(self) -> list[Node]:
        return [node for node in self.nodes if node.is_up]

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"{node.name}:{PORT}" for node in self.nodes)

    def node_at(self, service_url: str) -> Node | None:
        return next((node for node in self.nodes if node.url == service_url and node.is_up), None)

    def links(self) -> list[NetworkLink]:
        """The connections between brokers."""
        names = {node.name for node in self.nodes}
        return [link for link in self.network.links if names.issuperset(link.hosts)]

    # -- living and dying

    async def start(self, node: Node) -> None:
        """Starts a new life; retries, as a supervisor would, until the broker is up."""
        while True:
            node.lives += 1
            node.host = Host(node.name)
            host = node.host
            work = self.loop.create_task(self._boot(node), context=context_of(host))
            try:
                await work
            except AnabranchError as error:
                self.note(f"{node} did not start: {error}")
                self.kill(node)
                await asyncio.sleep(self.chance.uniform(0.05, 0.5))
                continue
            if host.is_dead:
                return  # The broker was killed while it started.
            node.is_up = True
            self.last_start_s = self.loop.time()
            self.note(f"{node} is up")
            return

    async def _boot(self, node: Node) -> None:
        session = await self.metadata.connect()
        lag_s = 0.0 if self._lags is None else self._lags.choice((0.0, 0.02, 0.2, 1.0)) * LAG_MAX_S
        follower = self.metadata.follower(session, lag_s) if lag_s else None
        make_store = OldReads if Sabotage.BELIEVE_OLD_READS in self._sabotage else Store
        node.store = make_store(session, self.weather, self.chance, follower)
        if lag_s:
            self.note(f"{node} reads metadata that is {lag_s} s behind")
        metadata = node.store
        resources = Resources(metadata, self._config.cluster_name)
        await resources.start()
        http_url = f"http://{node.name}:8080"
        cluster = ClusterData(service_url=http_url, broker_service_url=node.url)
        await resources.bootstrap(cluster, me=broker_id(node.url))
        incarnation = Incarnation(f"{node.name}-{node.lives}")
        log = node.log = self.new_log(incarnation)
        await log.start()
        broker = Broker(
            self._config,
            metadata,
            log,
            resources,
            service_url=node.url,
            http_url=http_url,
            now_ms=self.loop.now_ms,
            in_cluster=True,
            # A source of its own: what brokers draw changes nothing else.
            random_bytes=random.Random(f"{self.seed}/{incarnation}").randbytes,
            measured=self._measured,
        )
        if self._sabotage:
            corrupt(broker, self._sabotage)
            corrupt_balancer(broker, self._sabotage)
        await broker.start()
        node.broker = broker
        await self.loop.create_server(broker.new_session, node.name, PORT)

    def _measured(self, _: Broker, found: LoadSources) -> LoadSources:
        """Only the traffic is load: processor time and memory are of this process, and others with each run."""

        def settings() -> BalanceSettings:
            now = found.settings()
            return dataclasses.replace(now, is_shedding=False, is_splitting=False) if self.is_calm else now

        def shares(bytes_in: float, bytes_out: float) -> ResourceShares:
            return ResourceShares(min(1.0, (bytes_in + bytes_out) / BUSY_BYTES_PER_S))

        return dataclasses.replace(found, settings=settings, shares=shares)

    def new_log(self, incarnation: Incarnation) -> SlowLog | SimObjectLog:
        """A log on the medium that all brokers share."""
        make_log = next((kind for fault, kind in BAD_LOGS.items() if fault in self._sabotage), SlowLog)
        if self.bucket is not None and make_log is SlowLog:
            return SimObjectLog(self.bucket, self.loop, incarnation)
        return make_log(self.medium, self.disks, self.chance, incarnation=incarnation)

    def kill(self, node: Node) -> None:
        """`kill -9`. The store notices when the session times out."""
        node.is_up = False
        node.host.is_dead = True
        self.network.host_died(node.name)
        store = getattr(node, "store", None)
        if store is not None:
            self.loop.create_task(self._time_out(store), context=context_of(None))

    async def _time_out(self, store: Store) -> None:
        await asyncio.sleep(self.chance.uniform(0.5, 1.0) * SESSION_TIMEOUT_S)
        await store.inner.expire_session()
        self.metadata.forget(store.inner)

    async def restart_failed(self) -> None:
        """Restarts brokers whose log has ended: such a broker asks for a new process."""
        for node in self.up:
            if node.broker.failed.done() and not node.host.is_paused:
                self.note(f"{node} lost its log and starts anew")
                self.kill(node)
                await self.start(node)

    # -- pauses

    async def pause(self, node: Node, seconds: float) -> None:
        """Nothing of the broker runs; after a pause longer than its session's time-out, its session is lost too."""
        host, store = node.host, node.store
        self.note(f"{node} is paused for {seconds:.1f} s")
        host.is_paused = True
        first = min(seconds, SESSION_TIMEOUT_S)
        await asyncio.sleep(first)
        if seconds > SESSION_TIMEOUT_S and not host.is_dead:
            store.inner.disconnect()
            await store.inner.expire_session()
            self.note(f"{node}'s session has ended")
            await asyncio.sleep(seconds - first)
        if not host.is_dead:
            self.loop.resume(host)
            self.note(f"{node} goes on")
            await self._reconnect(node, store)

    async def cut_off(self, node: Node, seconds: float) -> None:
        """The broker runs but cannot reach the store."""
        host, store = node.host, node.store
        self.note(f"{node} is cut off from the store for {seconds:.1f} s")
        store.inner.disconnect()
        await asyncio.sleep(min(seconds, SESSION_TIMEOUT_S))
        if seconds > SESSION_TIMEOUT_S:
            await store.inner.expire_session()
            self.note(f"{node}'s session has ended")
            await asyncio.sleep(seconds - SESSION_TIMEOUT_S)
        if not host.is_dead:
            await self._reconnect(node, store)

    async def expire(self, node: Node) -> None:
        """The store ends the session of a healthy broker."""
        self.note(f"{node}'s session is ended by the store")
        store = node.store
        await store.inner.expire_session()
        await asyncio.sleep(self.chance.uniform(0.01, 1.0))
        await self._reconnect(node, store)

    async def _reconnect(self, node: Node, store: Store) -> None:
        if (
            node.store is store
            and not node.host.is_dead
            and store.session.state is not SessionState.CONNECTED
        ):
            await store.inner.reconnect()
            self.note(f"{node} reaches the store again")

    # -- calls of a broker

    async def ask(self, node: Node, call: Callable[[Broker], Awaitable[T]], seconds: float) -> T:
        """Runs a call inside that broker, as its admin REST would. TimeoutError if there is no answer."""

        async def run() -> T:
            return await call(node.broker)

        work = self.loop.create_task(run(), context=context_of(node.host))
        work.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([work], timeout=seconds)
        if not done:
            raise TimeoutError(f"{node} did not answer")
        return work.result()
