"""The broker's side of TLS: its certificate, and whose clients' certificates it believes."""

from __future__ import annotations

import ssl

from anabranch.broker.config import BrokerConfig, ConfigError


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """ConfigError if a file is missing or holds something else."""
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
