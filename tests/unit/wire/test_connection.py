"""The state of a connection: who may say what when, versions, keep-alive."""

from __future__ import annotations

import pytest

from anabranch.errors import IllegalCommand, OversizeFrame
from anabranch.wire import pulsar_pb2 as pb
from anabranch.wire.connection import (
    GREETING_BYTES_MAX,
    MAY_RECEIVE,
    NEXT,
    PING_FRAME,
    PONG_FRAME,
    PROTOCOL_VERSION,
    Beat,
    Connection,
    Role,
    State,
)
from anabranch.wire.encode import encode_command
from anabranch.wire.frames import FrameDecoder

LOOKUP = encode_command(
    pb.BaseCommand(type=pb.BaseCommand.LOOKUP, lookupTopic=pb.CommandLookupTopic(topic="t", request_id=1))
)


def connect_frame(version: int = 21) -> bytes:
    return Connection(Role.CLIENT, now=0).connect("test", protocol_version=version)


def ready_broker(version: int = 21) -> Connection:
    broker = Connection(Role.BROKER, now=0.0, keep_alive_s=30)
    list(broker.feed(connect_frame(version), 0.0))
    broker.accept("server")
    return broker


def test_a_handshake_makes_both_ends_ready_and_tells_each_about_the_other() -> None:
    client = Connection(Role.CLIENT, now=0)
    broker = Connection(Role.BROKER, now=0, message_bytes_max=1000)
    hello = client.connect("client 1", feature_flags=pb.FeatureFlags(supports_auth_refresh=True))
    ((kind, _, _),) = broker.feed(hello, 1)
    assert kind == pb.BaseCommand.CONNECT
    assert broker.state is State.HANDSHAKE
    answer = broker.accept("server 1", pb.FeatureFlags(supports_topic_watchers=True), "http://one:8080")
    list(client.feed(answer, 2))
    assert (client.state, broker.state) == (State.READY, State.READY)
    assert (client.version, broker.version) == (PROTOCOL_VERSION, PROTOCOL_VERSION)
    assert (client.peer_name, broker.peer_name) == ("server 1", "client 1")
    assert client.peer_features.supports_topic_watchers
    assert broker.peer_features.supports_auth_refresh
    assert client.message_bytes_max == 1000
    assert client.peer_http_url == "http://one:8080"
    with pytest.raises(OversizeFrame):
        list(client.feed(b"\x00\x01\x00\x00\x00\x00\x00\x00", 3))


def test_who_has_not_said_connect_gets_no_room_for_a_message() -> None:
    header = (GREETING_BYTES_MAX + 1).to_bytes(4, "big") + (8).to_bytes(4, "big")
    with pytest.raises(OversizeFrame):
        list(Connection(Role.BROKER, now=0).feed(header, 0.0))
    assert list(ready_broker().feed(header, 1.0)) == []
    longest = Connection(Role.CLIENT, now=0).connect("test", auth_data=b"x" * 64 * 1024)
    assert len(list(Connection(Role.BROKER, now=0).feed(longest, 0.0))) == 1


@pytest.mark.parametrize(("theirs", "spoken"), [(0, 0), (15, 15), (21, 21), (99, 21), (-1, 0)])
def test_the_lower_version_is_spoken(theirs: int, spoken: int) -> None:
    assert ready_broker(theirs).version == spoken


def test_nothing_but_connect_may_come_first() -> None:
    broker = Connection(Role.BROKER, now=0)
    with pytest.raises(IllegalCommand, match="LOOKUP came in state start"):
        list(broker.feed(LOOKUP, 0))


def test_a_command_sent_right_behind_connect_is_legal_once_connect_was_accepted() -> None:
    broker = Connection(Role.BROKER, now=0)
    frames = iter(broker.feed(connect_frame() + LOOKUP, 0))
    next(frames)
    broker.accept("server")
    assert next(frames)[0] == pb.BaseCommand.LOOKUP
    hasty = Connection(Role.BROKER, now=0)
    with pytest.raises(IllegalCommand):
        list(hasty.feed(connect_frame() + LOOKUP, 0))


def test_a_second_connect_is_refused() -> None:
    with pytest.raises(IllegalCommand, match="CONNECT came in state ready"):
        list(ready_broker().feed(connect_frame(), 1))


def test_a_broker_does_not_take_what_only_brokers_send() -> None:
    success = pb.BaseCommand(type=pb.BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=1))
    with pytest.raises(IllegalCommand, match="SUCCESS"):
        list(ready_broker().feed(encode_command(success), 1))
    with pytest.raises(IllegalCommand, match="LOOKUP may not be sent"):
        ready_broker().send(FrameDecoder().feed(LOOKUP)[0][1])
    assert ready_broker().send(success) == encode_command(success)


PEER = pb.BaseCommand(
    type=pb.BaseCommand.ANABRANCH_PEER,
    anabranchPeer=pb.CommandAnabranchPeer(request_id=1, method="m", body=b"x" * 2_000_000),
)


# An entry without a checksum and with empty metadata.
SEND = encode_command(
    pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=0, sequence_id=0))
)
SEND = (int.from_bytes(SEND[:4], "big") + 4).to_bytes(4, "big") + SEND[4:] + bytes(4)


