"""The blocking face under many threads: one outcome for each message, order, errors at once, interrupts."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pytest

import anabranch
from anabranch import blocking
from unit.client.scripted_thread import SEGMENT, WITHIN_S, ScriptedThread

TOPIC = "topic://public/default/t"

Outcome = tuple[bytes, Future[Any] | None]


@pytest.fixture
def broker() -> Iterator[ScriptedThread]:
    scripted = ScriptedThread()
    yield scripted
    scripted.close()


@pytest.fixture
def connected(broker: ScriptedThread) -> Iterator[blocking.Client]:
    with blocking.connect(broker.script.url) as client:
        yield client


# -- posting


def post_many(producer: blocking.Producer, thread: int, count: int, chance: random.Random) -> list[Outcome]:
    """Posts until it is refused; what came of each."""
    found: list[Outcome] = []
    for number in range(count):
        payload = b"%d/%d" % (thread, number)
        options: dict[str, Any] = {}
        if chance.random() < 0.05:
            options = {"ordering_key": b"o"}  # One with an entry to itself.
        try:
            found.append((payload, producer.post(payload, key=f"k{number % 3}", **options)))
            if chance.random() < 0.01:
                producer.flush()
            elif chance.random() < 0.01:
                producer.send(b"%d/%d" % (thread, -1), key="sent")
        except anabranch.Closed:
            return found
    return found


def check_order(broker: ScriptedThread, accepted: set[bytes]) -> None:
    """Everything accepted is stored once, and in order for each thread and key."""
    by_key: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    stored: list[bytes] = []
    for message in broker.stored():
        thread, number = (int(part) for part in message.payload.split(b"/"))
        if number >= 0:
            stored.append(message.payload)
            by_key[thread, message.key].append(number)
    assert len(set(stored)) == len(stored)
    assert accepted <= set(stored)
    for numbers in by_key.values():
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("seed", range(3))
def test_posts_of_many_threads_are_stored_once_and_in_order(
    broker: ScriptedThread, connected: blocking.Client, seed: int
) -> None:
    with connected.producer(TOPIC) as producer, ThreadPoolExecutor(4) as threads:
        posting = [
            threads.submit(post_many, producer, thread, 1000, random.Random(seed * 10 + thread))
            for thread in range(4)
        ]
        outcomes = [outcome for one in posting for outcome in one.result(WITHIN_S)]
        producer.flush()
        assert len(outcomes) == 4000
        assert all(future is not None and future.done() for _, future in outcomes)
        assert len({future.result() for _, future in outcomes if future is not None}) == 4000
    check_order(broker, {payload for payload, _ in outcomes})


@pytest.mark.parametrize("ends", ["producer", "producer, not flushed", "client", "client, not flushed"])
@pytest.mark.parametrize("after", [0, 300])
def test_every_post_that_races_a_close_is_stored_or_says_why_not(
    broker: ScriptedThread, ends: str, after: int
) -> None:
    client = blocking.connect(broker.script.url)
    producer = client.producer(TOPIC)
    with ThreadPoolExecutor(3) as threads:
        posting = [
            threads.submit(post_many, producer, thread, 100_000, random.Random(thread)) for thread in range(3)
        ]
        post_many(producer, 3, after, random.Random(3))
        end: Callable[..., None] = client.close if "client" in ends else producer.close
        end(flush="not" not in ends)
        outcomes = [outcome for one in posting for outcome in one.result(WITHIN_S)]
    client.close()
    accepted = set()
    for payload, future in outcomes:
        assert future is not None
        error = future.exception(WITHIN_S)
        assert error is None or isinstance(error, anabranch.Closed)
        if error is None:
            accepted.add(payload)
    check_order(broker, accepted)


def test_closing_waits_for_what_other_threads_posted_before(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    producer = connected.producer(TOPIC)
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(lambda: [producer.post(b"0/%d" % n, key="k") for n in range(500)]).result()
    producer.close()
    assert all(one.result(0).segment == 0 for one in later)
    with pytest.raises(anabranch.Closed):
        producer.post(b"x")


def test_what_is_wrong_with_a_message_is_raised_at_once(connected: blocking.Client) -> None:
    with connected.producer(TOPIC) as producer:
        with pytest.raises(anabranch.BadArgument):
            producer.post("text")  # type: ignore[arg-type]
        with pytest.raises(anabranch.BadArgument):
            producer.post(b"x", key=5)  # type: ignore[arg-type]
        with pytest.raises(anabranch.BadArgument):
            producer.post(b"x", properties={"a": 1})  # type: ignore[dict-item]
        with pytest.raises(anabranch.BadArgument):
            producer.post(b"x", event_time=-1)
        producer.post(b"x", sequence_id=7)
        with pytest.raises(anabranch.BadArgument):
            producer.post(b"x", sequence_id=7)
        assert producer.last_sequence_id == 7


def test_memory_that_is_short_is_told_at_once(broker: ScriptedThread) -> None:
    broker.script.receipts = False
    with blocking.connect(broker.script.url, memory_bytes_max=10_000, when_full="refuse") as client:
        producer = client.producer(TOPIC)
        later: list[Future[Any]] = []
        with contextlib.suppress(anabranch.MemoryFull):
            later.extend(producer.post(b"x" * 1000) for _ in range(100))
        assert 5 <= len(later) <= 10
        producer.close(flush=False)
        assert all(isinstance(one.exception(WITHIN_S), anabranch.Closed) for one in later)


def test_a_thread_that_waits_for_memory_goes_on_when_the_producer_is_closed(broker: ScriptedThread) -> None:
    broker.script.receipts = False
    with blocking.connect(broker.script.url, memory_bytes_max=10_000) as client:
        producer = client.producer(TOPIC)
        later: list[Future[Any]] = []
        is_full = threading.Event()

        def post() -> None:
            while True:
                later.append(producer.post(b"x" * 100_000, key="k"))
                if len(later) == 8:
                    is_full.set()

        with ThreadPoolExecutor(1) as threads:
            posting = threads.submit(post)
            assert is_full.wait(WITHIN_S)
            producer.close(flush=False)
            with pytest.raises(anabranch.Closed):
                posting.result(WITHIN_S)
        assert all(isinstance(one.exception(WITHIN_S), anabranch.Closed) for one in later)


def test_a_message_is_what_it_was_when_it_was_posted(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    value, properties = bytearray(b"before"), {"p": "before"}
    with connected.producer(TOPIC) as producer:
        producer.post(value, properties=properties, key="k")  # type: ignore[arg-type]
        producer.post(b"x", properties=properties, key=b"\x00", event_time=datetime.fromtimestamp(5, UTC))
        value[:], properties["p"] = b"after!", "after"
    one, two = broker.stored()
    assert (one.payload, one.properties, one.key) == (b"before", {"p": "before"}, "k")
    assert (two.properties, two.key_bytes, two.event_time_ms) == ({"p": "before"}, b"\x00", 5000)


def test_a_callback_may_post(broker: ScriptedThread, connected: blocking.Client) -> None:
    done: Future[Any] = Future()

    def again(stored: Future[Any]) -> None:
        try:
            done.set_result(producer.post(b"0/1", key="k"))
        except BaseException as error:
            done.set_exception(error)

    with connected.producer(TOPIC) as producer:
        producer.post(b"0/0", key="k").add_done_callback(again)
        assert done.result(WITHIN_S).result(WITHIN_S).segment == 0
    check_order(broker, {b"0/0", b"0/1"})


class Interrupted(Exception):
    pass


def interrupt() -> None:
    raise Interrupted


@contextlib.contextmanager
def interrupts(work: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Gives a function to call for an interrupt a little later, somewhere in what this thread does then."""

    def handle(number: int, frame: FrameType | None) -> None:
        work()

    # An interrupt of the collector would be lost: Python ignores what finalizers raise.
    gc.collect()
    gc.disable()
    before = signal.signal(signal.SIGVTALRM, handle)
    try:
        yield lambda: _alarm(0.003)
    finally:
        _alarm(0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()


def _alarm(after_s: float) -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, after_s)


