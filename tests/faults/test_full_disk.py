"""A log that has reached its limit: publishing stops and comes back by itself, everything else goes on."""

from __future__ import annotations

import contextlib
import queue
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from soak.link import Kind, Link, ProducerClosed, Refused

from anabranch import blocking
from anabranch.client.errors import RequestRefused, TimedOut
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess, until

MIB = 1 << 20
TOPIC = "persistent://public/default/full"
OTHER = "persistent://public/default/other"
SETTINGS = {
    "logFileBytes": MIB,
    "logDiskBytesMax": 24 * MIB,
    "logDiskReserveBytes": 6 * MIB,
    "logCacheBytes": 2 * MIB,
    "defaultRetentionTimeInMinutes": 0,
    "logLingerSeconds": 0,
    "logLingerBytes": 0,
    "retentionCheckIntervalInSeconds": 1,
    # A message refused for want of space must not be taken for a duplicate when it comes again.
    "brokerDeduplicationEnabled": True,
}
FILLER = b"." * 60_000
RETRYABLE = (pb.ServiceNotReady, pb.ProducerBlockedQuotaExceededError)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[tuple[BrokerProcess, list[bytes]]]:
    """A broker whose log is full, with a subscription that has consumed nothing; and what has a receipt."""
    with BrokerProcess(folder, SETTINGS) as broker:
        with Link(broker.port) as link:
            for topic in (TOPIC, OTHER):
                link.subscribe(topic, "s")
                link.send(
                    pb.BaseCommand(
                        type=Kind.CLOSE_CONSUMER,
                        close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=99),
                    )
                )
                link.wait(lambda got: got.type == Kind.SUCCESS)
            sent: list[bytes] = []
            link.producer(OTHER, 2, "other")
            for n in range(40):
                link.publish(FILLER, n, 2)
            link.producer(TOPIC, 1, "p")
            with contextlib.suppress(ProducerClosed):
                for n in range(2000):
                    payload = b"%d %b" % (n, FILLER)
                    link.publish(payload, n)
                    sent.append(payload)
                raise AssertionError("the limit was never met")
        yield broker, sent


def drain(link: Link, count: int) -> list[bytes]:
    """Receives that many messages and acknowledges each; returns once every ack is answered."""
    link.subscribe(TOPIC, "s", permits=10_000)
    found = link.messages(count)
    for one in found:
        at = one.command.message.message_id
        link.ack([pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId)])
    return [bytes(messages(one.payload)[0][1]) for one in found]


def try_producer(broker: BrokerProcess, name: str) -> bool:
    """Whether a producer is admitted; a refusal must be one that clients try again."""
    with Link(broker.port) as link:
        try:
            link.producer(TOPIC, 1, name)
        except Refused as refused:
            if refused.code not in RETRYABLE:
                raise
            return False
        return True


def test_a_full_log_refuses_producers_serves_consumers_and_resumes_by_itself(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, sent):
        assert not try_producer(broker, "p")
        # A client that publishes meanwhile waits and needs no help afterwards.
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        answers: queue.Queue[object] = queue.Queue()
        with Link(broker.port) as link:
            assert drain(link, len(sent)) == sent
            until(lambda: try_producer(broker, "q"))
            producer = client.create_producer(TOPIC, producer_name="p", send_timeout_millis=0)
            # The message that met the limit may have been stored and its receipt dropped with its producer.
            last = producer.last_sequence_id()
            assert last in (len(sent) - 1, len(sent))
            producer.send_async(b"again", lambda result, _: answers.put(result), sequence_id=last + 1)
            assert answers.get(timeout=20) == pulsar.Result.Ok
            rest = link.messages(last + 2 - len(sent))
            assert bytes(messages(rest[-1].payload)[0][1]) == b"again"
        client.close()


def test_a_publisher_that_met_the_limit_gets_its_receipts_once_there_is_room(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker, Link(broker.port) as link:
        link.subscribe(TOPIC, "s")
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(
            TOPIC, producer_name="p", send_timeout_millis=0, max_pending_messages=10_000
        )
        answers: queue.Queue[object] = queue.Queue()
        count = 1500  # 90 MB, five times what fits.
        for n in range(count):
            producer.send_async(b"%d %b" % (n, FILLER), lambda result, _: answers.put(result), sequence_id=n)
        until(lambda: "publishing stops" in broker.log)
        link.flow(10_000)
        found = []
        for _ in range(count):
            frame = link.messages(1)[0]
            at = frame.command.message.message_id
            link.ack([pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId)], wait=False)
            found.append(int(bytes(messages(frame.payload)[0][1]).split()[0]))
        assert found == list(range(count))
        assert [answers.get(timeout=20) for _ in range(count)] == [pulsar.Result.Ok] * count
        client.close()


