"""Roles, users and their rights on a real broker process: Pulsar's wheel, our client, the command line, plain HTTP."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pulsar
import pytest

from anabranch import blocking
from anabranch.client.errors import RequestRefused
from harness.broker_process import RestFailed, rest_call
from harness.secured import SECRET, TOKEN, Authority, Secured

TOPIC = "persistent://public/default/news"
PASSWORD = "a password that nobody may see"


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


def hashed(password: str) -> str:
    command = ["openssl", "passwd", "-apr1", "-salt", "abcdefgh", "-stdin"]
    done = subprocess.run(command, input=password, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def river(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Secured]:
    """`writer` may produce and `reader` consume in public/default; `admin` is a super user."""
    folder = tmp_path_factory.mktemp("broker")
    users = folder / "users.htpasswd"
    users.write_text(f"reader:{hashed(PASSWORD)}\n")
    made = Secured(folder, authority)
    made.settings |= {
        "authorizationEnabled": True,
        "superUserRoles": "admin,proxy",
        "basicAuthConf": users.as_uri(),
    }
    with made as process:
        process.put("persistent/public/default/news")
        for role, action in (("writer", "produce"), ("reader", "consume")):
            process.post(f"namespaces/public/default/permissions/{role}", [action])
        yield process


Connect = Callable[[pulsar.Authentication], pulsar.Client]


@pytest.fixture
def wheel(river: Secured) -> Iterator[Connect]:
    clients: list[pulsar.Client] = []

    def connect(authentication: pulsar.Authentication) -> pulsar.Client:
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(
            river.url, authentication=authentication, operation_timeout_seconds=10, logger=quiet
        )
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.shutdown()


def test_the_wheel_may_do_what_is_granted_and_is_told_of_what_is_not(wheel: Connect) -> None:
    writer = wheel(pulsar.AuthenticationToken(token("writer")))
    reader = wheel(pulsar.AuthenticationToken(token("reader")))
    consumer = reader.subscribe(TOPIC, "s")
    writer.create_producer(TOPIC).send(b"1")
    assert consumer.receive(10_000).data() == b"1"
    with pytest.raises(pulsar.AuthorizationError):
        writer.subscribe(TOPIC, "s2")
    with pytest.raises(pulsar.AuthorizationError):
        reader.create_producer(TOPIC)
    with pytest.raises(pulsar.AuthorizationError):
        wheel(pulsar.AuthenticationToken(token("nobody"))).create_producer(TOPIC)


def test_the_wheel_comes_with_a_user_and_a_password(wheel: Connect) -> None:
    reader = wheel(pulsar.AuthenticationBasic("reader", PASSWORD))
    reader.subscribe(TOPIC, "basic").close()
    with pytest.raises(pulsar.AuthorizationError):
        reader.create_producer(TOPIC)


def test_our_client_may_do_what_is_granted(river: Secured) -> None:
    with blocking.connect(river.url, token=token("writer")) as client:
        client.producer("topic://public/default/ours").send(b"1")
        with pytest.raises(RequestRefused, match="may not consume"):
            client.stream_consumer("topic://public/default/ours", subscription="s").receive(10)
    with blocking.connect(river.url, username="reader", password=PASSWORD) as client:
        with client.stream_consumer(
            "topic://public/default/ours", subscription="s", start="earliest"
        ) as stream:
            assert stream.receive(10).value == b"1"
        with pytest.raises(RequestRefused, match="may not produce"):
            client.producer("topic://public/default/ours").send(b"2")


def https(river: Secured, authority: Authority, path: str, certificate: tuple[str, str] | None) -> Any:
    context = ssl.create_default_context(cafile=authority.file)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    with urllib.request.urlopen(f"{river.http_url_tls}/admin/v2/{path}", context=context) as answer:
        return json.loads(answer.read())


def test_a_certificate_is_a_role_on_rest_too(river: Secured, authority: Authority) -> None:
    assert "public" in https(river, authority, "tenants", authority.certificate("admin"))
    for certificate, status in ((authority.certificate("writer"), 403), (None, 401)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            https(river, authority, "tenants", certificate)
        refused.value.close()
        assert refused.value.code == status
    assert https(river, authority, "persistent/public/default", authority.certificate("writer"))


def command(river: Secured, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    known |= {
        "ANABRANCH_SERVICE_URL": river.url,
        "ANABRANCH_ADMIN_URL": f"http://127.0.0.1:{river.http_port}",
        **environ,
    }
    return subprocess.run(
        [sys.executable, "-m", "anabranch.cli", *argv],
        env=known,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_commands_say_who_they_are(river: Secured, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    done = command(river, "tenants", "list", "--token", file.as_uri())
    assert (done.returncode, "public" in done.stdout) == (0, True), done.stderr
    assert command(river, "tenants", "list", ANABRANCH_TOKEN=TOKEN).returncode == 0
    secure = ("--admin-url", river.http_url_tls, "--tls-trust-certs", authority.file)
    certificate, key = authority.certificate("admin")
    own = ("--tls-cert", certificate, "--tls-key", key)
    assert command(river, "tenants", *secure, *own, "list").returncode == 0
    refused = command(river, "tenants", "list")
    assert (refused.returncode, "authentication is required" in refused.stderr) == (1, True)
    refused = command(river, "tenants", "list", "--user", "reader", ANABRANCH_PASSWORD=PASSWORD)
    assert "role 'reader' may not act as a super user" in refused.stderr
    assert "$ANABRANCH_PASSWORD" in command(river, "tenants", "list", "--user", "reader").stderr


def test_messages_are_sent_and_received_with_a_token_or_a_password(
    river: Secured, authority: Authority
) -> None:
    secure = ("--service-url", river.url_tls, "--tls-trust-certs", authority.file)
    sent = command(river, "produce", "lines", "-m", "hello", "-q", *secure, ANABRANCH_TOKEN=token("writer"))
    assert sent.returncode == 0, sent.stderr
    reading = ("consume", "lines", "-s", "s", "--start", "earliest", "-n", "1", "-q", "--timeout", "20")
    got = command(river, *reading, "--user", "reader", ANABRANCH_PASSWORD=PASSWORD)
    assert (got.returncode, got.stdout) == (0, "hello\n"), got.stderr
    refused = command(river, *reading, ANABRANCH_TOKEN=token("writer"))
    assert refused.returncode == 1
    assert "may not consume" in refused.stderr


def test_no_secret_is_logged_or_shown(river: Secured) -> None:
    bad = "not-a-token-but-a-secret"
    for shown in (bad, TOKEN[:-2]):
        with blocking.connect(river.url, token=shown) as client, pytest.raises(RequestRefused):
            client.producer(TOPIC)
    wrong = "a wrong password, just as secret"
    with (
        blocking.connect(river.url, username="reader", password=wrong) as client,
        pytest.raises(RequestRefused, match="unknown user or wrong password"),
    ):
        client.producer(TOPIC)
    told = []
    for header in (f"Bearer {bad}", bad, f"Basic {base64.b64encode(b'reader:' + wrong.encode()).decode()}"):
        request = urllib.request.Request(f"http://127.0.0.1:{river.http_port}/admin/v2/tenants")
        request.add_header("Authorization", header)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        with refused.value as answer:
            told.append(answer.read().decode())
    settings = json.dumps(river.get("brokers/configuration/runtime"))
    for text in (river.log, settings, *told):
        for secret in (bad, TOKEN, token("writer"), PASSWORD, wrong, hashed(PASSWORD)):
            assert secret not in text
            assert base64.b64encode(secret.encode()).decode() not in text
        assert base64.b64encode(SECRET).decode() not in text


def test_a_broker_that_asks_for_rights_and_not_for_names_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anabranch.cli", "standalone", "--set", "authorizationEnabled=true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "authenticationEnabled=true" in done.stderr


def test_taking_a_grant_back_ends_what_uses_it(river: Secured, wheel: Connect) -> None:
    river.post("namespaces/public/default/permissions/guest", ["produce"])
    producer = wheel(pulsar.AuthenticationToken(token("guest"))).create_producer(
        TOPIC, send_timeout_millis=2_000
    )
    producer.send(b"1")
    river.rest("DELETE", "namespaces/public/default/permissions/guest")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"2")
    with pytest.raises(RestFailed, match="403"):
        rest_call(river.http_port, "GET", "namespaces/public/default/permissions", token=token("guest"))
