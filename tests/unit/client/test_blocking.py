"""The blocking face: the same names as the asynchronous one, and calls that wait, from any thread."""

from __future__ import annotations

import concurrent.futures
import inspect
import signal
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator

import pytest

import anabranch
from anabranch import blocking, client
from anabranch.client.consuming.options import ConsumerOptions, QueueOptions
from anabranch.client.producing.options import ProducerOptions
from unit.client.scripted_thread import SEGMENT, WITHIN_S, ScriptedThread

TOPIC = "topic://public/default/t"

FACES = [
    "Client",
    "Producer",
    "StreamConsumer",
    "QueueConsumer",
    "CheckpointConsumer",
    "NamespaceStreamConsumer",
    "NamespaceQueueConsumer",
]
# What classes have for each other and for tests, and not for applications.
RECEIVER = {"crash", "gives_ready", "open", "put_back", "receive_ahead", "take_ready"}
CONSUMER = RECEIVER | {"attached", "leave"}
INTERNAL = {
    "Client": {"crash"},
    "Producer": {"crash", "open", "post_prepared", "prepared", "would_refuse"},
    "StreamConsumer": CONSUMER | {"assigned", "drained"},
    "QueueConsumer": CONSUMER
    | {"ack_whole", "drained", "flush_dead_letters", "given", "given_whole", "hand_back"},
    "CheckpointConsumer": CONSUMER | {"flush", "reading"},
    "NamespaceStreamConsumer": RECEIVER,
    "NamespaceQueueConsumer": RECEIVER,
}
# Attributes that are set by constructors.
ATTRIBUTES = {
    "Client": set(),
    "Producer": {"name"},
    "StreamConsumer": {"consumer_name", "subscription"},
    "QueueConsumer": {"consumer_name", "subscription"},
    "CheckpointConsumer": {"consumer_name"},
    "NamespaceStreamConsumer": {"consumer_name", "subscription", "namespace"},
    "NamespaceQueueConsumer": {"consumer_name", "subscription", "namespace"},
}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


# -- the same names, parameters and docstrings


@pytest.mark.parametrize("face", FACES)
def test_both_faces_have_the_same_names(face: str) -> None:
    other, own = getattr(client, face), getattr(blocking, face)
    assert public(own) == (public(other) - INTERNAL[face]) | ATTRIBUTES[face]
    assert own.__doc__ == other.__doc__


@pytest.mark.parametrize("face", FACES)
def test_methods_have_the_same_parameters_and_docstrings(face: str) -> None:
    other, own = getattr(client, face), getattr(blocking, face)
    for name in public(own) - ATTRIBUTES[face]:
        one, two = getattr(other, name), getattr(own, name)
        assert two.__doc__ == one.__doc__ or isinstance(one, property), name
        if callable(one):
            assert inspect.signature(one).parameters == inspect.signature(two).parameters, name
            assert not inspect.iscoroutinefunction(two), name


@pytest.mark.parametrize(
    ("name", "ways"),
    [("producer", 2), ("stream_consumer", 4), ("queue_consumer", 4), ("checkpoint_consumer", 2)],
)
def test_type_checkers_are_told_the_same_parameters(name: str, ways: int) -> None:
    told = [
        [inspect.signature(one).parameters for one in typing.get_overloads(getattr(face.Client, name))]
        for face in (client, blocking)
    ]
    assert len(told[0]) == ways
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("name", "options"),
    [("producer", ProducerOptions), ("stream_consumer", ConsumerOptions), ("queue_consumer", QueueOptions)],
)
def test_the_options_that_type_checkers_are_told_are_those_that_there_are(name: str, options: type) -> None:
    own = inspect.signature(getattr(client.Client, name), eval_str=True).parameters
    common = {"self", "topic", "schema", "subscription", "namespace", "property_filters", "create"} - {
        "create" if "create" in options.__annotations__ else ""
    }
    assert {name: own[name].annotation for name in own.keys() - common} == typing.get_type_hints(options)


def test_connecting_is_the_same() -> None:
    assert inspect.signature(blocking.connect).parameters == inspect.signature(anabranch.connect).parameters
    assert blocking.connect.__doc__ == anabranch.connect.__doc__


# -- calls that wait


@pytest.fixture
def broker() -> Iterator[ScriptedThread]:
    scripted = ScriptedThread()
    yield scripted
    scripted.close()


