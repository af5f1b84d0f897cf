"""The contract of `anabranch broker` and `anabranch cluster`: what they refuse before they reach for a store."""

from __future__ import annotations

import pytest

from anabranch.cli.main import main

STORES = ("--metadata", "zk://127.0.0.1:1/prod", "--log", "file:///nowhere")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("broker",), "metadataStoreUrl is not set: use --metadata zk://"),
        (("broker", "--metadata", "zk://z1"), "logUrl is not set: use --log file:///"),
        (("cluster", "init", "--metadata", "zk://z1"), "logUrl is not set"),
        (("broker", *STORES, "--port", "7", "--http-port", "7"), "both ports are 7"),
        (("broker", *STORES, "--set", "brokers=3"), "start a process for each"),
        (("broker", *STORES, "--set", "brokersOnePort=true"), "start a process for each"),
        (("broker", *STORES, "--set", "dataDir=/x"), "dataDir is for `anabranch standalone`"),
        (("broker", "--metadata", "zk://z1:port/x", "--log", "file:///x"), "is no host"),
        (("broker", "--metadata", "zk://me:you@z1/x", "--log", "file:///x"), "zooKeeperAuthFile"),
        (("broker", *STORES[:2], "--log", "s3://bucket"), "object store yet"),
        (("standalone", "--set", "metadataStoreUrl=zk://z1"), "start `anabranch broker`"),
        (("standalone", "--set", "logUrl=file:///x"), "start `anabranch broker`"),
        (("cluster", "status", "--metadata", "sqlite:///x"), "no metadata store that brokers can share"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = ("--port", "0", "--http-port", "0")
    given = arguments + (ports if arguments[0] != "cluster" and "--port" not in arguments else ())
    assert main(given) == 1
    shown = capsys.readouterr().err
    assert says in shown
    assert "me:you" not in shown
    assert [line for line in shown.splitlines() if line.startswith("anabranch: ")] == [shown.splitlines()[-1]]
