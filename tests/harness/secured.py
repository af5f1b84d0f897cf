"""A broker with TLS and tokens, and the certificates that it needs."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from soak.ports import free_port

from harness.broker_process import BrokerProcess

SECRET = bytes(range(32))
TOKEN = jwt.encode({"sub": "admin"}, SECRET, "HS256")


class Authority:
    """Certificates of a test, signed by an authority of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
        self.file = self._write("ca.pem", self._signed("authority of a test", self._key, is_authority=True))

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False, days_ago: int = 0
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
                ),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> str:
        path = self._folder / name
        path.write_bytes(data)
        return str(path)

    def certificate(self, name: str, *, days_ago: int = 0) -> tuple[str, str]:
        """The files of a certificate and its key, made for a day."""
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = self._signed(name, key, days_ago=days_ago)
        return self._write(f"{name}.pem", signed), self._write(f"{name}.key", private)


class Secured(BrokerProcess):
    """Accepts tokens signed with SECRET, and certificates of the authority."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        certificate, key = authority.certificate("broker")
        settings = {
            "authenticationEnabled": True,
            "tokenSecretKey": "data:;base64," + base64.b64encode(SECRET).decode(),
            "brokerServicePortTls": free_port(),
            "webServicePortTls": free_port(),
            "tlsCertificateFilePath": certificate,
            "tlsKeyFilePath": key,
            "tlsTrustCertsFilePath": authority.file,
        }
        super().__init__(folder, settings, token=TOKEN)

    @property
    def url_tls(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.settings['brokerServicePortTls']}"

    @property
    def http_url_tls(self) -> str:
        return f"https://127.0.0.1:{self.settings['webServicePortTls']}"