@pytest.fixture
def connected(broker: ScriptedThread) -> Iterator[blocking.Client]:
    with blocking.connect(broker.script.url) as client:
        yield client


def test_sending_waits_until_it_is_stored(connected: blocking.Client) -> None:
    with connected.producer(TOPIC, name="p") as producer:
        assert producer.name == "p"
        assert producer.topic == TOPIC
        assert [producer.send(b"x", key="k").entry for _ in range(3)] == [0, 1, 2]
        assert producer.last_sequence_id == 2


def test_posting_gives_a_future_and_flushing_waits_for_all(connected: blocking.Client) -> None:
    with connected.producer(TOPIC) as producer:
        later = [producer.post(b"x") for _ in range(100)]
        producer.flush()
        assert all(isinstance(one, concurrent.futures.Future) and one.done() for one in later)
        assert [one.result().segment for one in later] == [0] * 100
        assert not later[0].cancel()


def test_what_was_posted_and_not_stored_when_the_client_closes_says_so(
    broker: ScriptedThread,
) -> None:
    broker.script.receipts = False
    client = blocking.connect(broker.script.url)
    producer = client.producer(TOPIC)
    later = producer.post(b"x")
    producer.close(flush=False)
    client.close()
    with pytest.raises(anabranch.Closed):
        later.result(WITHIN_S)


def test_receiving_acknowledging_and_iterating(broker: ScriptedThread, connected: blocking.Client) -> None:
    with connected.stream_consumer(TOPIC, "s") as stream:
        assert (stream.subscription, stream.topic) == ("s", TOPIC)
        broker.deliver(range(3))
        first = stream.receive(timeout_s=WITHIN_S)
        rest = [message.payload for _, message in zip(range(2), stream, strict=False)]
        assert [first.payload, *rest] == [b"0", b"1", b"2"]
        stream.ack_cumulative(first)
        assert stream.flush()
        broker.until(lambda: (SEGMENT, 1, 0, True) in broker.script.acks)
        with pytest.raises(anabranch.TimedOut):
            stream.receive(timeout_s=0.01)


def test_closing_a_consumer_ends_the_loop_of_another_thread(connected: blocking.Client) -> None:
    consumer = connected.queue_consumer(TOPIC, "q")
    with concurrent.futures.ThreadPoolExecutor() as threads:
        looping = threads.submit(list, consumer)
        consumer.close()
        assert looping.result(WITHIN_S) == []


def test_several_threads_share_a_producer(broker: ScriptedThread, connected: blocking.Client) -> None:
    with connected.producer(TOPIC) as producer, concurrent.futures.ThreadPoolExecutor(8) as threads:
        places = list(threads.map(lambda n: producer.send(b"%d" % n), range(200)))
    assert len(set(places)) == 200


def test_a_closed_client_and_wrong_options_raise_without_a_thread(broker: ScriptedThread) -> None:
    before = threading.active_count()
    with pytest.raises(anabranch.BadArgument):
        blocking.connect("pulsar://localhost", operation_timeout_s=0)
    client = blocking.connect(broker.script.url)
    producer = client.producer(TOPIC)
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(anabranch.Closed):
        client.producer(TOPIC)
    for call in (producer.send, producer.post, producer.send_batch, producer.post_batch):
        with pytest.raises(anabranch.Closed):
            call(b"x")
    with pytest.raises(anabranch.Closed):
        producer.post(b"x", sequence_id=1)


# -- the end of a program


PROGRAM = """
import signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell in the background ignores it for its children.
from anabranch import blocking

client = blocking.connect(sys.argv[1])
consumer = client.queue_consumer("topic://public/default/t", "q")
try:
    print("ready", flush=True)
    if sys.argv[2] == "wait":
        consumer.receive()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    client.producer("topic://public/default/t").send(b"x")
    print("sent", flush=True)
"""


def started(broker: ScriptedThread, how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, broker.script.url, how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_program_that_forgets_to_close_its_client_ends_at_once(broker: ScriptedThread) -> None:
    with started(broker, "forget") as program:
        said, complaints = program.communicate(timeout=WITHIN_S)
    assert (said, complaints, program.returncode) == ("ready\n", "", 0)


def test_a_wait_can_be_interrupted_and_the_client_goes_on(broker: ScriptedThread) -> None:
    with started(broker, "wait") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        said, complaints = program.communicate(timeout=WITHIN_S)
    assert (said, complaints, program.returncode) == ("interrupted\nsent\n", "", 0)