def linked() -> tuple[Connection, Connection]:
    """Two brokers' ends, the calling one first."""
    caller = Connection(Role.CLIENT, now=0, is_of_peer=True)
    decoder = FrameDecoder(frame_bytes_max=100_000, command_bytes_max=1000, command_items_max=10)
    acceptor = Connection(Role.BROKER, now=0, message_bytes_max=100_000, decoder=decoder)
    list(acceptor.feed(caller.connect("broker"), 0))
    list(caller.feed(acceptor.accept("broker", is_peer=True), 0))
    assert (caller.state, acceptor.state) == (State.PEER, State.PEER)
    return caller, acceptor


def test_brokers_exchange_requests_that_are_larger_than_a_clients_commands() -> None:
    caller, acceptor = linked()
    ((kind, asked, _),) = acceptor.feed(caller.send(PEER), 1)
    assert (kind, len(asked.anabranchPeer.body)) == (pb.BaseCommand.ANABRANCH_PEER, 2_000_000)
    answer = pb.BaseCommand(type=pb.BaseCommand.ANABRANCH_PEER_RESPONSE)
    answer.anabranchPeerResponse.request_id = 1
    answer.anabranchPeerResponse.body = b"y" * 3_000_000
    ((_, told, _),) = caller.feed(acceptor.send(answer), 2)
    assert len(told.anabranchPeerResponse.body) == 3_000_000
    assert acceptor.tick(31) is Beat.PROBE


def test_brokers_exchange_nothing_but_their_own_requests() -> None:
    caller, acceptor = linked()
    with pytest.raises(IllegalCommand, match="LOOKUP may not be sent in state peer"):
        caller.send(FrameDecoder().feed(LOOKUP)[0][1])
    with pytest.raises(IllegalCommand, match="LOOKUP came in state peer"):
        list(acceptor.feed(LOOKUP, 1))
    with pytest.raises(IllegalCommand, match="SEND"):
        list(acceptor.feed(SEND, 1))


def test_a_client_does_not_get_to_send_requests_of_brokers() -> None:
    with pytest.raises(IllegalCommand, match="ANABRANCH_PEER came in state ready"):
        list(ready_broker().feed(encode_command(PEER), 1))
    client = Connection(Role.CLIENT, now=0)
    client.connect("client")
    with pytest.raises(IllegalCommand, match="may not be sent"):
        client.send(PEER)


def test_received_and_feed_agree() -> None:
    broker = ready_broker()
    stream = LOOKUP + PING_FRAME + LOOKUP
    for data in (LOOKUP, stream):
        room = broker.writable()
        room[: len(data)] = data
        assert [f[0] for f in broker.received(len(data), 1)] == [f[0] for f in broker.feed(data, 1)]
    assert broker.to_send() == PONG_FRAME * 2
    assert broker.to_send() == b""


def test_a_ping_is_answered_even_before_the_handshake_ends() -> None:
    broker = Connection(Role.BROKER, now=0)
    assert len(list(broker.feed(connect_frame() + PING_FRAME, 0))) == 1
    assert broker.to_send() == PONG_FRAME


def test_a_silent_peer_is_probed_and_then_given_up() -> None:
    broker = ready_broker()
    assert broker.tick(29) is Beat.QUIET
    assert broker.tick(30) is Beat.PROBE
    assert broker.to_send() == PING_FRAME
    assert broker.tick(59) is Beat.QUIET
    assert broker.tick(60, reading=False) is Beat.QUIET
    assert broker.tick(60) is Beat.DEAD


def test_any_command_proves_that_the_peer_lives() -> None:
    broker = ready_broker()
    assert broker.tick(30) is Beat.PROBE
    list(broker.feed(LOOKUP, 31))
    assert broker.tick(60) is Beat.QUIET
    assert broker.tick(61) is Beat.PROBE


def test_a_peer_from_before_ping_is_never_probed() -> None:
    broker = ready_broker(version=0)
    assert broker.tick(1000) is Beat.QUIET
    assert broker.to_send() == b""


def test_a_handshake_that_does_not_end_is_given_up() -> None:
    broker = Connection(Role.BROKER, now=0)
    assert broker.tick(29) is Beat.QUIET
    list(broker.feed(connect_frame(), 29))
    assert broker.tick(30) is Beat.DEAD


def test_a_refusal_closes_and_says_why() -> None:
    broker = Connection(Role.BROKER, now=0)
    list(broker.feed(connect_frame(), 0))
    client = Connection(Role.CLIENT, now=0)
    client.connect("c")
    ((kind, command, _),) = client.feed(broker.refuse(pb.AuthenticationError, "who are you?"), 0)
    assert kind == pb.BaseCommand.ERROR
    assert (command.error.error, command.error.message) == (pb.AuthenticationError, "who are you?")
    assert broker.state is State.CLOSED
    broker.close()
    assert broker.tick(1000) is Beat.QUIET
    with pytest.raises(IllegalCommand):
        list(broker.feed(LOOKUP, 1))


def test_the_tables_cover_every_state_and_every_command_has_a_receiver() -> None:
    assert set(NEXT) == set(State)
    assert set(MAY_RECEIVE) == {(role, state) for role in Role for state in State}
    assert set().union(*MAY_RECEIVE.values()) == set(pb.BaseCommand.Type.values())
