"""What a mistyped name is answered with."""

from __future__ import annotations

import pytest

from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from unit.cli.running import consume, produce, topics

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def known(broker: BrokerProcess) -> BrokerProcess:
    assert topics(broker, "create", "near-orders") == 0
    assert topics(broker, "create", "topic://public/default/near-clicks") == 0
    assert main(["namespaces", "create", "public/near", "--admin-url", broker.admin_url]) == 0
    assert topics(broker, "create", "public/near/invoices", "--partitions", "2") == 0
    return broker


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "topics stats near-ordres",
            "Topic persistent://public/default/near-ordres not found; did you mean near-orders?",
        ),
        ("topics split topic://public/default/near-click 0", "does not exist; did you mean near-clicks?"),
        ("subscriptions list public/near/invoicse", "did you mean public/near/invoices?"),
        ("topics delete near-nothing-like-it", "near-nothing-like-it not found"),
        ("topics list public/naer", "there is no namespace public/naer; did you mean public/near?"),
        ("topics create public/naer/t", "there is no namespace public/naer; did you mean public/near?"),
        ("subscriptions delete near-orders billing", "Subscription billing not found"),
    ],
)
def test_a_name_that_is_not_there_is_named_with_those_like_it(
    known: BrokerProcess, words: str, said: str, capfd: Capture
) -> None:
    capfd.readouterr()
    assert main([*words.split(), "--admin-url", known.admin_url]) == 1
    shown = capfd.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    if "did you mean" not in said:
        assert "did you mean" not in shown


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (
            "near-new-one",
            "persistent://public/default/near-new-one is a new topic, a classic one, which does not split",
        ),
        ("topic://public/default/near-new-two", "topic://public/default/near-new-two is a new topic\n"),
    ],
)
def test_a_topic_that_a_command_makes_is_told_of_once(
    broker: BrokerProcess, topic: str, said: str, capfd: Capture
) -> None:
    """`consume` of a mistyped name waited on a topic that it had made without a word."""
    assert consume(broker, topic, "-s", "s", "--timeout", "0.2") == 0
    assert said in capfd.readouterr().err
    assert produce(broker, topic, "-m", "x") == 0
    assert "new topic" not in capfd.readouterr().err


def test_a_classic_topic_under_a_scalable_name_is_told_of_once(broker: BrokerProcess, capfd: Capture) -> None:
    """The command said it, and the client twice."""
    assert topics(broker, "create", "near-classic") == 0
    capfd.readouterr()
    assert produce(broker, "topic://public/default/near-classic", "-m", "x") == 0
    assert (
        consume(broker, "topic://public/default/near-classic", "-s", "s", "--start", "earliest", "-n", "1")
        == 0
    )
    shown = capfd.readouterr().err
    assert shown.count("classic topic") == 2
    assert shown.count("topics migrate public/default/near-classic") == 2
