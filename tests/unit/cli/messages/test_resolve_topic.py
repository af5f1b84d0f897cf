"""Where a command sends its credentials."""

from __future__ import annotations

import pytest

from anabranch.cli.messages.resolve_topic import _is_as_safe
from anabranch.client.security import NOBODY, Security

TLS, PLAIN = "pulsar+ssl://broker:6651", "pulsar://broker:6650"
TOKEN = Security(token="secret")


@pytest.mark.parametrize(
    ("admin_url", "service_url", "security", "expected"),
    [
        ("https://broker:8443", TLS, TOKEN, True),
        ("http://broker:8080", TLS, TOKEN, False),
        ("http://broker:8080", TLS, Security(username="u", password="p"), False),
        ("http://broker:8080", TLS, NOBODY, True),
        ("http://broker:8080", PLAIN, TOKEN, True),
    ],
)
def test_a_token_that_came_over_tls_is_not_sent_without(
    admin_url: str, service_url: str, security: Security, expected: bool
) -> None:
    """The admin URL is the broker's word."""
    assert _is_as_safe(admin_url, service_url, security) is expected
