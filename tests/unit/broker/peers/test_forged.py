"""Clients that pretend to be brokers, against brokers that have others beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from anabranch.broker.peers.handshake import (
    METHOD,
    NONCE_BYTES,
    CallingHandshake,
    PeerChallenge,
    PeerGreeting,
    PeerIdentity,
    PeerProof,
)
from anabranch.broker.peers.methods import HELLO, Nothing
from anabranch.broker.peers.secret import PATH
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import Wire
from unit.broker.scalable.cluster import Cluster, running

C = pb.BaseCommand


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running(2) as made:
        yield made
        # Whatever was tried, the brokers go on.
        first, second = (node.broker for node in made.nodes)
        assert (await first.peers.call(second.service_url, HELLO, Nothing())).version


class Forger:
    """A connection to the second broker by somebody who is no broker."""

    def __init__(self, cluster: Cluster, wire: Wire) -> None:
        self.wire = wire
        self.me = cluster.first.broker.peers.me
        self.target = cluster.nodes[1].broker.peers.me

    @classmethod
    async def to(cls, cluster: Cluster) -> Forger:
        host, port = cluster.nodes[1].broker.service_url.removeprefix("pulsar://").split(":")
        return cls(cluster, Wire(*await asyncio.open_connection(host, int(port))))

    def greet(self, data: bytes) -> None:
        self.wire.send(
            C.CONNECT,
            "connect",
            client_version="forger",
            protocol_version=21,
            auth_method_name=METHOD,
            auth_data=data,
        )

    def prove(self, data: bytes) -> None:
        response = pb.AuthData(auth_method_name=METHOD, auth_data=data)
        self.wire.send(C.AUTH_RESPONSE, "authResponse", response=response)

    def ask(self) -> None:
        self.wire.send(C.ANABRANCH_PEER, "anabranchPeer", request_id=1, method="hello", body=b"\x80")

    @property
    def greeting(self) -> bytes:
        """What the first broker would say, which anybody can."""
        return msgspec.msgpack.encode(
            PeerGreeting(self.me.id, self.me.run, self.target.id, bytes(NONCE_BYTES))
        )

    async def is_refused(self) -> str:
        """The reason; the connection is closed behind it, and nothing else was answered."""
        answer = await self.wire.receive()
        assert answer is not None
        assert answer.type == C.ERROR, answer
        assert await self.wire.receive() is None
        await self.wire.close()
        return answer.error.message


async def challenge(forger: Forger) -> PeerChallenge:
    forger.greet(forger.greeting)
    answer = await forger.wire.receive()
    assert answer is not None
    assert answer.type == C.AUTH_CHALLENGE, answer
    return msgspec.msgpack.decode(answer.authChallenge.challenge.auth_data, type=PeerChallenge)


async def test_a_client_cannot_send_a_request_of_brokers(cluster: Cluster) -> None:
    forger = await Forger.to(cluster)
    forger.wire.send(C.CONNECT, "connect", client_version="client", protocol_version=21)
    connected = await forger.wire.receive()
    assert connected is not None
    assert connected.type == C.CONNECTED
    forger.ask()
    assert "ANABRANCH_PEER came in state ready" in await forger.is_refused()


async def test_a_request_before_the_proof_is_refused(cluster: Cluster) -> None:
    forger = await Forger.to(cluster)
    await challenge(forger)
    forger.ask()
    assert "came in state handshake" in await forger.is_refused()


@pytest.mark.parametrize("proof", [b"", b"\xff" * 64, b"\x81", msgspec.msgpack.encode(PeerProof(bytes(32)))])
async def test_a_wrong_proof_is_refused(cluster: Cluster, proof: bytes) -> None:
    forger = await Forger.to(cluster)
    await challenge(forger)
    forger.prove(proof)
    assert await forger.is_refused()


async def test_the_brokers_own_proof_sent_back_is_refused(cluster: Cluster) -> None:
    forger = await Forger.to(cluster)
    forger.prove(msgspec.msgpack.encode(PeerProof((await challenge(forger)).proof)))
    assert "does not know" in await forger.is_refused()


@pytest.mark.parametrize(
    "greeting",
    [b"", b"\xff" * 64, b"x" * 100_000, b"\x81\xa1z" + b"\x91" * 4000, b"\x81\xa6caller\xa1\xff"],
    ids=["none", "garbage", "large", "nested", "not UTF-8"],
)
async def test_a_greeting_that_is_none_is_refused(cluster: Cluster, greeting: bytes) -> None:
    forger = await Forger.to(cluster)
    forger.greet(greeting)
    assert "greeting" in await forger.is_refused()


@pytest.mark.parametrize("proof", [b"\x81\xa1z" + b"\x91" * 4000, b"\x81\xa5proof\xa1\xff"])
async def test_a_proof_that_cannot_be_read_is_refused(cluster: Cluster, proof: bytes) -> None:
    forger = await Forger.to(cluster)
    await challenge(forger)
    forger.prove(proof)
    assert "greeting" in await forger.is_refused()


async def test_one_that_knows_the_secret_must_be_registered_too(cluster: Cluster) -> None:
    """And with the run id that it gives."""
    found = await cluster.metadata.get(PATH)
    assert found is not None
    for me in (PeerIdentity("nobody:1", "x"), PeerIdentity(cluster.first.broker.peers.me.id, "earlier")):
        forger = await Forger.to(cluster)
        calling = CallingHandshake(found.value, me, forger.target, bytes(NONCE_BYTES))
        forger.greet(calling.greeting())
        answer = await forger.wire.receive()
        assert answer is not None
        forger.prove(calling.answer(answer.authChallenge.challenge.auth_data))
        assert "is not registered" in await forger.is_refused()


async def test_a_broker_may_send_nothing_but_requests_of_brokers(cluster: Cluster) -> None:
    found = await cluster.metadata.get(PATH)
    assert found is not None
    forger = await Forger.to(cluster)
    calling = CallingHandshake(found.value, forger.me, forger.target, bytes(NONCE_BYTES))
    forger.greet(calling.greeting())
    answer = await forger.wire.receive()
    assert answer is not None
    forger.prove(calling.answer(answer.authChallenge.challenge.auth_data))
    connected = await forger.wire.receive()
    assert connected is not None
    assert connected.type == C.CONNECTED
    forger.ask()
    told = await forger.wire.receive()
    assert told is not None
    assert told.anabranchPeerResponse.request_id == 1
    forger.wire.send(C.LOOKUP, "lookupTopic", topic="persistent://public/default/t", request_id=2)
    assert "LOOKUP came in state peer" in await forger.is_refused()
