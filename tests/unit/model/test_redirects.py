"""Redirects that callers of the REST may follow, and those that would give credentials away."""

from __future__ import annotations

import pytest

from anabranch.model.redirects import UnsafeRedirect, redirected


@pytest.mark.parametrize(
    ("url", "location", "target"),
    [
        ("http://a:8080/admin/v2/x", "http://b:8080/admin/v2/x", "http://b:8080/admin/v2/x"),
        ("http://a:8080/admin/v2/x", "https://b:8443/admin/v2/x", "https://b:8443/admin/v2/x"),
        ("https://a:8443/admin/v2/x", "https://b:8443/admin/v2/x", "https://b:8443/admin/v2/x"),
        ("https://a:8443/admin/v2/x", "/admin/v2/y", "https://a:8443/admin/v2/y"),
    ],
)
def test_brokers_redirect_to_each_other(url: str, location: str, target: str) -> None:
    assert redirected(url, location) == target


@pytest.mark.parametrize(
    "location", ["http://a:8443/admin/v2/x", "http://b:8080/", "HTTP://b/", "//b:8080/x?http://"]
)
def test_a_request_never_leaves_tls(location: str) -> None:
    if location.startswith("//"):  # It keeps the scheme.
        assert redirected("https://a:8443/x", location).startswith("https://b")
        return
    with pytest.raises(UnsafeRedirect, match="without TLS"):
        redirected("https://a:8443/admin/v2/x", location)


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "ftp://b/x", "http://b:port/", "https://[::1", "data:,x"]
)
def test_a_redirect_leads_to_an_address_of_a_broker(location: str) -> None:
    with pytest.raises(UnsafeRedirect, match="no address of a broker"):
        redirected("http://a:8080/admin/v2/x", location)
