"""Certificates that are replaced on the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from anabranch.broker.config.config import BrokerConfig, ConfigError
from anabranch.broker.security.tls import Certificates
from harness.secured import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config_of(certificate: str, key: str, trusted: str = "") -> BrokerConfig:
    return BrokerConfig(
        broker_service_port_tls=6651,
        tls_certificate_file_path=certificate,
        tls_key_file_path=key,
        tls_trust_certs_file_path=trusted,
    )


async def test_files_that_have_changed_are_read_again(authority: Authority) -> None:
    certificate, key = authority.certificate("broker")
    found = Certificates(config_of(certificate, key, authority.file))
    first = found.context
    await found.look()
    assert found.context is first
    for source, target in zip(authority.certificate("next"), (certificate, key), strict=True):
        shutil.copy(source, target)
    await found.look()
    second = found.context
    assert second is not first
    await found.look()
    assert found.context is second


async def test_what_cannot_be_used_replaces_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.certificate("broker")
    found = Certificates(config_of(certificate, key))
    first = found.context
    for target, source in zip((certificate, key), authority.certificate("next"), strict=True):
        # The one without the other, as it is while they are being replaced.
        shutil.copy(source, target)
        os.utime(target, ns=(1, 1))
        await found.look()
        if target == certificate:
            assert found.context is first
            assert "the former ones stay" in caplog.text
    assert found.context is not first
    second = found.context
    os.unlink(key)
    await found.look()
    assert found.context is second


def test_a_file_that_is_none_is_said_at_once(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="files in PEM"):
        Certificates(config_of(authority.file, authority.file))
