"""Tokens and TLS on a real broker process, with our client, Pulsar's wheel and plain HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from anabranch import blocking
from anabranch.client.errors import AccessFailed, RequestRefused
from harness.broker_process import RestFailed, until
from harness.secured import SECRET, TOKEN, Authority, Secured


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("broker"), authority) as process:
        yield process


def round_trip(url: str, topic: str, **options: Any) -> None:
    with blocking.connect(url, **options) as client:
        with client.producer(topic) as producer:
            for number in range(20):
                producer.send(b"%d" % number, key=f"k{number}")
        with client.stream_consumer(topic, subscription="s", start="earliest") as stream:
            assert sorted(int(stream.receive(10).value) for _ in range(20)) == list(range(20))


def test_our_client_comes_with_a_token_and_over_tls(secured: Secured, authority: Authority) -> None:
    round_trip(secured.url, "topic://public/default/plain", token=TOKEN)
    round_trip(
        secured.url_tls, "topic://public/default/tls", token=TOKEN, tls_trust_certs_file=authority.file
    )
    round_trip(secured.url_tls, "topic://public/default/any", token=TOKEN, tls_allow_insecure=True)


def test_a_certificate_proves_who_a_client_is(secured: Secured, authority: Authority) -> None:
    certificate, key = authority.certificate("alice")
    topic = "topic://public/default/alice"
    round_trip(
        secured.url_tls,
        topic,
        tls_trust_certs_file=authority.file,
        tls_certificate_file=certificate,
        tls_key_file=key,
    )
    with (
        blocking.connect(secured.url_tls, tls_trust_certs_file=authority.file) as client,
        pytest.raises(RequestRefused, match="required"),
    ):
        client.producer(topic)


def test_a_broker_that_is_not_trusted_is_told_apart_from_one_that_is_away(secured: Secured) -> None:
    for file, why in ((None, "tls_trust_certs_file"), ("nowhere.pem", r"nowhere\.pem")):
        with (
            blocking.connect(secured.url_tls, token=TOKEN, tls_trust_certs_file=file) as client,
            pytest.raises(AccessFailed, match=why),
        ):
            client.producer("topic://public/default/tls")


def shaken_hands(port: int, certificate: tuple[str, str] | None) -> bool:
    """Whether TLS lets a client with that certificate say anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain) as secured,
        ):
            # In TLS 1.3 a client hears only now what the broker thinks of its certificate.
            secured.sendall(b"GET /status.html HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n")
            return bool(secured.recv(1))
    except (ssl.SSLError, ConnectionError):
        return False


def test_certificates_of_others_and_those_whose_time_is_over_open_nothing(
    secured: Secured, authority: Authority, tmp_path: Path
) -> None:
    forged, late = Authority(tmp_path).certificate("admin"), authority.certificate("late", days_ago=10)
    good = authority.certificate("alice")
    for setting in ("brokerServicePortTls", "webServicePortTls"):
        port = int(str(secured.settings[setting]))
        assert shaken_hands(port, None)
        assert shaken_hands(port, good)
        assert not shaken_hands(port, forged)
        assert not shaken_hands(port, late)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            plain.sendall(b"GET /status.html HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert plain.recv(1) == b""
    assert "for its TLS: " in secured.log


def test_pulsars_wheel_comes_with_a_token_and_over_tls(secured: Secured, authority: Authority) -> None:
    looked_up = f"http://127.0.0.1:{secured.http_port}"
    for url, topic in (
        (secured.url, "wheel"),
        (secured.url_tls, "wheel-tls"),
        (looked_up, "wheel-http"),
        (secured.http_url_tls, "wheel-https"),
    ):
        client = pulsar.Client(
            url,
            authentication=pulsar.AuthenticationToken(TOKEN),
            tls_trust_certs_file_path=authority.file,
            tls_validate_hostname=True,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        try:
            consumer = client.subscribe(topic, "s")
            client.create_producer(topic).send(b"1")
            assert consumer.receive(10_000).data() == b"1"
        finally:
            client.shutdown()


def test_pulsars_wheel_without_a_token_gets_nowhere(secured: Secured) -> None:
    client = pulsar.Client(
        secured.url, operation_timeout_seconds=1, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        # It takes no refusal before it is connected for an answer, and tries until its time is up.
        with pytest.raises(pulsar.PulsarException):
            client.create_producer("wheel")
    finally:
        client.shutdown()


def test_rest_wants_a_token_for_all_but_its_state(secured: Secured, authority: Authority) -> None:
    assert secured.get("brokers/health") == "ok"
    trusting = ssl.create_default_context(cafile=authority.file)
    request = urllib.request.Request(f"{secured.http_url_tls}/admin/v2/brokers/health")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, context=trusting)
    with refused.value as answer:
        assert answer.code == 401
        assert "show a token" in json.loads(answer.read())["reason"]
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, context=trusting) as answer:
        assert answer.status == 200
    secured.token = None
    try:
        for path in ("clusters", "persistent/public/default/plain/stats", "nothing/of/the/kind"):
            with pytest.raises(RestFailed, match="401"):
                secured.get(path)
    finally:
        secured.token = TOKEN
    for public in ("/status.html", "/metrics", "/ui"):
        with urllib.request.urlopen(f"http://127.0.0.1:{secured.http_port}{public}") as answer:
            assert answer.status == 200


def test_tokens_and_keys_are_never_logged(secured: Secured) -> None:
    with (
        blocking.connect(secured.url, token="not-a-token-but-secret") as client,
        pytest.raises(RequestRefused),
    ):
        client.producer("topic://public/default/t")
    log = secured.log
    assert "the token cannot be read" in log
    for secret in ("not-a-token-but-secret", TOKEN, base64.b64encode(SECRET).decode()):
        assert secret not in log


def test_a_certificate_replaced_on_the_disk_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    process = Secured(tmp_path, authority)
    process.settings["tlsCertRefreshCheckDurationSec"] = 1
    ports = [int(url.rpartition(":")[2]) for url in (process.url_tls, process.http_url_tls)]

    def shown() -> list[str]:
        return [ssl.get_server_certificate(("127.0.0.1", port)) for port in ports]

    with process:
        before = shown()
        authority.certificate("broker")
        until(lambda: all(one != other for one, other in zip(shown(), before, strict=True)))
        round_trip(process.url_tls, "t", token=TOKEN, tls_trust_certs_file=authority.file)
