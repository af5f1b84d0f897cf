"""Users with passwords: hashes as `htpasswd` and `openssl passwd` make them, and files that cannot be used."""

from __future__ import annotations

import asyncio
import base64

import pytest

from anabranch.broker.config.config import ConfigError
from anabranch.broker.security.authentication import Authentication, AuthenticationFailed, Identity
from anabranch.broker.security.password_hashes import verify
from anabranch.broker.security.passwords import HASHING_MS, TRIES, Passwords, read
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import C, guarded

# `openssl passwd -apr1|-1|-5|-6 -salt … secret`; the last two by crypt(3).
HASHES = [
    "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
    "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1",
    "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.",
    "$6$abcdefghijklmnop$J/AWykHqo2Tx5UtavGnFc3ytI33la50JpzLTarSWVhkIXK6wOjNwwZjsrIw2UgmrER2EKrSHCeQyAINEEXAk1/",
    "$5$rounds=1234$salt$Wmg4z916IEmzueSGM6nAMfu1U2QfEnLkEX0e7ziwZcB",
    "abNANd1rDfiNc",
]


@pytest.mark.parametrize("stored", HASHES, ids=lambda stored: stored[:4])
def test_the_right_password_is_told_from_a_wrong_one(stored: str) -> None:
    assert verify(b"secret", stored)
    for wrong in (b"Secret", b"", b"secret\0", b"secrets"):
        assert not verify(wrong, stored)


# By crypt(3).
@pytest.mark.parametrize(
    ("password", "stored"),
    [("", "./Una9Fi.seRo"), ("longer than eight", "zz.JiwC6aD7cA"), ("pässword", "Q9d.fycZik23g")],
)
def test_the_oldest_hash_is_that_of_the_system(password: str, stored: str) -> None:
    assert verify(password.encode(), stored)
    assert not verify(b"!" + password.encode(), stored)


def test_of_hashes_that_see_eight_characters_only_the_operator_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read(f"ann:{HASHES[0]}\nbob:{HASHES[5]}\n")
    assert "bob look at eight characters" in caplog.text
    assert "ann" not in caplog.text
    assert HASHES[5] not in caplog.text


@pytest.fixture
def users() -> Passwords:
    return read(f"# made by hand\n\nann:{HASHES[0]}\nbob:{HASHES[3]}\n")


async def test_a_user_is_its_role_and_remembered(users: Passwords) -> None:
    assert users.identify(b"ann:secret") is None
    assert await users.learn(b"ann:secret", "host", 0) == Identity("ann")
    assert await users.learn(b"bob:secret", "host", 0) == Identity("bob")
    assert users.identify(b"ann:secret") == Identity("ann")
    assert users.identify(b"bob:secret") == Identity("bob")
    assert users.identify(b"bob:Secret") is None


@pytest.mark.parametrize(
    "shown", [b"ann:wrong", b"eve:secret", b"ann", b"", b":", b"ann:" + b"x" * 2000, b"\xff:\xff"]
)
async def test_what_is_wrong_is_not_told(users: Passwords, shown: bytes) -> None:
    await users.learn(b"ann:secret", "host", 0)
    with pytest.raises(AuthenticationFailed) as refused:
        await users.learn(shown, "host", 0)
    assert "secret" not in str(refused.value)
    assert "ann" not in str(refused.value)
    assert users.identify(shown) is None


async def test_guessing_has_a_limit_that_other_addresses_and_known_users_do_not_notice(
    users: Passwords,
) -> None:
    await users.learn(b"ann:secret", "mallory", 0)
    for _ in range(TRIES):
        with pytest.raises(AuthenticationFailed, match="wrong password"):
            await users.learn(b"bob:guess", "mallory", 0)
    for guess in (b"bob:guess", b"bob:secret"):
        with pytest.raises(AuthenticationFailed, match="try again") as refused:
            await users.learn(guess, "mallory", 0)
        # Clients whose credentials are refused never come again.
        assert refused.value.code == pb.TooManyRequests
    assert users.identify(b"ann:secret") == Identity("ann")
    assert await users.learn(b"bob:secret", "elsewhere", 0) == Identity("bob")
    with pytest.raises(AuthenticationFailed, match="wrong password"):
        await users.learn(b"bob:guess", "mallory", 1)


