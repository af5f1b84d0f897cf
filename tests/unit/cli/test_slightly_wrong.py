"""Commands that are slightly wrong, and those that are right and were answered wrongly, as newcomers typed them."""

from __future__ import annotations

import shlex

import pytest

from anabranch.cli.admin.stats import is_asked_for
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import main
from unit.cli.running import consume, produce, topics

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def known(broker: BrokerProcess) -> BrokerProcess:
    assert produce(broker, "wrong classic", "-m", "a", "-m", "b", "-m", "c") == 0
    assert topics(broker, "create", "topic://public/default/wrong-scalable") == 0
    url = ("--admin-url", broker.admin_url)
    assert main(["subscriptions", "create", "wrong classic", "there", "--start", "earliest", *url]) == 0
    return broker


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # What is there is named, with its kind.
        ("topics create wrong-scalable", "topic://public/default/wrong-scalable exists already, a scalable"),
        ("topics create 'wrong classic'", "persistent://public/default/wrong classic exists already"),
        (
            "topics create --scalable 'wrong classic'",
            "exists: `anabranch topics migrate public/default/wrong classic` makes it scalable",
        ),
        (
            "subscriptions create 'wrong classic' there",
            "persistent://public/default/wrong classic has a subscription there already: `subscriptions reset`",
        ),
        # A classic topic is not told to be absent.
        (
            "topics explain 'wrong classic'",
            "wrong classic is a classic topic, which has no segments; `anabranch topics migrate 'wrong classic'`",
        ),
        ("topics explain wrong-nothing", "does not exist"),
        ("subscriptions reset wrong-scalable s 1:1", "move to earliest, latest or a time"),
        ("topics stats topic://wrong", "did you mean topic://public/default/wrong?"),
    ],
)
def test_a_refusal_says_what_is_there_and_what_to_do(
    known: BrokerProcess, words: str, said: str, capfd: Capture
) -> None:
    capfd.readouterr()
    assert main([*shlex.split(words), "--admin-url", known.admin_url]) == 1
    shown = capfd.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("subscriptions skip t s 0", "'0': expected a whole number, 1 or more"),
        ("subscriptions skip t s all", "'all': expected a whole number, 1 or more"),
        ("subscriptions peek t s -n 0", "'0': expected a whole number, 1 or more"),
        ("topics peek t -n -1", "'-1': expected a whole number, 1 or more"),
        ("topics split t", "usage: anabranch topics split [OPTION ...] topic segment\n"),
        ("topics", "the following arguments are required: ACTION; `anabranch topics --help` lists them"),
        ("produce orders -m x -c zst", "choose from 'none', 'lz4'"),
        ("topics grant-permission t joe", "[OPTION ...] --actions RIGHT,… topic role"),
        ("consume", "usage: anabranch consume [OPTION ...] [topic]\n"),
    ],
)
def test_a_wrong_command_line_is_answered_with_two_lines(words: str, said: str, capsys: Capture) -> None:
    """The mistake stood below up to twelve lines of options."""
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), *(["--xyzzy"] if words == "consume" else [])])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 2


def test_a_command_that_is_printed_can_be_pasted(broker: BrokerProcess, capfd: Capture) -> None:
    assert produce(broker, "to paste", "-m", "x") == 0
    *_, command = capfd.readouterr().err.splitlines()
    words = shlex.split(command.replace("NAME", "later"))
    assert words[:3] == ["anabranch", "consume", "to paste"]
    reach = () if "--service-url" in words else ("--service-url", broker.service_url)
    assert main([*words[1:], "-n", "1", *reach]) == 0
    assert capfd.readouterr().out == "x\n"


@pytest.mark.parametrize("more", [(), ("--no-follow",)])
def test_so_many_of_the_last_messages_are_printed_and_no_more(
    known: BrokerProcess, more: tuple[str, ...], capfd: Capture
) -> None:
    """All of the last messages were printed."""
    capfd.readouterr()
    command = ["tail", "wrong classic", "-n", "3", "--num", "2", *more, "--service-url", known.service_url]
    assert main(command) == 0
    assert capfd.readouterr() == ("a\nb\n", "2 messages received\n")
    assert consume(known, "wrong classic", "--last", "3", "-n", "1") == 0
    assert capfd.readouterr().out == "a\n"


def test_a_kept_place_does_not_pass_messages_that_were_not_printed(
    known: BrokerProcess, capfd: Capture, tmp_path: object
) -> None:
    kept = ("--checkpoint", f"{tmp_path}/place")
    assert consume(known, "wrong classic", "--last", "3", "-n", "1", *kept) == 1
    assert "--num 1 prints fewer than --last 3" in capfd.readouterr().err


def test_a_run_of_no_messages_is_refused_instead_of_never_ending(
    known: BrokerProcess, capfd: Capture
) -> None:
    assert consume(known, "wrong classic", "-s", "s", "-n", "0") == 1
    assert "--num must be at least 1" in capfd.readouterr().err


def test_a_topic_that_tail_does_not_find_is_named_as_it_was_typed(
    known: BrokerProcess, capfd: Capture
) -> None:
    assert main(["tail", "wrong-nothing", "--service-url", known.service_url]) == 1
    said = "anabranch: wrong-nothing does not exist; `anabranch topics list public/default` shows what is there\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize(
    ("topic", "text", "expected"),
    [
        ("persistent://public/default/orders", "", True),
        ("persistent://public/default/orders", "ord", True),
        ("persistent://public/default/orders", "nope", False),
        ("persistent://pulsar/system/__load_history", "", False),
        ("persistent://pulsar/system/__load_history", "pulsar", False),
        ("persistent://pulsar/system/__load_history", "__load", True),
        ("pulsar/system", "", True),
    ],
)
def test_topics_of_the_brokers_are_left_out_of_stats_unless_named(
    topic: str, text: str, expected: bool
) -> None:
    assert is_asked_for(topic, text) is expected


def test_one_segment_is_one_segment(known: BrokerProcess, capfd: Capture) -> None:
    assert produce(known, "wrong-migrated", "-m", "x", "-q") == 0
    assert topics(known, "migrate", "wrong-migrated") == 0
    assert capfd.readouterr().out.endswith("; 1 active segment\n")


def test_a_subscription_of_a_scalable_topic_moves_to_both_ends(known: BrokerProcess, capfd: Capture) -> None:
    """`latest` was refused by a sentence that offered it."""
    topic = "topic://public/default/wrong-ends"
    url = ("--admin-url", known.admin_url)
    assert produce(known, topic, "-m", "x", "-m", "y") == 0
    assert main(["subscriptions", "create", topic, "s", "--start", "earliest", *url]) == 0
    for where, waiting in (("latest", "0"), ("earliest", "2")):
        assert main(["subscriptions", "reset", topic, "s", where, *url]) == 0
        capfd.readouterr()
        assert main(["subscriptions", "analyze-backlog", topic, "s", *url]) == 0
        assert f"messages that wait: {waiting}," in capfd.readouterr().out


def test_rights_are_granted_on_scalable_topics(known: BrokerProcess, capfd: Capture) -> None:
    """The page of rights says so; the command was for classic topics only."""
    for name in ("wrong-scalable", "topic://public/default/wrong-scalable"):
        assert topics(known, "grant-permission", name, "joe", "--actions", "produce,consume") == 0
        capfd.readouterr()
        assert topics(known, "permissions", name) == 0
        assert capfd.readouterr().out.split() == ["joe", "consume,", "produce"]
        assert topics(known, "revoke-permission", name, "joe") == 0
        capfd.readouterr()
        assert topics(known, "permissions", name) == 0
        assert capfd.readouterr().out == ""
