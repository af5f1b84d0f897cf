"""The demo's steps, in order: each does something with Pulsar's client and checks the broker's response."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any

import pulsar

from anabranch.cli.demo.account import Account, StoryEnded
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.demo.wheel import Receipts, Received, connect, consume

TOPIC = "persistent://public/default/orders"
KEYED_TOPIC = "persistent://public/default/payments"
CRASH_TOPIC = "persistent://public/default/ledger"
KEYS = 20
SHARED, FAILOVER, KEY_SHARED, AUDIT = "shared", "failover", "key-shared", "audit"
TYPES = {
    SHARED: pulsar.ConsumerType.Shared,
    FAILOVER: pulsar.ConsumerType.Failover,
    KEY_SHARED: pulsar.ConsumerType.KeyShared,
    AUDIT: pulsar.ConsumerType.Exclusive,
}


class Story:
    def __init__(self, account: Account, messages: int) -> None:
        self._tell = account
        self._count = messages
        self._texts = [f"{number:06d}" for number in range(messages)]
        self._broker = BrokerProcess()
        self._client: Any = None

    def tell(self) -> None:
        try:
            with suppress(StoryEnded):
                self._start()
                self._produce()
                self._consume_shared()
                self._consume_failover()
                self._consume_key_shared()
                self._crash()
                self._figures()
                self._stop()
        finally:
            self._broker.discard()
            if self._client is not None:
                # Not `close`, which would wait for the broker that is gone.
                self._client.shutdown()

    def _start(self) -> None:
        with self._tell.step("Start a broker in an empty folder and look a topic up"):
            seconds = self._broker.start()
            self._tell.say(
                f"process {self._broker.pid} serves {self._broker.service_url} and {self._broker.admin_url}"
            )
            self._tell.say(f"it was ready after {seconds:.2f} s; its data is in {self._broker.folder}")
            found = self._broker.rest("GET", "/lookup/v2/topic/persistent/public/default/orders")
            self._tell.check(
                found["brokerUrl"] == self._broker.service_url, f"{TOPIC} is served at {found['brokerUrl']}"
            )
            self._client = connect(self._broker.service_url)
            partitions = self._client.get_topic_partitions(TOPIC)
            self._tell.check(partitions == [TOPIC], "Pulsar's client finds it by its own lookup")

    def _produce(self) -> None:
        with self._tell.step(f"Produce {self._count:,} keyed messages"):
            for name in (SHARED, FAILOVER):
                # Made before the first message, so that each subscription gets every message.
                self._subscribe(name, TOPIC).close()
            self._send_all(TOPIC)

    def _send_all(self, topic: str) -> None:
        producer = self._client.create_producer(
            topic, batching_type=pulsar.BatchingType.KeyBased, block_if_queue_full=True
        )
        receipts = Receipts()
        started = monotonic()
        for number, text in enumerate(self._texts):
            receipts.send(producer, f"key-{number % KEYS}", text)
        producer.flush()
        receipts.wait_for(self._count)
        seconds = monotonic() - started
        producer.close()
        self._tell.check(
            len(receipts.stored) == self._count,
            f"{len(receipts.stored):,} receipts, each sent after its message was on disk "
            f"({self._count / seconds:,.0f} a second)",
        )

    def _subscribe(self, name: str, topic: str, consumer_name: str | None = None) -> Any:
        return self._client.subscribe(
            topic,
            name,
            consumer_type=TYPES[name],
            consumer_name=consumer_name,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=100,
        )

    def _consume_shared(self) -> None:
        with self._tell.step("Shared subscription: three consumers divide the work"):
            consumers = [self._subscribe(SHARED, TOPIC) for _ in range(3)]
            received = consume(consumers, self._count)
            self._tell.say(f"consumers got {_shares(received)} messages")
            self._tell.check(
                _is_once_each(received, self._texts), f"all {self._count:,} messages came, none twice"
            )
            _close(consumers)

    def _consume_failover(self) -> None:
        with self._tell.step("Failover subscription: a standby takes over"):
            consumers = [self._subscribe(FAILOVER, TOPIC, name) for name in ("a", "b")]
            first = consume(consumers, self._count // 2)
            active = {one.consumer for one in first}
            self._tell.check(
                len(active) == 1, f"one of two consumers is active and got {len(first):,} messages"
            )
            consumers[min(active)].close()
            standby = consumers[1 - min(active)]
            rest = consume([standby], self._count, seen=first)
            self._tell.say(
                f"it left; the standby got {len(rest):,}, of which {_repeated(first, rest)} a second time"
            )
            together = list({one.text: one for one in (*first, *rest)}.values())
            self._tell.check(
                _is_once_each(together, self._texts), f"together they got all {self._count:,} messages"
            )
            self._tell.check(_is_in_order(together), "each key's messages came in order")
            standby.close()

    def _consume_key_shared(self) -> None:
        with self._tell.step("Key_Shared subscription: every key stays with one consumer"):
            consumers = [self._subscribe(KEY_SHARED, KEYED_TOPIC) for _ in range(3)]
            self._send_all(KEYED_TOPIC)
            received = consume(consumers, self._count)
            owners: dict[str, set[int]] = defaultdict(set)
            for one in received:
                owners[one.key].add(one.consumer)
            held = Counter(min(of_key) for of_key in owners.values())
            self._tell.say(
                f"consumers hold {' + '.join(str(held[i]) for i in range(3))} of {len(owners)} keys"
            )
            self._tell.check(
                _is_once_each(received, self._texts), f"all {self._count:,} messages came, none twice"
            )
            self._tell.check(
                all(len(of_key) == 1 for of_key in owners.values()), "no key went to two consumers"
            )
            self._tell.check(_is_in_order(received), "each key's messages came in order")
            _close(consumers)

    def _crash(self) -> None:
        with self._tell.step("Kill the broker with SIGKILL while it is being written to"):
            self._broker.rest("POST", "/admin/v2/namespaces/public/default/deduplication", True)
            self._tell.say(
                "deduplication is on, so what the client sends again after the crash is stored once"
            )
            subscription = self._subscribe(AUDIT, CRASH_TOPIC)
            producer = self._client.create_producer(
                CRASH_TOPIC,
                "clerk",
                block_if_queue_full=True,
                send_timeout_millis=60_000,
                max_pending_messages=200,
            )
            receipts = Receipts()
            for number, text in enumerate(self._texts):
                receipts.send(producer, f"key-{number % KEYS}", text)
                if number == self._count // 2:
                    receipts.wait_for(self._count // 4)
                    self._broker.kill()
                    known = len(receipts.stored)
                    self._tell.say(
                        f"killed after {known:,} receipts, with {number + 1 - known:,} messages on their way"
                    )
                    seconds = self._broker.start()
                    self._tell.say(
                        f"started again on the same folder in {seconds:.2f} s; the client reconnects by itself"
                    )
            producer.flush()
            receipts.wait_for(self._count)
            self._tell.check(
                len(receipts.stored) == self._count, f"{len(receipts.stored):,} receipts in the end"
            )
            received = [one.text for one in consume([subscription], self._count)]
            missing = set(receipts.stored) - set(received)
            self._tell.check(
                not missing, f"{len(missing)} of {len(receipts.stored):,} acknowledged messages are missing"
            )
            self._tell.check(
                received == self._texts, f"{len(received):,} messages came back, in order, none twice"
            )
            producer.close()
            subscription.close()
            left = {name: self._backlog("orders", name) for name in (SHARED, FAILOVER)}
            left[KEY_SHARED] = self._backlog("payments", KEY_SHARED)
            self._tell.check(
                not any(left.values()),
                "what was consumed before the crash stays consumed: "
                + ", ".join(f"{name} has {count} left" for name, count in left.items()),
            )

    def _backlog(self, topic: str, subscription: str) -> int:
        stats = self._broker.rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
        return int(stats["subscriptions"][subscription]["msgBacklog"])

    def _figures(self) -> None:
        with self._tell.step("Ask the admin REST"):
            topics = self._broker.rest("GET", "/admin/v2/persistent/public/default")
            expected = sorted([TOPIC, KEYED_TOPIC, CRASH_TOPIC])
            self._tell.check(sorted(topics) == expected, f"three topics: {', '.join(sorted(topics))}")
            stats = self._broker.rest("GET", "/admin/v2/persistent/public/default/ledger/stats")
            self._tell.say(
                f"ledger: {stats['msgInCounter']:,} messages in since the restart, {stats['msgOutCounter']:,} out, "
                f"{stats['storageSize']:,} bytes stored, backlog of audit {self._backlog('ledger', AUDIT)}"
            )
            self._tell.check(self._backlog("ledger", AUDIT) == 0, "audit has acknowledged everything")
            page = str(self._broker.rest("GET", "/metrics"))
            resident = next(
                line for line in page.splitlines() if line.startswith("process_resident_memory_bytes")
            )
            self._tell.say(f"the broker uses {float(resident.split()[-1]) / (1 << 20):.0f} MB of memory")

    def _stop(self) -> None:
        with self._tell.step("Stop the broker with SIGTERM"):
            self._client.close()
            code = self._broker.stop()
            self._tell.check(code == 0, f"it ended cleanly, with exit code {code}")


def _shares(received: Iterable[Received]) -> str:
    shares = Counter(one.consumer for one in received)
    return " + ".join(f"{shares[number]:,}" for number in sorted(shares))


def _is_once_each(received: Iterable[Received], texts: list[str]) -> bool:
    return sorted(one.text for one in received) == texts


def _is_in_order(received: Iterable[Received]) -> bool:
    """Whether each key's messages came in the order they were sent."""
    of_key: dict[str, list[str]] = defaultdict(list)
    for one in received:
        of_key[one.key].append(one.text)
    return all(texts == sorted(texts) for texts in of_key.values())


def _repeated(first: Iterable[Received], then: Iterable[Received]) -> int:
    return len({one.text for one in first} & {one.text for one in then})


def _close(consumers: Iterable[Any]) -> None:
    for consumer in consumers:
        consumer.close()
