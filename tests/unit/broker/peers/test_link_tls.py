"""Links over TLS: whom a broker trusts, and what it shows."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.peers.errors import PeerUnavailable
from anabranch.broker.peers.link import PeerTls
from anabranch.broker.peers.methods import HELLO, Nothing
from harness.secured import Authority
from unit.broker.peers.lab import PeerLab


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def served(authority: Authority, *, wants_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.load_cert_chain(*authority.certificate("broker"))
    context.verify_mode = ssl.CERT_REQUIRED if wants_certificate else ssl.CERT_NONE
    return context


async def test_a_link_uses_tls_where_it_is_enabled(peers: PeerLab, authority: Authority) -> None:
    trusting = PeerTls(is_enabled=True, trust_certs_file=authority.file)
    one, two = await peers.node("one", tls=trusting), await peers.node("two", context=served(authority))
    assert (await one.peers.call(two.id, HELLO, Nothing())).version == "lab"
    assert [session.has_tls for session in two.sessions] == [True]


async def test_a_broker_without_a_tls_port_is_not_asked_in_plain_text(
    peers: PeerLab, authority: Authority
) -> None:
    trusting = PeerTls(is_enabled=True, trust_certs_file=authority.file)
    one, two = await peers.node("one", tls=trusting), await peers.node("two")
    with pytest.raises(PeerUnavailable, match="has no TLS port"):
        await one.peers.call(two.id, HELLO, Nothing())


async def test_a_certificate_of_an_unknown_authority_is_refused(peers: PeerLab, authority: Authority) -> None:
    one = await peers.node("one", tls=PeerTls(is_enabled=True))
    two = await peers.node("two", context=served(authority))
    with pytest.raises(PeerUnavailable, match="not trusted"):
        await one.peers.call(two.id, HELLO, Nothing())


async def test_a_certificate_is_for_the_host_of_the_address_unless_that_is_turned_off(
    peers: PeerLab, authority: Authority
) -> None:
    """The test's certificate is for localhost and 127.0.0.1."""
    strict = PeerTls(is_enabled=True, trust_certs_file=authority.file)
    lax = replace(strict, checks_host_name=False)
    two = await peers.node("two", context=served(authority), host="127.0.0.2")
    with pytest.raises(PeerUnavailable, match="mismatch"):
        await (await peers.node("one", tls=strict)).peers.call(two.id, HELLO, Nothing())
    other = await peers.node("three", tls=lax)
    assert (await other.peers.call(two.id, HELLO, Nothing())).version == "lab"


async def test_a_broker_shows_its_certificate_to_one_that_wants_it(
    peers: PeerLab, authority: Authority
) -> None:
    trusting = PeerTls(is_enabled=True, trust_certs_file=authority.file)
    certificate, key = authority.certificate("one")
    showing = replace(trusting, certificate_file=certificate, key_file=key)
    two = await peers.node("two", context=served(authority, wants_certificate=True))
    with pytest.raises(PeerUnavailable):
        await (await peers.node("one", tls=trusting)).peers.call(two.id, HELLO, Nothing())
    other = await peers.node("three", tls=showing)
    assert (await other.peers.call(two.id, HELLO, Nothing())).version == "lab"
