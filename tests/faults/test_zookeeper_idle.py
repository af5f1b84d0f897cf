"""What an idle cluster of 100,000 topics costs ZooKeeper, and how it starts."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from anabranch.broker.catalog.resources import MANAGED_LEDGERS
from anabranch.model.names import TopicName
from anabranch.storage.core.topic_record import TopicRecord
from harness.broker_process import until
from harness.zookeeper import HOST, SingleServer
from harness.zookeeper_cluster import ZooKeeperCluster

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(580)]

TOPICS = 100_000
PER_TRANSACTION = 500
OPS_PER_SECOND_MAX = 10
WINDOW_S = 15.0
SERVING_READS_MAX = 300
PER_PACKET = 100


def make_topics(port: int, chroot: str) -> None:
    """The records of that many topics, as they stay when nobody uses them."""
    client = KazooClient(f"{HOST}:{port}{chroot}", timeout=60)
    client.start(timeout=60)
    value = TopicRecord(created_ms=time.time_ns() // 1_000_000, topic_id=secrets.token_hex(8)).encode()
    paths = [f"{MANAGED_LEDGERS}/{TopicName.parse(f'idle-{n}').storage_path}" for n in range(TOPICS)]
    client.ensure_path(paths[0].rpartition("/")[0])
    for start in range(0, TOPICS, PER_TRANSACTION):
        transaction = client.transaction()
        for path in paths[start : start + PER_TRANSACTION]:
            transaction.create(path, value, acl=OPEN_ACL_UNSAFE)
        transaction.commit()
    client.stop()
    client.close()


def test_an_idle_cluster_of_many_topics_asks_zookeeper_next_to_nothing(tmp_path: Path) -> None:
    server = SingleServer()
    try:
        cluster = ZooKeeperCluster(tmp_path, server.ports())
        made = cluster.cluster("init", "--cluster", "river")
        assert made.returncode == 0, made.stderr
        make_topics(server.server.port, "/cluster")
        try:
            relays = [broker.relays[0] for broker in cluster.brokers]
            for broker in cluster.brokers:
                began = time.monotonic()
                broker.start()
                (relay,) = broker.relays
                print(f"started in {time.monotonic() - began:.1f} s: {dict(relay.counts)}")
                assert relay.counts["get"] + relay.counts["children"] < SERVING_READS_MAX
            assert cluster.brokers[0].get("persistent/public/default")[0].startswith("persistent://")

            def counted() -> int:
                return sum(relay.counts.total() + relay.events for relay in relays)

            def quiet() -> bool:
                before = counted()
                time.sleep(WINDOW_S)  # What is counted is a rate.
                print(f"{(counted() - before) / WINDOW_S:.1f} operations and events a second")
                return counted() - before <= WINDOW_S * OPS_PER_SECOND_MAX

            # First they finish what a start leaves to be done.
            until(quiet, within_s=120)
            assert quiet()
            for relay in relays:
                print(dict(relay.counts))
                # While it serves, it reads all records once, to learn which parts of the log are wanted.
                assert relay.counts["read many"] < 1.2 * TOPICS / PER_PACKET + SERVING_READS_MAX
        finally:
            for broker in cluster.brokers:
                broker.kill()
                broker.relays[0].close()
    finally:
        server.stop()
