"""`allowAutoTopicCreationType=scalable`: a name without a domain, used first by our client or by Pulsar's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from soak.link import Link, Refused

from anabranch import blocking
from anabranch.cli.main import main
from harness.broker_process import BrokerProcess
from interop.conftest import Connect

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def scalable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"allowAutoTopicCreationType": "scalable"}
    with BrokerProcess(tmp_path_factory.mktemp("scalable"), settings) as process:
        yield process


def cli(broker: BrokerProcess, *words: str) -> int:
    return main([*words, "--service-url", broker.url])


def kinds(broker: BrokerProcess, capfd: Capture, local: str) -> list[str]:
    capfd.readouterr()
    assert main(["topics", "list", "--admin-url", f"http://127.0.0.1:{broker.http_port}"]) == 0
    names = [line.split()[0] for line in capfd.readouterr().out.splitlines()]
    return [name for name in names if name.endswith(f"/{local}")]


def test_our_client_makes_a_scalable_topic_and_pulsars_is_told_so(
    scalable: BrokerProcess, connect: Connect, capfd: Capture
) -> None:
    assert cli(scalable, "produce", "orders", "-m", "one") == 0
    assert kinds(scalable, capfd, "orders") == ["topic://public/default/orders"]
    assert cli(scalable, "consume", "orders", "-s", "s", "--start", "earliest", "-n", "1") == 0
    assert capfd.readouterr().out == "one\n"
    # Refused, and nothing else of that name is made: no message goes where nobody looks.
    classic = connect(scalable, operation_timeout_seconds=10)
    uses: tuple[Callable[[], Any], ...] = (
        lambda: classic.create_producer("orders"),
        lambda: classic.subscribe("orders", "s"),
        lambda: classic.create_producer("persistent://public/default/orders"),
    )
    for use in uses:
        with pytest.raises(pulsar.PulsarException):
            use()
    assert kinds(scalable, capfd, "orders") == ["topic://public/default/orders"]
    # The client prints the reason, and its exceptions do not have it.
    with (
        Link(scalable.port) as link,
        pytest.raises(Refused, match="is a scalable topic: use a V5 client of Pulsar"),
    ):
        link.producer("persistent://public/default/orders")


def test_what_pulsars_client_made_first_is_used_by_ours(
    scalable: BrokerProcess, connect: Connect, capfd: Capture
) -> None:
    classic = connect(scalable)
    consumer = classic.subscribe("payments", "s")
    classic.create_producer("payments").send(b"theirs")
    assert cli(scalable, "produce", "payments", "-m", "ours") == 0
    assert [consumer.receive(30_000).data() for _ in range(2)] == [b"theirs", b"ours"]
    assert kinds(scalable, capfd, "payments") == ["persistent://public/default/payments"]
    # Whoever names the scalable topic is told what is used instead.
    assert cli(scalable, "produce", "topic://public/default/payments", "-m", "more") == 0
    told = capfd.readouterr().err
    assert "topic://public/default/payments is the classic topic persistent://public/default/payments" in told
    assert "anabranch topics migrate public/default/payments" in told
    assert consumer.receive(30_000).data() == b"more"


def test_a_name_with_a_domain_means_that_kind(scalable: BrokerProcess, capfd: Capture) -> None:
    with blocking.connect(scalable.url) as client:
        client.producer("persistent://public/default/plain").send(b"x")
        client.producer("public/default/short").send(b"x")
        client.producer("topic://public/default/named").send(b"x")
    assert kinds(scalable, capfd, "plain") == ["persistent://public/default/plain"]
    assert kinds(scalable, capfd, "short") == ["topic://public/default/short"]
    assert kinds(scalable, capfd, "named") == ["topic://public/default/named"]


def test_a_namespace_decides_over_the_broker(
    scalable: BrokerProcess, broker: BrokerProcess, capfd: Capture
) -> None:
    for process, options, expected in (
        (scalable, ["on"], "persistent"),
        (broker, ["on", "--scalable"], "topic"),
    ):
        admin = ("--admin-url", f"http://127.0.0.1:{process.http_port}")
        assert main(["namespaces", "create", "public/decides", *admin]) == 0
        assert main(["namespaces", "set-auto-topic-creation", "public/decides", *options, *admin]) == 0
        assert cli(process, "produce", "public/decides/t", "-m", "x") == 0
        capfd.readouterr()
        assert main(["topics", "list", "public/decides", *admin]) == 0
        assert capfd.readouterr().out.startswith(f"{expected}://public/decides/t")
