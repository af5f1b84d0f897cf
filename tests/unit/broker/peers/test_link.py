"""Calls between brokers: answers, errors, lost connections, limits, and who is let in."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from anabranch.broker.catalog.registry import BROKERS
from anabranch.broker.errors import NotAllowedError, NotReadyError
from anabranch.broker.peers import link as link_module
from anabranch.broker.peers.errors import PeerCallFailed, PeerUnavailable
from anabranch.broker.peers.methods import BODY_BYTES_MAX, HELLO, Nothing, PeerMethod
from anabranch.broker.peers.remote_rest import REST
from anabranch.broker.peers.secret import PATH
from anabranch.client import ClientConnection
from anabranch.client.errors import ConnectionLost, RequestRefused
from anabranch.controller.core.errors import SegmentGone, SegmentRefused, SegmentUnavailable
from anabranch.errors import AnabranchError
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.encode import encode_command
from unit.broker.peers.lab import ECHO, Asked, PeerLab, Told

C = pb.BaseCommand


async def echo(peer: str, asked: Asked) -> Told:
    return Told(f"{peer} said {asked.text}")


async def test_a_broker_is_asked_and_answers(peers: PeerLab) -> None:
    one, two = await peers.pair()
    two.peers.handlers.add(ECHO, echo)
    answer = await one.peers.call(f"pulsar://{two.id}", ECHO, Asked("hello"))
    assert answer.text == f"{one.id} said hello"
    assert one.peers.is_linked(two.id)
    assert [session.peer for session in two.sessions] == [one.id]


async def test_a_broker_that_asks_itself_is_answered_without_a_connection(peers: PeerLab) -> None:
    one, _ = await peers.pair()
    one.peers.handlers.add(ECHO, echo)
    assert (await one.peers.call(one.id, ECHO, Asked("x"))).text == f"{one.id} said x"
    assert one.sessions == []


async def test_one_connection_carries_calls_that_answer_in_any_order(peers: PeerLab) -> None:
    one, two = await peers.pair()
    may_answer = asyncio.Event()

    async def slow_first(peer: str, asked: Asked) -> Told:
        if asked.text == "first":
            await may_answer.wait()
        return Told(asked.text)

    two.peers.handlers.add(ECHO, slow_first)
    first = asyncio.create_task(one.peers.call(two.id, ECHO, Asked("first")))
    assert (await one.peers.call(two.id, ECHO, Asked("second"))).text == "second"
    assert not first.done()
    may_answer.set()
    assert (await first).text == "first"
    assert len(two.sessions) == 1


@pytest.mark.parametrize(
    ("error", "arrives"),
    [
        (SegmentRefused("no"), SegmentRefused),
        (SegmentGone("no"), SegmentGone),
        (SegmentUnavailable("no"), SegmentUnavailable),
        (NotAllowedError("no"), NotAllowedError),
        (NotReadyError("no"), NotReadyError),
        (AnabranchError("no"), PeerCallFailed),
        (ConnectionLost("no"), PeerUnavailable),
        (ZeroDivisionError("no"), PeerCallFailed),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
async def test_an_error_arrives_as_what_it_is(
    peers: PeerLab, error: Exception, arrives: type[Exception]
) -> None:
    one, two = await peers.pair()

    async def fail(peer: str, asked: Asked) -> Told:
        raise error

    two.peers.handlers.add(ECHO, fail)
    with pytest.raises(arrives, match="no") as raised:
        await one.peers.call(two.id, ECHO, Asked())
    assert type(raised.value) is arrives
    assert one.peers.is_linked(two.id), "an error costs no connection"


async def test_a_request_that_the_other_broker_does_not_know_is_refused(peers: PeerLab) -> None:
    one, two = await peers.pair()
    with pytest.raises(PeerCallFailed, match=r"does not know the request test\.echo"):
        await one.peers.call(two.id, ECHO, Asked())


class AskedLater(msgspec.Struct, frozen=True):
    """`Asked`, as a later release has it."""

    text: str = ""
    more: int = 7


class AskedWrongly(msgspec.Struct, frozen=True):
    text: int = 1


async def test_brokers_of_two_releases_understand_each_other(peers: PeerLab) -> None:
    one, two = await peers.pair()
    two.peers.handlers.add(ECHO, echo)
    later = PeerMethod(ECHO.name, AskedLater, AskedLater)
    answer = await one.peers.call(two.id, later, AskedLater("hello", 1))
    assert answer == AskedLater(f"{one.id} said hello", 7)
    with pytest.raises(PeerCallFailed, match=r"a request test\.echo cannot be read"):
        await one.peers.call(two.id, PeerMethod(ECHO.name, AskedWrongly, Told), AskedWrongly())
    with pytest.raises(PeerCallFailed, match=r"answers test\.echo with what cannot be read"):
        await one.peers.call(two.id, PeerMethod(ECHO.name, Asked, AskedWrongly), Asked())


async def test_an_answer_that_does_not_come_in_time_is_given_up_and_the_work_is_finished(
    peers: PeerLab,
) -> None:
    one, two = await peers.pair()
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def slow(peer: str, asked: Asked) -> Told:
        await may_end.wait()
        ended.set()
        return Told()

    two.peers.handlers.add(ECHO, slow)
    await one.peers.call(two.id, HELLO, Nothing())  # The link is open, so the request is sent at once.
    with pytest.raises(PeerUnavailable, match="did not answer"):
        await one.peers.call(two.id, ECHO, Asked(), answer_max_s=0.01)
    may_end.set()
    await ended.wait()
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"


async def test_a_lost_connection_ends_calls_and_the_next_call_opens_another(peers: PeerLab) -> None:
    one, two = await peers.pair()
    began, ended, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(peer: str, asked: Asked) -> Told:
        began.set()
        await may_end.wait()
        ended.set()
        return Told()

    two.peers.handlers.add(ECHO, slow)
    waiting = asyncio.create_task(one.peers.call(two.id, ECHO, Asked()))
    await began.wait()
    two.sessions[0].abort()
    with pytest.raises(PeerUnavailable):
        await waiting
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"
    may_end.set()
    await ended.wait()  # What was begun for a caller that is gone is finished.


@pytest.mark.parametrize("run", [None, "later"], ids=["gone", "started again"])
async def test_calls_to_a_run_that_is_gone_end_at_once(peers: PeerLab, run: str | None) -> None:
    """A stopped process keeps its connections: its callers hear of its end from its registration."""
    one, two = await peers.pair()
    began = asyncio.Event()

    async def silent(peer: str, asked: Asked) -> Told:
        began.set()
        await asyncio.Event().wait()
        return Told()

    two.peers.handlers.add(ECHO, silent)
    waiting = asyncio.create_task(one.peers.call(two.id, ECHO, Asked(), answer_max_s=3600))
    await began.wait()
    one.peers.living({one.id: "one", two.id: "two"})
    assert one.peers.is_linked(two.id)
    one.peers.living({one.id: "one"} if run is None else {two.id: run})
    with pytest.raises(PeerUnavailable):
        await waiting
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"


async def test_a_cancelled_call_leaves_the_link_to_the_others(peers: PeerLab) -> None:
    one, two = await peers.pair()
    began = asyncio.Event()

    async def slow(peer: str, asked: Asked) -> Told:
        began.set()
        await asyncio.Event().wait()
        return Told()

    two.peers.handlers.add(ECHO, slow)
    waiting = asyncio.create_task(one.peers.call(two.id, ECHO, Asked()))
    await began.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"
    assert len(two.sessions) == 1


async def test_a_cancelled_first_call_does_not_stop_the_others_from_connecting(peers: PeerLab) -> None:
    one, two = await peers.pair()
    first = asyncio.create_task(one.peers.call(two.id, HELLO, Nothing()))
    second = asyncio.create_task(one.peers.call(two.id, HELLO, Nothing()))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).version == "lab"


async def test_calls_beyond_the_limit_wait_for_their_turn(
    peers: PeerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "CALLS_MAX", 2)
    one, two = await peers.pair()
    under_way: set[str] = set()
    most = 0

    async def counted(peer: str, asked: Asked) -> Told:
        nonlocal most
        under_way.add(asked.text)
        most = max(most, len(under_way))
        await one.metadata.get("/a")  # Others get their turn.
        under_way.discard(asked.text)
        return Told()

    two.peers.handlers.add(ECHO, counted)
    await asyncio.gather(*(one.peers.call(two.id, ECHO, Asked(str(n))) for n in range(20)))
    assert most == 2


async def test_what_users_ask_leaves_turns_for_the_brokers_own_calls(peers: PeerLab) -> None:
    one, two = await peers.pair()
    asked_by_users = PeerMethod("test.users", Asked, Told, is_for_users=True)
    may_end = asyncio.Event()

    async def slow(peer: str, asked: Asked) -> Told:
        await may_end.wait()
        return Told()

    two.peers.handlers.add(asked_by_users, slow)
    calls = [
        asyncio.create_task(one.peers.call(two.id, asked_by_users, Asked(), answer_max_s=3600))
        for _ in range(2 * link_module.CALLS_MAX)
    ]
    await asyncio.sleep(0)
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"
    may_end.set()
    await asyncio.gather(*calls)
    assert REST.is_for_users


@pytest.mark.parametrize("run", [None, "later"], ids=["gone", "started again"])
async def test_a_link_ends_with_the_registration_of_the_broker_that_opened_it(
    peers: PeerLab, run: str | None
) -> None:
    """A broker that was stopped, and whose topics others have taken meanwhile, has to register again."""
    one, two = await peers.pair()
    await one.peers.call(two.id, HELLO, Nothing())
    (session,) = two.sessions
    two.peers.living({one.id: "one", two.id: "two"})
    assert one.peers.is_linked(two.id)
    two.peers.living({two.id: "two"} if run is None else {two.id: "two", one.id: run})
    async with asyncio.timeout(60):
        while session.is_open or one.peers.is_linked(two.id):
            await one.metadata.get("/a")
    await peers.register(one, "elsewhen")
    with pytest.raises(PeerUnavailable, match="is not registered"):
        await one.peers.call(two.id, HELLO, Nothing())
    await peers.register(one, "one")
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"


async def test_large_bodies_pass_and_larger_ones_are_refused_at_the_sender(peers: PeerLab) -> None:
    """Also where messages of clients must be smaller."""
    one, two = await peers.pair()

    async def double(peer: str, asked: Asked) -> Told:
        return Told(asked.text * 2)

    two.peers.handlers.add(ECHO, double)
    large = "x" * (BODY_BYTES_MAX // 2 - 100)
    assert len((await one.peers.call(two.id, ECHO, Asked(large))).text) == 2 * len(large)
    with pytest.raises(PeerCallFailed, match=r"the answer to test\.echo has"):
        await one.peers.call(two.id, ECHO, Asked(large + "x" * 200))
    with pytest.raises(PeerCallFailed, match=r"test\.echo has"):
        await one.peers.call(two.id, ECHO, Asked("x" * BODY_BYTES_MAX))
    assert len(two.sessions) == 1


# -- who is let in


async def test_a_broker_that_is_not_registered_cannot_be_asked(peers: PeerLab) -> None:
    one, two = await peers.pair()
    await two.metadata.delete(f"{BROKERS}/{two.id}")
    with pytest.raises(PeerUnavailable, match="is not registered"):
        await one.peers.call(two.id, HELLO, Nothing())
    await peers.register(two, "two")
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"


async def test_a_broker_that_is_gone_cannot_be_asked(peers: PeerLab) -> None:
    one, two = await peers.pair()
    two.server.close()
    with pytest.raises(PeerUnavailable, match="cannot be asked"):
        await one.peers.call(two.id, HELLO, Nothing())


async def test_a_caller_with_another_run_id_than_the_registered_one_is_refused(peers: PeerLab) -> None:
    """A former life of a broker has no say."""
    old, two = await peers.node("old", registered="new"), await peers.node("two")
    with pytest.raises(PeerUnavailable, match="run old, is not registered"):
        await old.peers.call(two.id, HELLO, Nothing())


async def test_another_run_than_the_registered_one_is_not_asked(peers: PeerLab) -> None:
    one, two = await peers.node("one"), await peers.node("old", registered="new")
    with pytest.raises(PeerUnavailable, match="run old, answers for"):
        await one.peers.call(two.id, HELLO, Nothing())


async def test_a_broker_without_others_refuses_every_caller(peers: PeerLab) -> None:
    one, alone = await peers.node("one"), await peers.node("two", starts=False)
    with pytest.raises(PeerUnavailable, match="no other brokers"):
        await one.peers.call(alone.id, HELLO, Nothing())


async def test_brokers_with_different_secrets_do_not_link(peers: PeerLab) -> None:
    one, two = await peers.pair()
    other = PeerLab()
    async with other.stack:
        await (await other.store.connect()).put(PATH, b"x" * 32)
        stranger = await other.node("one")
        # It registers where `two` looks, but does not know the secret.
        await two.metadata.put(
            f"{BROKERS}/{stranger.id}", b'{"pulsarServiceUrl":"x","webServiceUrl":"y","runId":"one"}'
        )
        await peers.register(two, "two")
        value = await two.metadata.get(f"{BROKERS}/{two.id}")
        assert value is not None
        await stranger.metadata.put(f"{BROKERS}/{two.id}", value.value)
        with pytest.raises(PeerUnavailable, match="does not know the cluster's secret"):
            await stranger.peers.call(two.id, HELLO, Nothing())
    assert not one.peers.is_linked(two.id)


async def test_a_client_that_sends_a_request_of_brokers_loses_its_connection(peers: PeerLab) -> None:
    one, two = await peers.pair()
    two.peers.handlers.add(ECHO, echo)
    assert (await one.peers.call(two.id, ECHO, Asked("before"))).text
    client = await ClientConnection.open(f"pulsar://{two.id}")
    command = C(type=C.ANABRANCH_PEER)
    command.anabranchPeer.request_id, command.anabranchPeer.method = 1, "test.echo"
    command.anabranchPeer.body = ECHO.encode(Asked("hello"))
    client.write_now(encode_command(command))
    lookup = client.begin(C.LOOKUP, "lookupTopic", topic="t")
    with pytest.raises((ConnectionLost, RequestRefused)):
        await lookup
    assert (await one.peers.call(two.id, ECHO, Asked("after"))).text, "others keep theirs"
    await client.close()