def test_administration_goes_on_and_deleting_a_topic_makes_room(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, sent):
        for path in ("namespaces/public/made", "persistent/public/default/made"):
            broker.put(path)
            broker.rest("DELETE", path)
        broker.rest("DELETE", "persistent/public/default/other?force=true")
        until(lambda: try_producer(broker, "q"))
        with Link(broker.port) as link:
            assert drain(link, len(sent)) == sent


def test_nothing_confirmed_is_lost_when_a_full_broker_is_killed(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, sent):
        broker.restart()
        until(lambda: not try_producer(broker, "p"))
        with Link(broker.port) as link:
            assert drain(link, len(sent)) == sent


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size at `folder`; skips where one cannot be made."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("making a file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_somebody_else_fills_stops_publishing_until_it_is_free_again(tmp_path: Path) -> None:
    settings = {**SETTINGS, "logDiskBytesMax": 0}
    with small_disk(tmp_path / "data", 64), BrokerProcess(tmp_path, settings) as broker:
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        producer = client.create_producer(TOPIC, producer_name="p", send_timeout_millis=0)
        with Link(broker.port) as link:
            link.subscribe(TOPIC, "s")
            for n in range(50):
                producer.send(b"%d" % n, sequence_id=n)
            other = tmp_path / "data" / "not ours"
            with other.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(FILLER)
            until(lambda: "publishing stops" in broker.log)
            answers: queue.Queue[object] = queue.Queue()
            for n in range(50, 100):
                producer.send_async(b"%d" % n, lambda result, _: answers.put(result), sequence_id=n)
            # Consuming and acknowledging go on with not a byte free.
            link.flow(1000)
            for n in range(50):
                frame = link.messages(1)[0]
                assert bytes(messages(frame.payload)[0][1]) == b"%d" % n
                at = frame.command.message.message_id
                link.ack([pb.MessageIdData(ledgerId=at.ledgerId, entryId=at.entryId)])
            other.unlink()
            assert [answers.get(timeout=30) for _ in range(50)] == [pulsar.Result.Ok] * 50
            found = [bytes(messages(one.payload)[0][1]) for one in link.messages(50)]
            assert found == [b"%d" % n for n in range(50, 100)]
        client.close()
        broker.stop()


def test_an_application_is_told_of_the_full_disk_when_its_time_is_over(tmp_path: Path) -> None:
    """Not that the broker could not be reached: its refusal is in the text, and the cause of the exception."""
    with filled(tmp_path) as (broker, _), blocking.connect(broker.url, operation_timeout_s=3) as client:
        producer = client.producer(TOPIC, send_timeout_s=3)
        with pytest.raises(TimedOut, match="the disk is full: the log takes") as caught:
            producer.send(b"one more")
        assert isinstance(caught.value.__cause__, RequestRefused)
        assert "reachable" not in str(caught.value)


def test_the_commands_tell_of_the_full_disk(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, _):
        code, said = anabranch(
            "produce", TOPIC, "-m", "one more", "--timeout", "3", "--service-url", broker.url
        )
        assert code == 1
        assert "the disk is full: the log takes" in said
        assert "logDiskBytesMax" in said
        assert "Traceback" not in said
        code, said = anabranch("brokers", "health", "--admin-url", f"http://127.0.0.1:{broker.http_port}")
        assert code == 1
        assert "publishing has stopped, as the disk is full: the log takes" in said
        code, said = anabranch("brokers", "ready", "--admin-url", f"http://127.0.0.1:{broker.http_port}")
        assert code == 0
        assert "ok, but publishing has stopped" in said


def anabranch(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "anabranch.cli", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_what_nobody_subscribes_to_never_fills_the_disk_and_the_newest_stays(tmp_path: Path) -> None:
    """By default it is kept for a week, but within its share of the disk: five times as much is sent as fits."""
    settings = {**SETTINGS, "defaultRetentionTimeInMinutes": 7 * 24 * 60}
    count, more = 1500, 40
    with BrokerProcess(tmp_path, settings) as broker, blocking.connect(broker.url) as client:
        with client.producer(TOPIC, send_timeout_s=100) as producer:
            for n in range(count):
                producer.post(b"%d %b" % (n, FILLER))
            producer.flush()
            # A disk that was full may have cost all of them. What comes now fits, beside what it may have left.
            until(lambda: stored_bytes(broker) <= 13 * MIB, within_s=60)
            for n in range(count, count + more):
                producer.send(b"%d %b" % (n, FILLER))
        with client.checkpoint_consumer(TOPIC, start="earliest") as consumer:
            numbers = [int(consumer.receive(timeout_s=30).value.split()[0])]
            while numbers[-1] < count + more - 1:
                numbers.append(int(consumer.receive(timeout_s=30).value.split()[0]))
    assert numbers == list(range(numbers[0], count + more))
    assert more <= len(numbers) < count


def stored_bytes(broker: BrokerProcess) -> int:
    stats = broker.get(f"{TOPIC.replace('://', '/')}/stats")
    return int(stats["storageSize"])
