"""`anabranch tokens`: keys and tokens that a broker takes."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.security.tokens import authentication
from anabranch.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["tokens", *argv]) == 0
    return capsys.readouterr().out.strip()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["tokens", *argv]) == 1
    return capsys.readouterr().err.strip()


def test_a_token_of_a_secret_is_taken_by_a_broker_with_that_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "secret.key"
    printed(capsys, "create-secret-key", "-o", str(key))
    assert key.stat().st_mode & 0o777 == 0o600
    token = printed(capsys, "create", "--secret-key", key.as_uri(), "--subject", "ann", "--expiry-time", "1y")
    known = authentication(BrokerConfig(authentication_enabled=True, token_secret_key=key.as_uri()))
    found = known.identify("token", token.encode(), time.time())
    assert found.role == "ann"
    assert found.expires_s == pytest.approx(time.time() + 365 * 86_400, abs=60)
    assert json.loads(printed(capsys, "validate", "-sk", key.as_uri(), token))["sub"] == "ann"


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_a_token_of_a_private_key_is_taken_by_a_broker_with_the_public_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    pair = ("--output-private-key", str(private), "--output-public-key", str(public))
    printed(capsys, "create-key-pair", "-a", algorithm, *pair)
    assert private.stat().st_mode & 0o777 == 0o600
    token = printed(capsys, "create", "--private-key", private.as_uri(), "-s", "bob", "-c", "team=blue")
    config = BrokerConfig(
        authentication_enabled=True, token_public_key=public.as_uri(), token_public_alg=algorithm
    )
    assert authentication(config).identify("token", token.encode(), time.time()).role == "bob"
    assert json.loads(printed(capsys, "validate", "--public-key", public.as_uri(), token)) == {
        "sub": "bob",
        "team": "blue",
    }


def test_a_token_is_shown_from_an_argument_a_file_or_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = printed(capsys, "create-secret-key")
    token = printed(capsys, "create", "-sk", f"data:;base64,{secret}", "-s", "ann")
    file = tmp_path / "token"
    file.write_text(token + "\n")
    shown = ['{"alg": "HS256", "typ": "JWT"}', '{"sub": "ann"}']
    for argv in ([token], [file.as_uri()], []):
        monkeypatch.setattr("sys.stdin", io.StringIO(token))
        assert printed(capsys, "show", *argv).splitlines() == shown
    assert f"file://{file}" in refused(capsys, "show", str(file))


def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    for path in (key, other):
        printed(capsys, "create-secret-key", "-o", str(path))
    assert "exists already" in refused(capsys, "create-secret-key", "-o", str(key))
    token = printed(capsys, "create", "-sk", key.as_uri(), "-s", "ann")
    assert "not signed" in refused(capsys, "validate", "-sk", other.as_uri(), token)
    old = printed(capsys, "create", "-sk", key.as_uri(), "-s", "ann", "-e", "0s")
    assert "expired" in refused(capsys, "validate", "-sk", key.as_uri(), old)
    assert "no token" in refused(capsys, "show", "nonsense")
    assert "such as 30s" in refused(capsys, "create", "-sk", key.as_uri(), "-s", "a", "-e", "soon")
    assert "cannot be read" in refused(capsys, "create", "-sk", "file:///nowhere", "-s", "a")
    assert "no private key" in refused(capsys, "create", "-pk", key.as_uri(), "-s", "a")
    assert "32 or more" in refused(capsys, "create", "-sk", "data:;base64,YWJj", "-s", "a")
