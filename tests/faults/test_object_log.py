"""Brokers whose log is in an object store: killed, paused, and without their store for a while."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from soak.link import Link, owner_port, send_frame

from anabranch.client.reading.direct import entries, record_batches
from anabranch.client.reading.plans import Planner
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from faults.test_cluster_paused import owner_now, published, read_all, telling
from faults.test_stopped import ack_was_stored, receipts_until_quiet
from harness.broker_process import BrokerProcess, until
from harness.cluster_process import ClusterProcess
from harness.minio import bucket_url, minio_pid

pytestmark = pytest.mark.timeout(300)

TOPIC = "persistent://public/default/taken"
BEFORE, IN_FLIGHT, AFTER = 20, 200, 20


@pytest.fixture(params=["folder", pytest.param("minio", marks=pytest.mark.objects)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    url = (
        bucket_url(f"faults-{secrets.token_hex(8)}")
        if request.param == "minio"
        else f"objects://{tmp_path}/objects"
    )
    return {"logUrl": url, "logObjectPutsPerSecond": 0}


def read_back(port: int, last: bytes) -> list[bytes]:
    with Link(port) as link:
        link.subscribe(TOPIC, secrets.token_hex(4), permits=100_000)
        found: list[bytes] = []
        while not found or found[-1] != last:
            found += [bytes(messages(frame.payload)[0][1]) for frame in link.messages(1)]
    return found


def publish_and_kill(broker: BrokerProcess, first: int) -> int:
    """Publishes some messages one after the other, then many at once, and kills the broker among those. Returns how
    many it has confirmed."""
    with Link(broker.port) as link:
        link.producer(TOPIC)
        for n in range(first, first + BEFORE):
            link.publish(b"%d" % n, n)
        flying = range(first + BEFORE, first + BEFORE + IN_FLIGHT)
        link.sock.sendall(b"".join(send_frame([b"%d" % n], n) for n in flying))
        link.wait_receipt()
        broker.kill()
        try:
            confirmed = first + BEFORE + 1
            while True:
                link.wait_receipt()
                confirmed += 1
        except OSError:
            return confirmed


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path, settings: dict[str, object]) -> None:
    with BrokerProcess(tmp_path, settings, brokers=1) as broker:
        texts: list[bytes] = []
        for end in (b"end 0", b"end 1", b"end 2"):
            confirmed = publish_and_kill(broker, len(texts))
            broker.start()
            with Link(broker.port) as link:
                link.producer(TOPIC)
                link.publish(end, 1 << 40)
            found = [text for text in read_back(broker.port, end) if not text.startswith(b"end")]
            assert found == [b"%d" % n for n in range(len(found))]
            assert len(found) >= confirmed
            texts = found
        assert not (tmp_path / "data" / "log" / "wal").exists()
        # And once more after a clean end, whose successor recovers nothing.
        assert broker.stop() == 0
        broker.start()
        assert [text for text in read_back(broker.port, end) if not text.startswith(b"end")] == texts


def test_a_broker_paused_until_its_topic_is_taken_confirms_nothing_more(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    with ClusterProcess(tmp_path, settings, brokers=2) as cluster:
        ports = {name: int(url.rpartition(":")[2]) for name, url in cluster.own_urls.items()}
        owner = owner_port(cluster.port, TOPIC)
        (name,) = (one for one, port in ports.items() if port == owner)
        other = next(port for port in ports.values() if port != owner)
        pid = cluster.pids[name]
        texts = {n: b"%d" % n for n in range(BEFORE + IN_FLIGHT)}
        with Link(owner) as link, Link(owner) as reader:
            reader.subscribe(TOPIC, "s", permits=1000)
            link.producer(TOPIC)
            receipts = {n: link.publish(texts[n], n) for n in range(BEFORE)}
            held = reader.messages(1)[0].command.message.message_id
            # As many as fit are on their way when the broker falls asleep.
            link.sock.sendall(b"".join(send_frame([texts[n]], n) for n in range(BEFORE, BEFORE + IN_FLIGHT)))
            os.kill(pid, signal.SIGSTOP)
            # It loses its session. The other one opens the topic, gets no last word, and fences its ledger.
            until(lambda: owner_now(other) not in (None, owner))
            until(lambda: published(other, b"taken"))
            late = range(BEFORE + IN_FLIGHT, BEFORE + IN_FLIGHT + AFTER)
            link.sock.sendall(b"".join(send_frame([b"after %d" % n], n) for n in late))
            request = reader.ack([pb.MessageIdData(ledgerId=held.ledgerId, entryId=held.entryId)], wait=False)
            os.kill(pid, signal.SIGCONT)
            told = receipts_until_quiet(link)
            assert not ack_was_stored(reader, request)
        # It was not ended for it: its other ledgers are its own.
        assert cluster.pids[name] == pid
        until(lambda: published(other, b"last"))
        met: Counter[str] = Counter()
        with telling(met):
            found = until(lambda: read_all(other, b"last", met))
    receipts |= {one.sequence_id: one.message_id for one in told}
    assert max(receipts) < BEFORE + IN_FLIGHT
    for n, at in receipts.items():
        assert found[at.ledgerId, at.entryId] == texts[n]
    in_order = list(dict.fromkeys(found.values()))
    assert in_order[-2:] == [b"taken", b"last"]
    assert in_order[:-2] == [texts[n] for n in range(len(in_order) - 2)]


def test_a_broker_killed_for_good_leaves_its_topics_to_the_others(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    with ClusterProcess(tmp_path, settings, brokers=2) as cluster:
        ports = {name: int(url.rpartition(":")[2]) for name, url in cluster.own_urls.items()}
        owner = owner_port(cluster.port, TOPIC)
        (name,) = (one for one, port in ports.items() if port == owner)
        other = next(port for port in ports.values() if port != owner)
        with Link(owner) as link:
            link.producer(TOPIC)
            for n in range(BEFORE):
                link.publish(b"%d" % n, n)
            # Its supervisor starts another in its place, with a log of its own.
            cluster.kill_one(name)
        until(lambda: published(other, b"last"))
        met: Counter[str] = Counter()
        with telling(met):
            found = until(lambda: read_all(other, b"last", met))
    assert list(dict.fromkeys(found.values())) == [*(b"%d" % n for n in range(BEFORE)), b"last"]


@pytest.mark.objects
def test_without_its_store_a_broker_waits_and_closes_nothing(tmp_path: Path) -> None:
    settings = {"logUrl": bucket_url(f"outage-{secrets.token_hex(8)}"), "logObjectPutsPerSecond": 0}
    with BrokerProcess(tmp_path, settings, brokers=1) as broker, Link(broker.port) as link:
        link.producer(TOPIC)
        for n in range(BEFORE):
            link.publish(b"%d" % n, n)
        os.kill(minio_pid(), signal.SIGSTOP)
        try:
            link.sock.sendall(b"".join(send_frame([b"%d" % n], n) for n in range(BEFORE, BEFORE + IN_FLIGHT)))
            until(lambda: "publishing waits" in broker.log, within_s=120)
            assert link.receive(0.01) is None, "nothing is confirmed, and nothing is closed"
        finally:
            os.kill(minio_pid(), signal.SIGCONT)
        for _ in range(IN_FLIGHT):
            link.wait_receipt()
        assert "takes what is written again" in broker.log
        assert read_back(broker.port, b"%d" % (BEFORE + IN_FLIGHT - 1)) == [
            b"%d" % n for n in range(BEFORE + IN_FLIGHT)
        ]


def rewritten_objects(folder: Path) -> set[Path]:
    return {path for path in folder.glob("wal/*/*/rewritten/*") if path.is_file()}


def commit_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("wal/*/*/log/*"):
        # A broker deletes them meanwhile.
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_brokers_killed_while_they_rewrite_objects_lose_nothing_and_leave_no_garbage(tmp_path: Path) -> None:
    """A little that is kept lies in the same objects as much that is deleted."""
    settings: dict[str, object] = {
        "logUrl": f"objects://{tmp_path}/objects",
        "logObjectPutsPerSecond": 20,
        "logObjectReclaimSeconds": 1,
        "logObjectDeleteDelaySeconds": 1,
        "logObjectRewriteWasteBytes": 1,
        # So slowly that a kill comes between two jobs, too.
        "logObjectRewriteBytesPerSecond": 4 << 20,
    }
    folder = tmp_path / "objects"
    kept: list[bytes] = []
    pauses = Random(7)
    made: set[Path] = set()
    with BrokerProcess(tmp_path, settings, brokers=1) as broker:
        for life in range(5):
            bulk = f"persistent://public/default/bulk-{life}"
            with Link(broker.port) as link, Link(broker.port) as other:
                link.producer(TOPIC)
                other.producer(bulk)
                for n in range(40):
                    text = b"%d-%d" % (life, n)
                    other.sock.sendall(send_frame([b"x" * 60_000], n))
                    link.publish(text, life * 100 + n)
                    kept.append(text)
                    other.wait_receipt()
            broker.rest("DELETE", f"/persistent/public/default/bulk-{life}?force=true")
            before = rewritten_objects(folder)
            if life % 2:
                until(lambda before=before: rewritten_objects(folder) - before)  # type: ignore[misc]
            else:
                killed_at = time.monotonic() + pauses.uniform(0.1, 1.5)
                until(lambda at=killed_at: time.monotonic() > at)  # type: ignore[misc]
            broker.kill()
            made |= rewritten_objects(folder)
            broker.start()
        assert len(made) >= 3, "objects were rewritten"
        # Until the last broker has nothing left to do.
        until(lambda: commit_bytes(folder) < 500_000)
        found = read_back(broker.port, kept[-1])
        assert found == kept
        # Plans name the objects that were rewritten.
        planner = Planner(f"http://127.0.0.1:{broker.http_port}", TOPIC)
        assert any("/rewritten/" in file for file in planner().files)
        direct = [bytes(messages(data)[0][1]) for _, _, data in entries(planner, None, None)]
        assert direct == kept
        assert broker.stop() == 0
    log = ["--data-dir", str(tmp_path / "data"), "--log", f"objects://{folder}"]
    command = [sys.executable, "-m", "anabranch.cli", "log"]
    told = subprocess.run([*command, "verify", *log], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "all of them can be read" in told.stdout
    told = subprocess.run(
        [*command, "gc", "--dry-run", "--json", *log], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    logs = json.loads(told.stdout)
    assert not [one for one in logs if one["errors"]]
    # What nobody names is found by brokers, too: nothing of it is older than the last life.
    assert not [one for one in logs[:-2] if one["garbage"]]


def test_entries_are_read_from_the_store_without_the_broker(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """By signed URLs where the store has such, and with credentials of one's own; over a kill of the broker."""
    with BrokerProcess(tmp_path, settings, brokers=1) as broker:
        planner = Planner(f"http://127.0.0.1:{broker.http_port}", TOPIC)
        publish_and_kill(broker, 0)
        broker.start()
        with Link(broker.port) as link:
            link.producer(TOPIC)
            link.publish(b"last", 1 << 40)
        expected = read_back(broker.port, b"last")
        for signed in (True, False):
            ask = replace(planner, signed=signed)
            plan = ask()
            assert plan.in_objects
            assert bool(plan.urls) == (signed and str(settings["logUrl"]).startswith("s3:"))
            found = [bytes(messages(data)[0][1]) for _, _, data in entries(ask, None, None)]
            assert found == expected
            (*_, piece) = record_batches(ask, None, None)
            assert piece.batch["value"].to_pylist()[-1] == b"last"


def test_a_store_that_cannot_be_reached_is_told_of_at_the_start(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, {"logUrl": "s3://bucket/prefix?endpoint=https://[::1]:9"}, brokers=1)
    with pytest.raises(AssertionError, match="code 1"):
        broker.start()
    assert "cannot use logUrl" in broker.log
    assert "Traceback" not in broker.log


def test_a_folder_keeps_to_the_log_that_it_began_with(tmp_path: Path) -> None:
    elsewhere = {"logUrl": f"objects://{tmp_path}/objects"}
    with BrokerProcess(tmp_path, elsewhere, brokers=1) as broker:
        broker.stop()
        broker.settings = {}
        with pytest.raises(AssertionError, match="set logUrl as it was"):
            broker.start()
        broker.settings = {"logUrl": f"objects://{tmp_path}/others"}
        with pytest.raises(AssertionError, match="do not belong together"):
            broker.start()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(AssertionError, match="code 1"):
        BrokerProcess(other, {"logUrl": "s3://key:secret@bucket/x"}, brokers=1).start()
    assert "secret@" not in (other / "broker.log").read_text()
