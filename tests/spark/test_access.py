"""Queries on a broker that wants to know who asks, and that speaks TLS. No session."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from soak.ports import free_port

from anabranch import blocking
from anabranch.client.errors import AccessFailed, RequestRefused
from anabranch.spark.options.source import parse
from anabranch.spark.source import BatchReader
from harness.broker_process import BrokerProcess
from spark.dry import DryQuery, values

SECRET = bytes(range(32))
TOKEN = jwt.encode({"sub": "admin"}, SECRET, "HS256")
TOPIC = "topic://public/default/guarded"
COUNT = 40


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for this machine that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker of a test")])
    now = datetime.datetime.now(datetime.UTC)
    own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "broker.pem", folder / "broker.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    none = serialization.NoEncryption()
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)
    )
    return str(pem), str(private)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    pem, key = certificate(folder)
    settings = {
        "authenticationEnabled": True,
        "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
        "brokerServicePortTls": free_port(),
        "webServicePortTls": free_port(),
        "tlsCertificateFilePath": pem,
        "tlsKeyFilePath": key,
        "logLingerSeconds": 3600,
    }
    with BrokerProcess(folder, settings, token=TOKEN) as process:
        process.put("scalable/public/default/guarded?numInitialSegments=1")
        with (
            blocking.connect(process.url, token=TOKEN) as client,
            client.producer(TOPIC, batching=False) as producer,
        ):
            for number in range(COUNT):
                producer.post(b"%d" % number)
        yield process


def secure(process: BrokerProcess) -> dict[str, object]:
    return {
        "serviceUrl": f"pulsar+ssl://127.0.0.1:{process.settings['brokerServicePortTls']}",
        "adminUrl": f"https://127.0.0.1:{process.settings['webServicePortTls']}",
        "tlsTrustCertsFile": process.settings["tlsCertificateFilePath"],
    }


@pytest.mark.parametrize("mode", ["broker", "direct"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_query_with_a_token_reads_with_and_without_tls(
    guarded: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, has_tls: bool
) -> None:
    kept = tmp_path / "token"
    kept.write_text(TOKEN)
    where = secure(guarded) if has_tls else {"serviceUrl": guarded.url}
    given = {"topic": TOPIC, "readMode": mode, "authToken": kept.as_uri(), **where}
    query = DryQuery(start="earliest", maxRowsPerTrigger=30, **given)
    with caplog.at_level("INFO"):
        assert values(query.catch_up()) == list(range(COUNT))
    assert len(query.batches) == 2
    assert "counted by a client" not in caplog.text, "files are looked at with the token, too"
    query.stop()
    options = parse({name: str(value) for name, value in given.items()} | {"minPartitions": "4"}, "batch")
    reader = BatchReader(options, None)
    tasks = reader.partitions()
    assert len(tasks) >= 4
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert values(rows) == list(range(COUNT))


def test_a_query_without_a_token_is_told_so(guarded: BrokerProcess) -> None:
    query = DryQuery(serviceUrl=guarded.url, topic=TOPIC, start="earliest", timeoutSeconds=20)
    with pytest.raises(RequestRefused, match="required"):
        query.trigger()
    query.stop()


def test_a_broker_that_is_not_trusted_is_told(guarded: BrokerProcess) -> None:
    given = {name: value for name, value in secure(guarded).items() if name != "tlsTrustCertsFile"}
    query = DryQuery(topic=TOPIC, authToken=TOKEN, start="earliest", timeoutSeconds=20, **given)
    with pytest.raises(AccessFailed, match="tls_trust_certs_file"):
        query.trigger()
    query.stop()
