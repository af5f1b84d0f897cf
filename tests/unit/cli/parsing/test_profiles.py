"""Profiles: what a command knows about brokers and credentials without being told on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import build_parser, main
from anabranch.cli.parsing import profiles
from anabranch.cli.parsing.options import UsageError

CONFIG = """
default = "near"

[profiles.near]
service_url = "pulsar://near:6650"
admin_url = "http://near:8080"

[profiles.far]
service_url = "pulsar+ssl://far:6651"
token_file = "/keys/token"
tls_trust_certs = "/keys/ca.pem"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / ".config" / "anabranch"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


def completed(environment: dict[str, str], *words: str) -> dict[str, object]:
    arguments = build_parser(words[0]).parse_args(words)
    profiles.complete(arguments, environment)
    return {name: value for name, value in vars(arguments).items() if name in profiles.FIELDS}


def test_without_a_file_the_usual_ports_are_meant(tmp_path: Path) -> None:
    assert completed({"HOME": str(tmp_path)}, "produce", "t")["service_url"] == "pulsar://127.0.0.1:6650"
    assert completed({"HOME": str(tmp_path)}, "topics", "list")["admin_url"] == "http://127.0.0.1:8080"


def test_an_option_wins_over_a_variable_over_the_profile_over_the_default(
    environment: dict[str, str],
) -> None:
    assert completed(environment, "tail", "t")["service_url"] == "pulsar://near:6650"
    assert completed(environment, "topics", "list")["admin_url"] == "http://near:8080"
    far = completed(environment, "tail", "t", "--profile", "far")
    assert (far["service_url"], far["token"]) == ("pulsar+ssl://far:6651", "file:///keys/token")
    assert far["tls_trust_certs"] == "/keys/ca.pem"
    environment["ANABRANCH_PROFILE"] = "far"
    assert completed(environment, "tail", "t")["service_url"] == "pulsar+ssl://far:6651"
    # What the profile does not say is the default.
    assert (
        completed(environment, "topics", "--profile", "far", "list")["admin_url"] == "http://127.0.0.1:8080"
    )
    environment["ANABRANCH_SERVICE_URL"] = "pulsar://variable:6650"
    assert completed(environment, "tail", "t")["service_url"] == "pulsar://variable:6650"
    option = completed(environment, "tail", "t", "--service-url", "pulsar://option:6650")
    assert option["service_url"] == "pulsar://option:6650"


def test_an_identity_is_taken_whole(environment: dict[str, str]) -> None:
    environment["ANABRANCH_PROFILE"] = "far"
    assert completed(environment, "tail", "t", "--user", "ann")["token"] is None
    assert completed(environment, "tail", "t", "--token", "mine")["token"] == "mine"
    # The variable is read where credentials are made, and the profile's token is not in its way.
    environment["ANABRANCH_TOKEN"] = "variable"
    assert completed(environment, "tail", "t")["token"] is None
    assert completed(environment, "tail", "t", "--user", "ann")["token"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[profiles.x]\nurl = "a"\n', "profile x has 'url'; there are service_url"),
        ("[profiles.x]\ntoken = 7\n", "token of profile x must be text"),
        ("profiles = [1]\n", "[profiles.production]"),
        ("other = 1\n[profiles.x]\n", "'other' is neither"),
        ("[profiles", "is no TOML"),
        ("[profiles.y]\n", "there is no profile 'x'"),
    ],
)
def test_what_is_wrong_with_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as told:
        profiles.chosen("x", {"ANABRANCH_CONFIG": str(path)})
    assert message in str(told.value)


def test_a_profile_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        profiles.chosen("x", {"HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\nauthParams=token:abc",
            {"token": "abc"},
        ),
        (
            "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\nauthParams=file:///t",
            {"token": "file:///t"},
        ),
        ('authPlugin=AuthenticationToken\nauthParams={"token":"abc"}', {"token": "abc"}),
        (
            "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationTls\nauthParams=tlsCertFile:/c,tlsKeyFile:/k",
            {"tls_cert": "/c", "tls_key": "/k"},
        ),
        (
            'authPlugin=AuthenticationBasic\nauthParams={"userId":"u","password":"p"}',
            {"user": "u", "password": "p"},
        ),
        ("tlsTrustCertsFilePath=/ca\n# tlsKeyFilePath=/no", {"tls_trust_certs": "/ca"}),
    ],
)
def test_pulsars_client_conf_is_read(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    path = tmp_path / "client.conf"
    path.write_text(
        f"webServiceUrl=http://web:8080/\nbrokerServiceUrl=pulsar://b:6650/\nproxyProtocol=\n{text}\n"
    )
    found = profiles.chosen(None, {"HOME": str(tmp_path), "PULSAR_CLIENT_CONF": str(path)})
    assert found == {
        "service_url": "pulsar://b:6650",
        "admin_url": "http://web:8080",
        "tls_allow_insecure": False,
        **expected,
    }


def test_an_identity_that_cannot_be_shown_is_told(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("authPlugin=com.example.Kerberos\n")
    with pytest.raises(UsageError, match="Kerberos"):
        profiles.chosen(None, {"HOME": str(tmp_path), "PULSAR_CLIENT_CONF": str(path)})


def test_commands_reach_the_broker_of_the_profile(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        f'[profiles.here]\nservice_url = "{broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
    )
    monkeypatch.setenv("ANABRANCH_CONFIG", str(path))
    assert main(["topics", "create", "by-profile", "--profile", "here"]) == 0
    assert main(["produce", "by-profile", "-m", "x", "--profile", "here"]) == 0
    capfd.readouterr()
    assert main(["tail", "by-profile", "--no-follow", "--profile", "here"]) == 0
    assert capfd.readouterr().out == "x\n"
    assert main(["tail", "by-profile", "--profile", "there"]) == 1
    assert capfd.readouterr().err == f"anabranch: there is no profile 'there' in {path}; it has here\n"
