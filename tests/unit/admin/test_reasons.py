"""What a caller is told where the broker cannot be reached."""

from __future__ import annotations

import ssl

from anabranch.admin.rest import Words, _unreachable


def test_a_certificate_of_another_authority_says_what_to_name() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "unable to get local issuer certificate"
    told = str(_unreachable("https://broker:8443", error, 1, Words("--admin-url", "--tls-trust-certs")))
    assert told.endswith("unable to get local issuer certificate; name its authority with --tls-trust-certs")
