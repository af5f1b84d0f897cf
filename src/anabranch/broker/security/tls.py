"""The broker's side of TLS: its certificate, and the authorities whose client certificates it trusts.

Certificates expire and are replaced on the disk. Changed files are read again, for new connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl

from anabranch.broker.config.config import BrokerConfig, ConfigError

log = logging.getLogger(__name__)


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """The TLS settings of the broker's ports. ConfigError if a file is missing or invalid."""
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(config.tls_certificate_file_path, config.tls_key_file_path)
        if config.tls_trust_certs_file_path:
            context.load_verify_locations(config.tls_trust_certs_file_path)
            required = config.tls_require_trusted_client_cert_on_connect
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tlsCertificateFilePath, tlsKeyFilePath or tlsTrustCertsFilePath cannot be used: {error}; they name files "
            "in PEM"
        ) from None
    return context


class Certificates:
    """The certificates in use. ConfigError if they are invalid."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._seen = self._marks()
        self.context = server_context(config)

    async def look(self) -> None:
        """Reads changed files; to be called regularly. Invalid ones replace nothing, and are tried again."""
        marks = await asyncio.to_thread(self._marks)
        if marks == self._seen:
            return
        try:
            self.context = await asyncio.to_thread(server_context, self._config)
        except ConfigError as error:
            log.error("reading changed certificates failed, the former ones stay in use: %s", error)
            return
        self._seen = marks
        log.info("changed certificates are used for new connections")

    def _marks(self) -> list[tuple[int, ...] | None]:
        config = self._config
        files = (config.tls_certificate_file_path, config.tls_key_file_path, config.tls_trust_certs_file_path)
        return [_mark(file) for file in files if file]


def _mark(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