async def test_the_time_that_all_guesses_take_has_a_limit(users: Passwords) -> None:
    refusals = set()
    for host in range(HASHING_MS + 1):  # Each takes a millisecond or more.
        with pytest.raises(AuthenticationFailed) as refused:
            await users.learn(b"bob:guess", f"10.0.{host >> 8}.{host & 255}", 0)
        refusals.add(refused.value.reason)
        if len(refusals) == 2:
            break
    assert refusals == {"INVALID_TOKEN", "TOO_MANY_TRIES"}


async def test_many_clients_with_the_same_right_password_come_at_once(users: Passwords) -> None:
    found = await asyncio.gather(*(users.learn(b"bob:secret", "host", 0) for _ in range(100)))
    assert found == [Identity("bob")] * 100


@pytest.mark.parametrize(
    "line",
    ["ann", "ann:", ":x", "ann:plain", "ann:$2y$05$abcdefghijklmnopqrstuu", "ann:$6$rounds=99999999$s$x", ""],
)
def test_a_file_that_lets_nobody_in_says_what_to_do(line: str) -> None:
    with pytest.raises(ConfigError, match="htpasswd") as refused:
        read(line)
    assert "plain:" not in str(refused.value)


async def test_a_password_works_on_both_protocols(users: Passwords) -> None:
    async with guarded(authentication=Authentication(passwords=users), super_user_roles=("ann",)) as made:
        async with made.wire(b"ann:secret", "basic") as (_, answer):
            assert answer is not None
            assert answer.type == C.CONNECTED
        async with made.wire(b"ann:wrong", "basic") as (_, answer):
            assert answer is not None
            assert answer.error.error == pb.AuthenticationError
        for proof, status in (("ann:secret", 200), ("bob:secret", 403), ("ann:wrong", 401)):
            header = {"Authorization": "Basic " + base64.b64encode(proof.encode()).decode()}
            found = await made.http.get("/admin/v2/tenants", headers=header)
            assert found.status_code == status, found.text
        metrics = (await made.http.get("/metrics")).text
        method = 'provider_name="AuthenticationProviderBasic",auth_method="basic"'
        assert f'pulsar_authentication_success_total{{cluster="standalone",{method}}} 3' in metrics
        failed = (
            f'pulsar_authentication_failures_total{{cluster="standalone",{method},reason="INVALID_TOKEN"}} 2'
        )
        assert failed in metrics
        for header in ({}, {"Authorization": "Basic !"}, {"Authorization": "Bearer x"}):
            found = await made.http.get("/admin/v2/tenants", headers=header)
            assert found.status_code == 401
            assert found.headers["WWW-Authenticate"].startswith("Basic")


async def test_the_event_loop_goes_on_while_a_password_is_tried() -> None:
    users = read("ann:$6$rounds=99999$abcdefgh$x\n")
    turns = 0
    tried = asyncio.create_task(users.learn(b"ann:secret", "host", 0))
    while not tried.done():
        turns += 1
        await asyncio.sleep(0)
    assert isinstance(tried.exception(), AuthenticationFailed)
    # On the loop it would have had no turn between the first and the last.
    assert turns > 5


async def test_a_client_that_does_not_wait_until_it_is_let_in_is_refused(users: Passwords) -> None:
    async with guarded(authentication=Authentication(passwords=users), super_user_roles=("ann",)) as made:
        wire = await made.open()
        wire.send(
            C.CONNECT,
            "connect",
            client_version="peer",
            protocol_version=21,
            auth_method_name="basic",
            auth_data=b"ann:secret",
        )
        wire.send(C.LOOKUP, "lookupTopic", topic="persistent://acme/news/t", request_id=1)
        refusal = await wire.receive()
        assert refusal is not None
        assert "came in state handshake" in refusal.error.message
        assert await wire.receive() is None
        await wire.close()
