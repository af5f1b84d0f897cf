"""The handshake of two brokers: who knows the secret is let in, as the broker that it is, and only once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.peers.handshake import (
    NONCE_BYTES,
    AcceptingHandshake,
    CallingHandshake,
    PeerChallenge,
    PeerGreeting,
    PeerIdentity,
)
from anabranch.broker.security.authentication import AuthenticationFailed

SECRET = b"s" * 32
ONE, TWO, THREE = PeerIdentity("one:1", "a"), PeerIdentity("two:2", "b"), PeerIdentity("three:3", "c")
N1, N2, N3 = b"1" * NONCE_BYTES, b"2" * NONCE_BYTES, b"3" * NONCE_BYTES


def test_brokers_that_share_the_secret_know_each_other() -> None:
    calling = CallingHandshake(SECRET, ONE, TWO, N1)
    accepting = AcceptingHandshake(SECRET, TWO, calling.greeting(), N2)
    assert accepting.caller == ONE
    assert not calling.is_proven
    assert accepting.check(calling.answer(accepting.challenge())) == ONE
    assert calling.is_proven


def test_any_run_of_a_broker_may_answer_if_none_is_registered() -> None:
    calling = CallingHandshake(SECRET, ONE, replace(TWO, run=""), N1)
    accepting = AcceptingHandshake(SECRET, TWO, calling.greeting(), N2)
    assert accepting.check(calling.answer(accepting.challenge())) == ONE


@pytest.mark.parametrize(
    ("acceptor", "secret"),
    [(TWO, b"other" * 7), (replace(TWO, run="earlier"), SECRET)],
    ids=["another secret", "another run of that broker"],
)
def test_a_caller_tells_nothing_to_one_that_is_not_the_broker_it_wants(
    acceptor: PeerIdentity, secret: bytes
) -> None:
    calling = CallingHandshake(SECRET, ONE, TWO, N1)
    accepting = AcceptingHandshake(secret, acceptor, calling.greeting(), N2)
    with pytest.raises(AuthenticationFailed):
        calling.answer(accepting.challenge())
    assert not calling.is_proven


def test_a_greeting_for_another_broker_is_refused() -> None:
    greeting = CallingHandshake(SECRET, ONE, THREE, N1).greeting()
    with pytest.raises(AuthenticationFailed, match="this is broker two:2"):
        AcceptingHandshake(SECRET, TWO, greeting, N2)


@pytest.mark.parametrize("caller", ["", "two:2"])
def test_nobody_is_no_broker_and_neither_is_the_acceptor_itself(caller: str) -> None:
    greeting = CallingHandshake(SECRET, PeerIdentity(caller, "x"), TWO, N1).greeting()
    with pytest.raises(AuthenticationFailed, match="not the id of another broker"):
        AcceptingHandshake(SECRET, TWO, greeting, N2)


def seen_proof(acceptor_nonce: bytes = N2, caller: PeerIdentity = ONE, nonce: bytes = N1) -> bytes:
    """The proof of a handshake that was overheard."""
    calling = CallingHandshake(SECRET, caller, TWO, nonce)
    return calling.answer(AcceptingHandshake(SECRET, TWO, calling.greeting(), acceptor_nonce).challenge())


@pytest.mark.parametrize(
    "proof",
    [
        lambda: seen_proof(acceptor_nonce=N3),
        lambda: seen_proof(caller=replace(ONE, run="earlier")),
        lambda: seen_proof(caller=THREE),
        lambda: seen_proof(nonce=N3),
    ],
    ids=["another connection", "another run", "another broker", "another number"],
)
def test_an_overheard_proof_is_worth_nothing_elsewhere(proof: Callable[[], bytes]) -> None:
    greeting = CallingHandshake(b"unknown" * 5, ONE, TWO, N1).greeting()
    accepting = AcceptingHandshake(SECRET, TWO, greeting, N2)
    with pytest.raises(AuthenticationFailed, match="does not know"):
        accepting.check(proof())


def test_a_proof_is_checked_once() -> None:
    calling = CallingHandshake(SECRET, ONE, TWO, N1)
    accepting = AcceptingHandshake(SECRET, TWO, calling.greeting(), N2)
    right = calling.answer(accepting.challenge())
    accepting.check(right)
    with pytest.raises(AuthenticationFailed, match="only once"):
        accepting.check(right)


def test_the_acceptors_own_proof_is_not_a_callers() -> None:
    greeting = CallingHandshake(SECRET, ONE, TWO, N1).greeting()
    accepting = AcceptingHandshake(SECRET, TWO, greeting, N2)
    reflected = msgspec.msgpack.decode(accepting.challenge(), type=PeerChallenge).proof
    with pytest.raises(AuthenticationFailed, match="does not know"):
        accepting.check(msgspec.msgpack.encode({"proof": reflected}))


def test_brokers_of_a_later_release_may_say_more() -> None:
    greeting = {"caller": "one:1", "run": "a", "wanted": "two:2", "nonce": N1, "version": 9, "more": [1]}
    assert AcceptingHandshake(SECRET, TWO, msgspec.msgpack.encode(greeting), N2).caller == ONE


@given(st.binary(max_size=200) | st.just(b"x" * 5000))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        AcceptingHandshake(SECRET, TWO, data, N2)
    accepting = AcceptingHandshake(SECRET, TWO, CallingHandshake(SECRET, ONE, TWO, N1).greeting(), N2)
    with pytest.raises(AuthenticationFailed):
        accepting.check(data)
    with pytest.raises(AuthenticationFailed):
        CallingHandshake(SECRET, ONE, TWO, N1).answer(data)


def test_a_short_random_number_is_refused() -> None:
    greeting = msgspec.msgpack.encode(PeerGreeting("one:1", "a", "two:2", b"1"))
    with pytest.raises(AuthenticationFailed, match="random number"):
        AcceptingHandshake(SECRET, TWO, greeting, N2)
