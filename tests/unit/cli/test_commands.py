"""topics against a real broker, and how commands fail."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main

Capture = pytest.CaptureFixture[str]


def topics(broker: BrokerProcess, *arguments: str) -> int:
    return main(["topics", "--admin-url", broker.admin_url, *arguments])


def test_topics_are_made_listed_described_and_deleted(broker: BrokerProcess, capsys: Capture) -> None:
    assert topics(broker, "create", "public/default/made") == 0
    assert topics(broker, "create", "public/default/wide", "--partitions", "2") == 0
    assert topics(broker, "list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert "persistent://public/default/made" in listed
    assert "persistent://public/default/wide  (2 partitions)" in listed
    for topic in ("made", "wide"):
        assert topics(broker, "stats", topic, "--json") == 0
        assert json.loads(capsys.readouterr().out)["msgInCounter"] == 0
        assert topics(broker, "unload", topic) == 0
        assert topics(broker, "delete", topic) == 0
        assert topics(broker, "delete", topic) == 1
        assert "not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topics", "--admin-url", "http://127.0.0.1:1", "list"], "Connection refused"),
        (["topics", "--admin-url", "ftp://x", "list"], "no admin URL"),
        (["topics", "--admin-url", "http://x:port", "list"], "no admin URL"),
        (["topics", "--admin-url", "http://", "list"], "no admin URL"),
        (["topics", "list", "a/b/c"], "cluster"),
        (["topics", "stats", "segment://a/b/c/0000-ffff-0"], "is a segment"),
        (["topics", "create", "t", "--segments", "2"], "--scalable"),
        (["topics", "create", "t", "--property", "a=b"], "--scalable"),
        (["topics", "create", "t", "--scalable", "--partitions", "2"], "--segments"),
        (["topics", "create", "t", "--scalable", "--property", "a"], "NAME=VALUE"),
        (["topics", "split", "persistent://a/b/c", "0"], "migrate"),
        (["topics", "unload", "topic://a/b/c"], "classic"),
        (["topics", "watch", "t", "--interval", "0"], "--interval"),
        (["standalone", "--config", "/nowhere/broker.conf"], "cannot read"),
        (["standalone", "--set", "maxMessageSize=tiny"], "maxMessageSize"),
        (["standalone", "--set", "maxMessageSize"], "NAME=VALUE"),
        (["standalone", "--port", "7000", "--http-port", "7000"], "both ports"),
        (["demo", "--durability", "--messages", "1"], "--messages"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_SERVICE_URL", "pulsar://127.0.0.1:1")
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["topics", "list", "--admin-url", "http://{binary}"],
            "does not speak HTTP: --admin-url names the port",
        ),
        (["produce", "t", "-m", "x", "--service-url", "pulsar://{web}"], "name the binary port"),
        (
            ["produce", "t", "-m", "x", "--service-url", "pulsar+ssl://{binary}"],
            "does not speak TLS; name the one",
        ),
        (
            ["consume", "t", "-s", "s", "--token", "file:///none", "--service-url", "pulsar://{binary}"],
            "/none",
        ),
    ],
)
def test_the_wrong_port_and_a_missing_token_are_told_as_what_they_are(
    broker: BrokerProcess, arguments: list[str], message: str, capsys: Capture
) -> None:
    ports = {
        "binary": broker.service_url.removeprefix("pulsar://"),
        "web": broker.admin_url.removeprefix("http://"),
    }
    assert main([word.format(**ports) for word in arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "is a broker running" not in error
    assert error.count("\n") == 1
    assert error[:-1].isprintable()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["topics", "list", "--admin-url", "http://{}"],
            "is the broker stopping, or is that the port for https?",
        ),
        (["produce", "t", "-m", "x", "--service-url", "pulsar://{}"], "speaks TLS needs pulsar+ssl://"),
    ],
)
def test_a_port_that_hangs_up_is_told_with_what_it_may_be(
    arguments: list[str], message: str, capsys: Capture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert main([word.format(address) for word in arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "is a broker running" not in error


def _hang_up(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer, _ = server.accept()
            peer.recv(1000)
            peer.close()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["topcs"], "there is no command 'topcs'; did you mean topics"),
        (["brokers", "healt"], "there is no action 'healt'; did you mean health"),
        (["namespaces", "set-retenton", "a/b"], "did you mean set-retention"),
        (["brokers", "???"], "`anabranch brokers --help` lists them"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_word(arguments: list[str], hint: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err.splitlines()[-1]


def test_help_names_every_command(capsys: Capture) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    for command in ("standalone", "produce", "consume", "topics", "namespaces", "stats", "demo"):
        assert command in shown
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    capsys.readouterr()