def test_an_interrupt_loses_nothing_that_was_accepted(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    later: list[Outcome] = []
    number = 0
    with connected.producer(TOPIC) as producer:
        with interrupts(interrupt) as interrupt_soon:
            for _ in range(20):
                with contextlib.suppress(Interrupted):
                    interrupt_soon()
                    for _ in range(20_000):
                        number += 1
                        later.append((b"0/%d" % number, producer.post(b"0/%d" % number, key="k")))
        producer.flush()
        assert all(future is not None and future.exception(0) is None for _, future in later)
    check_order(broker, {payload for payload, _ in later})


def test_a_signal_handler_may_flush_whatever_it_interrupts(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    flushed: list[int] = []
    later: list[Outcome] = []
    number = 0

    def flush() -> None:
        known = list(later)
        producer.flush()
        assert all(future is not None and future.done() for _, future in known)
        flushed.append(number)

    with connected.producer(TOPIC) as producer, interrupts(flush) as interrupt_soon:
        for turn in range(20):
            interrupt_soon()
            while len(flushed) <= turn:
                number += 1
                later.append((b"0/%d" % number, producer.post(b"0/%d" % number, key="k")))
                if number % 100 == 0:
                    producer.send(b"0/-1", key="k")
    check_order(broker, {payload for payload, _ in later})


# -- receiving


def receive_all(consumer: blocking.QueueConsumer | blocking.StreamConsumer) -> list[tuple[int, int]]:
    found = []
    for message in consumer:
        found.append((message.entry, message.index))
        if isinstance(consumer, blocking.QueueConsumer):
            consumer.ack(message)
    return found


def deliver(broker: ScriptedThread, entries: range) -> None:
    """Batches of different sizes, one message each without, in bursts."""

    async def send() -> None:
        script = broker.script
        await script.until(lambda: SEGMENT in script.consumers)
        for entry in entries:
            if entry % 3:
                script.deliver_batch(SEGMENT, entry, 1 + entry % 40)
            else:
                script.deliver(SEGMENT, entry)

    broker.run(send)


def expected(entries: range) -> list[tuple[int, int]]:
    return [(entry, index) for entry in entries for index in (range(1 + entry % 40) if entry % 3 else (-1,))]


@pytest.mark.parametrize("options", [{}, {"processing_timeout_s": 60.0}, {"receive_queue": 1}])
def test_every_message_goes_to_one_thread_and_is_acknowledged(
    broker: ScriptedThread, connected: blocking.Client, options: dict[str, Any]
) -> None:
    entries = range(300)
    acked: Callable[[], bool] = lambda: len({entry for _, _, entry, _ in broker.script.acks}) == 300  # noqa: E731
    with connected.queue_consumer(TOPIC, "q", **options) as queue, ThreadPoolExecutor(4) as threads:
        receiving = [threads.submit(receive_all, queue) for _ in range(4)]
        deliver(broker, entries)
        broker.until(acked)
        assert queue.flush()
        queue.close()
        found = [one.result(WITHIN_S) for one in receiving]
    assert sorted(place for one in found for place in one) == sorted(expected(entries))
    for one in found:
        assert one == sorted(one)


def test_one_thread_gets_messages_in_order_and_acknowledges_with_them(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    entries = range(200)
    with connected.stream_consumer(TOPIC, "s") as stream:
        deliver(broker, entries)
        found = []
        for _ in expected(entries):
            message = stream.receive(WITHIN_S)
            stream.ack_cumulative(message)
            found.append((message.entry, message.index))
        assert found == expected(entries)
        assert stream.flush()
        assert broker.script.acks[-1][2:] == (199, True)


def test_what_was_acknowledged_before_a_client_closes_is_sent(broker: ScriptedThread) -> None:
    client = blocking.connect(broker.script.url)
    queue = client.queue_consumer(TOPIC, "q")
    broker.deliver(range(50))
    for _ in range(50):
        queue.ack(queue.receive(WITHIN_S))
    client.close(flush=False)
    assert sorted(entry for _, _, entry, _ in broker.script.acks) == list(range(50))
    with pytest.raises(anabranch.Closed):
        queue.receive(0)


def test_handing_back_and_acknowledging_keep_their_order(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    options: dict[str, Any] = {"negative_ack": anabranch.NackDelay(first_s=0, max_s=0)}
    with connected.queue_consumer(TOPIC, "q", **options) as queue:
        broker.deliver(range(2))
        one, two = queue.receive(WITHIN_S), queue.receive(WITHIN_S)
        queue.nack(one)
        queue.ack(two)
        queue.ack(one)  # Settled after all, before it was due.
        assert queue.flush()
        assert {entry for _, _, entry, _ in broker.script.acks} == {0, 1}


def test_a_segment_that_is_taken_away_takes_what_was_made_ready_with_it(
    broker: ScriptedThread, connected: blocking.Client
) -> None:
    with connected.stream_consumer(TOPIC, "s") as stream:
        broker.deliver(range(20))
        assert stream.receive(WITHIN_S).entry == 0
        broker.run(_soon(lambda: broker.script.assign(1, [])))
        broker.until(lambda: broker.script.closed)
        with pytest.raises(anabranch.TimedOut):
            stream.receive(0.01)


def _soon(work: Callable[[], object]) -> Callable[[], Any]:
    async def run() -> None:
        work()

    return run


def test_threads_that_wait_are_woken_by_the_end(connected: blocking.Client) -> None:
    queue = connected.queue_consumer(TOPIC, "q")
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(queue.receive) for _ in range(4)]
        connected.close()
        assert all(isinstance(one.exception(WITHIN_S), anabranch.Closed) for one in waiting)
    assert list(queue) == []


def test_calls_that_race_the_end_of_the_client_end_too(broker: ScriptedThread) -> None:
    for _ in range(20):
        client = blocking.connect(broker.script.url)
        producer = client.producer(TOPIC)
        start = threading.Barrier(4)

        def call(start: threading.Barrier = start, producer: blocking.Producer = producer) -> None:
            start.wait()
            for _ in range(100):
                producer.flush()

        with ThreadPoolExecutor(3) as threads:
            calling = [threads.submit(call) for _ in range(3)]
            start.wait()
            client.close()
            done, late = concurrent.futures.wait(calling, WITHIN_S)
        assert not late
        assert all(one.exception() is None or isinstance(one.exception(), anabranch.Closed) for one in done)
