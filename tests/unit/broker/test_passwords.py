"""Users with passwords: hashes as `htpasswd` and `openssl passwd` make them, and files that cannot be used."""

from __future__ import annotations

import base64

import pytest

from anabranch.broker.authentication import Authentication, AuthenticationFailed
from anabranch.broker.config import ConfigError
from anabranch.broker.passwords import TRIES_AT_ONCE, Passwords, read, verify
from anabranch.wire import pulsar_pb2 as pb
from harness.guarded import C, guarded

# `openssl passwd -apr1|-1|-5|-6 -salt … secret`; the last by crypt(3).
HASHES = [
    "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/",
    "$1$abcdefgh$cHJi5PXp/ki/ktXzqlk6I1",
    "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.",
    "$6$abcdefghijklmnop$J/AWykHqo2Tx5UtavGnFc3ytI33la50JpzLTarSWVhkIXK6wOjNwwZjsrIw2UgmrER2EKrSHCeQyAINEEXAk1/",
    "$5$rounds=1234$salt$Wmg4z916IEmzueSGM6nAMfu1U2QfEnLkEX0e7ziwZcB",
]


@pytest.mark.parametrize("stored", HASHES, ids=lambda stored: stored.split("$")[1])
def test_the_right_password_is_told_from_a_wrong_one(stored: str) -> None:
    assert verify(b"secret", stored)
    for wrong in (b"Secret", b"", b"secret\0", b"secrets"):
        assert not verify(wrong, stored)


@pytest.fixture
def users() -> Passwords:
    return read(f"# made by hand\n\nann:{HASHES[0]}\nbob:{HASHES[3]}\n")


def test_a_user_is_its_role(users: Passwords) -> None:
    for _ in range(2):  # The second time it is remembered.
        assert users.identify(b"ann:secret", 0).role == "ann"
        assert users.identify(b"bob:secret", 0).expires_s is None


@pytest.mark.parametrize(
    "shown", [b"ann:wrong", b"eve:secret", b"ann", b"", b":", b"ann:" + b"x" * 2000, b"\xff:\xff"]
)
def test_what_is_wrong_is_not_told(users: Passwords, shown: bytes) -> None:
    users.identify(b"ann:secret", 0)
    with pytest.raises(AuthenticationFailed) as refused:
        users.identify(shown, 0)
    assert "secret" not in str(refused.value)
    assert "ann" not in str(refused.value)


def test_guessing_has_a_limit_that_known_users_do_not_notice(users: Passwords) -> None:
    users.identify(b"ann:secret", 0)
    for _ in range(TRIES_AT_ONCE - 1):
        with pytest.raises(AuthenticationFailed, match="wrong password"):
            users.identify(b"bob:guess", 0)
    for guess in (b"bob:guess", b"bob:secret"):
        with pytest.raises(AuthenticationFailed, match="try again"):
            users.identify(guess, 0)
    assert users.identify(b"ann:secret", 0).role == "ann"
    assert users.identify(b"bob:secret", 1).role == "bob"


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
        for header in ({}, {"Authorization": "Basic !"}, {"Authorization": "Bearer x"}):
            found = await made.http.get("/admin/v2/tenants", headers=header)
            assert found.status_code == 401
            assert found.headers["WWW-Authenticate"].startswith("Basic")
