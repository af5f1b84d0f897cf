"""Every command that asks the admin REST, run against a real broker, with and without --json."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import jwt
import pytest

from anabranch import blocking
from anabranch.cli.admin import policies as cli_policies
from anabranch.cli.completion import tree
from anabranch.cli.demo.process import BrokerProcess
from anabranch.cli.main import ADMIN, build_parser, main
from anabranch.client.hidden_writes.write import Write

Capture = pytest.CaptureFixture[str]

# A life of a tenant, a namespace and their topics. {} is a folder with files to read.
STORY = """
tokens create-secret-key -o {}/new.key
tokens create-key-pair --output-private-key {}/private.key --output-public-key {}/public.key -a ES256
tokens create -sk file://{}/secret.key -s ann -e 1h
tokens show file://{}/token
tokens validate -sk file://{}/secret.key file://{}/token
tenants list
tenants create walk --admin-roles joe,ann
tenants get walk
tenants update walk --admin-roles joe
clusters list
clusters get standalone
clusters create far --url http://far:8080 --broker-url pulsar://far:6650
clusters update far --url http://far:8081 --broker-url pulsar://far:6650
clusters delete far
brokers list
brokers health --wait 5
brokers ready
brokers version
brokers leader
brokers config
brokers list-dynamic-config
brokers update-dynamic-config maxConsumersPerSubscription 7
brokers get-all-dynamic-config
brokers delete-dynamic-config maxConsumersPerSubscription
namespaces create walk/ns --bundles 2
namespaces list walk
namespaces policies walk/ns
namespaces bundles walk/ns
namespaces topics walk/ns
topics create walk/ns/t
topics create walk/ns/wide --partitions 2
topics update-partitions walk/ns/wide 3
topics partitions walk/ns/wide
topics create topic://walk/ns/s --segments 2 --property team=blue
topics create non-persistent://walk/ns/fleeting
topics stats non-persistent://walk/ns/fleeting
topics list walk/ns
topics list walk/ns --property team=blue
topics properties walk/ns/t
topics properties topic://walk/ns/s
subscriptions create walk/ns/t sub --start earliest
subscriptions create walk/ns/wide sub
subscriptions create topic://walk/ns/s sub --start earliest --type queue
PRODUCE walk/ns/t -m one -m two -m three --no-batching
PRODUCE walk/ns/wide -m one
PRODUCE topic://walk/ns/s -m one -k a
subscriptions list walk/ns/t
subscriptions list topic://walk/ns/s
subscriptions stats walk/ns/t sub
subscriptions stats walk/ns/t
subscriptions stats topic://walk/ns/s
subscriptions analyze-backlog walk/ns/t sub
subscriptions stats topic://walk/ns/s sub
subscriptions peek walk/ns/t sub -n 2
subscriptions skip walk/ns/t sub 1
subscriptions expire walk/ns/t sub 1h
subscriptions reset walk/ns/t sub earliest
subscriptions reset walk/ns/t sub 2026-01-31T15:00
subscriptions reset walk/ns/wide sub latest
subscriptions reset topic://walk/ns/s sub 2026-01-31T15:00
subscriptions skip-all walk/ns/t sub
subscriptions skip-all topic://walk/ns/s sub
subscriptions properties walk/ns/t sub
topics stats walk/ns/t
topics stats walk/ns/wide
topics stats topic://walk/ns/s
topics internal-stats walk/ns/t
topics internal-stats walk/ns/wide
topics subscriptions walk/ns/t
topics subscriptions topic://walk/ns/s
topics last-message-id walk/ns/t
topics find walk/ns/t 2026-01-31T15:00
topics peek walk/ns/t -n 2 --start earliest
topics grant-permission walk/ns/t joe --actions produce,consume
topics permissions walk/ns/t
topics revoke-permission walk/ns/t joe
topics compact walk/ns/t
topics compaction-status walk/ns/t
writes list
HIDE walk/ns/t nightly 7
writes list --topic walk/ns/t
writes drop nightly 7
topics truncate walk/ns/t
namespaces grant-permission walk/ns joe --actions produce
namespaces revoke-permission walk/ns joe
topics split topic://walk/ns/s 0
topics merge topic://walk/ns/s 2 3
topics rebucket topic://walk/ns/s 4 8
topics explain topic://walk/ns/s
topics policy set topic://walk/ns/s --max-segments 8
topics policy get topic://walk/ns/s
topics policy remove topic://walk/ns/s
topics unload walk/ns/t
topics skip-damage walk/ns/t
stats walk/ns
stats walk/ns --sort name --top 1
schemas upload walk/ns/t --type avro --file {}/one.avsc
schemas get walk/ns/t
schemas get walk/ns/t --version 0
schemas versions walk/ns/t
schemas compatibility walk/ns/t --file {}/whole.json
schemas delete walk/ns/t
namespaces permissions walk/ns
namespaces clear-backlog walk/ns
namespaces clear-backlog walk/ns -s sub
namespaces unload walk/ns
namespaces unload walk/ns --bundle 0x00000000_0x80000000
namespaces split-bundle walk/ns -b 0x00000000_0x80000000
bundles list walk/ns
bundles explain walk/ns 0x00000000_0x40000000
bundles unload walk/ns 0x00000000_0x40000000
bundles split walk/ns 0x00000000_0x40000000
bundles split walk/ns 0x00000000_0x20000000 --at 0x08000000,0x10000000
bundles transfer walk/ns 0x20000000_0x40000000 BROKER
topics unload walk/ns/t --dest BROKER
subscriptions delete walk/ns/t sub
topics terminate walk/ns/t
topics terminate walk/ns/wide
topics create walk/ns/old
topics migrate walk/ns/old
topics delete walk/ns/t
topics delete walk/ns/wide --force
topics delete topic://walk/ns/s --force
namespaces delete walk/ns --force
tenants delete walk --force
config show --config {}/broker.conf
config show maxMessageSize dataDir
"""

# What only brokers with the load balancer take.
BALANCED_STORY = """
isolation-policies set standalone fast --namespaces acme/.* --primary 127.0.0.1 --usage-threshold 80
isolation-policies list standalone
isolation-policies get standalone fast
isolation-policies brokers standalone
isolation-policies broker standalone BROKER
isolation-policies delete standalone fast
tenants create acme
namespaces create acme/logs
namespaces set-anti-affinity-group acme/logs pair
namespaces get-anti-affinity-group acme/logs
namespaces get-anti-affinity-namespaces pair --tenant acme --cluster standalone
namespaces delete-anti-affinity-group acme/logs
namespaces delete acme/logs
tenants delete acme
clusters create-failure-domain standalone rack-1 --brokers 127.0.0.1:8080
clusters update-failure-domain standalone rack-1 --brokers 127.0.0.1:8080,127.0.0.2:8080
clusters list-failure-domains standalone
clusters get-failure-domain standalone rack-1
clusters delete-failure-domain standalone rack-1
"""

# Each with what it is set to.
POLICIES = {
    "retention": "--time 2h --size 100M",
    "message-ttl": "1d",
    "backlog-quota": "--limit 10G --policy producer_exception",
    "deduplication": "on",
    "schema-compatibility-strategy": "backward",
    "schema-validation-enforced": "on",
    "is-allow-auto-update-schema": "off",
    "auto-topic-creation": "on --partitions 2",
    "compaction-threshold": "100M",
    "subscription-expiration-time": "10",
    "max-producers-per-topic": "5",
    "max-consumers-per-topic": "5",
    "max-consumers-per-subscription": "5",
    "max-subscriptions-per-topic": "5",
    "max-topics-per-namespace": "5",
    "max-unacked-messages-per-consumer": "5",
    "max-unacked-messages-per-subscription": "5",
    "publish-rate": "--messages 1000 --bytes 10M",
    "dispatch-rate": "--messages 1000",
    "subscription-dispatch-rate": "--bytes 1M",
    "delayed-delivery": "off",
    "auto-subscription-creation": "off",
    "encryption-required": "off",
    "subscription-types-enabled": "Shared,Exclusive",
    "inactive-topic-policies": "--after 7d",
}
VERBS = ("set", "get", "remove")

# These go on until they are ended.
ENDLESS = {"topics watch"}


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'
    (tmp_path / "one.avsc").write_text(record)
    (tmp_path / "whole.json").write_text(json.dumps({"type": "AVRO", "schema": record, "properties": {}}))
    (tmp_path / "broker.conf").write_text("maxMessageSize=4096\n")
    (tmp_path / "secret.key").write_bytes(bytes(range(32)))
    (tmp_path / "token").write_text(jwt.encode({"sub": "ann"}, bytes(range(32)), "HS256"))
    return tmp_path


def hide(broker: BrokerProcess, topic: str, write: str, batch: str) -> int:
    """Writes what nobody decides."""
    attempt = Write(write, int(batch), uuid4())
    with (
        blocking.connect(broker.service_url) as client,
        client.producer(f"persistent://{topic}", write=attempt) as producer,
    ):
        producer.send(b"hidden")
    return 0


def told(broker: BrokerProcess, folder: Path, words: list[str], *more: str) -> int:
    words = [word.replace("{}", str(folder)) for word in words]
    words = [broker.admin_url.partition("://")[2] if word == "BROKER" else word for word in words]
    if words[0] == "PRODUCE":
        return main(["produce", *words[1:], "-q", "--service-url", broker.service_url])
    if words[0] == "HIDE":
        return hide(broker, *words[1:])
    reach = [] if words[0] in ("config", "tokens") else ["--admin-url", broker.admin_url]
    return main([*words, *reach, *more])


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_whole_life_is_told(broker: BrokerProcess, folder: Path, capsys: Capture, more: list[str]) -> None:
    for words in lines(STORY):
        code = told(broker, folder, words, *([] if words[0].isupper() else more))
        captured = capsys.readouterr()
        assert code == 0, (words, captured.err)
        if more and not words[0].isupper():
            json.loads(captured.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tenants create says", "says: created"),
        ("namespaces create says/ns", "says/ns: created"),
        ("namespaces set-retention says/ns --time 1h --size 1M", "says/ns: retention set"),
        ("namespaces remove-retention says/ns", "says/ns: retention removed"),
        ("topics create says/ns/t", "persistent://says/ns/t: created"),
        ("topics create says/ns/p --partitions 2", "persistent://says/ns/p: created with 2 partitions"),
        ("topics create topic://says/ns/s --segments 2", "topic://says/ns/s: created with 2 segments"),
        ("topic-policies set-message-ttl topic://says/ns/s 1h", "topic://says/ns/s: message-ttl set"),
        (
            "topic-policies set-publish-rate topic://says/ns/s --messages 9",
            "topic://says/ns/s: publish-rate set, for each of its segments",
        ),
        ("topics policy set topic://says/ns/s --max-segments 4", "topic://says/ns/s: policy set"),
        ("subscriptions create says/ns/t sub", "persistent://says/ns/t, subscription sub: created"),
        ("subscriptions delete says/ns/t sub", "persistent://says/ns/t, subscription sub: deleted"),
        ("topics truncate topic://says/ns/s", "topic://says/ns/s: emptied"),
        ("topics delete topic://says/ns/s", "topic://says/ns/s: deleted"),
        ("namespaces delete says/ns --force", "says/ns: deleted"),
        ("tenants delete says", "says: deleted"),
    ],
)
def test_a_change_says_what_it_did(
    broker: BrokerProcess, folder: Path, capsys: Capture, words: str, said: str
) -> None:
    assert told(broker, folder, words.split()) == 0
    assert capsys.readouterr() == (f"{said}\n", "")


def test_a_schema_that_does_not_fit_is_told_by_the_exit_code_and_the_reason(
    broker: BrokerProcess, folder: Path, capsys: Capture
) -> None:
    other = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}'
    (folder / "other.avsc").write_text(other)
    one, two = (["--type", "avro", "--file", f"{{}}/{name}.avsc"] for name in ("one", "other"))
    assert told(broker, folder, ["schemas", "compatibility", "fitting", *one]) == 0
    assert capsys.readouterr().out.startswith("compatible under ")
    assert told(broker, folder, ["schemas", "upload", "fitting", *one]) == 0
    capsys.readouterr()
    assert told(broker, folder, ["schemas", "compatibility", "fitting", *two]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("not compatible under FULL: ")
    assert len(shown) > len("not compatible under FULL: ") + 10
    assert told(broker, folder, ["schemas", "compatibility", "fitting", *two, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["compatibility"] is False


def test_brokers_with_the_balancer_take_what_decides_about_owners(folder: Path, capsys: Capture) -> None:
    broker = BrokerProcess({"loadManagerClassName": "balanced"}, brokers=2)
    try:
        broker.start()
        for more in ([], ["--json"]):
            for words in lines(BALANCED_STORY):
                assert told(broker, folder, words, *more) == 0, words
                captured = capsys.readouterr()
                assert captured.err == "", words
                if more:
                    json.loads(captured.out)
    finally:
        broker.discard()


def test_without_the_balancer_a_policy_about_owners_is_refused(
    broker: BrokerProcess, folder: Path, capsys: Capture
) -> None:
    words, *_ = lines(BALANCED_STORY)
    assert told(broker, folder, words) == 1
    assert "set it to balanced" in capsys.readouterr().err


def test_hidden_writes_are_listed_until_they_are_dropped(broker: BrokerProcess, capsys: Capture) -> None:
    def tell(*words: str) -> tuple[int, str]:
        code = main(["writes", *words, "--admin-url", broker.admin_url])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    topic, attempt = "persistent://public/default/hidden-cli", uuid4()
    with blocking.connect(broker.service_url) as client:
        with client.producer(topic, write=Write("a job/1", 3, attempt)) as producer:
            producer.send(b"hidden")
            ((heading, row),) = [tell("list", "--topic", "hidden-cli")[1].splitlines()]
            assert heading.split() == [
                "TOPIC",
                "WRITE",
                "BATCH",
                "ATTEMPTS",
                "ENTRIES",
                "PRODUCERS",
                "HELD",
                "s",
            ]
            assert row.split()[:-1] == [topic, "a", "job/1", "3", "1", "1", "1"]
            code, said = tell("drop", "a job/1", "3")
            assert code == 1
            assert "is being written" in said
        (found,) = json.loads(tell("list", "--topic", "hidden-cli", "--json")[1])
        assert found["attempts"] == [attempt.hex]
        assert "is not open" in tell("drop", "a job/1", "3", "--attempt", uuid4().hex)[1]
        assert tell("drop", "a job/1", "3", "--attempt", attempt.hex) == (
            0,
            "dropped: 1 attempts at the batch will never show\n",
        )
        reader = client.checkpoint_consumer(topic, start="earliest")
        with client.producer(topic) as producer:
            producer.send(b"after")
        assert reader.receive(timeout_s=20).payload == b"after"
    assert tell("list", "--topic", "hidden-cli")[1] == "no hidden writes are open: no readers wait\n"
    code, said = tell("drop", "a job/1", "3")
    assert code == 1
    assert "nothing of batch 3 of 'a job/1' is open" in said


def policy_lines() -> list[list[str]]:
    """Every policy of a namespace and of a topic: set, looked at, and removed."""
    found: list[list[str]] = []
    for policy in cli_policies.POLICIES:
        for command, target in (("namespaces", "ops/policies"), ("topic-policies", "ops/policies/t")):
            if policy.path if command == "namespaces" else policy.topic_path:
                for verb in VERBS:
                    value = POLICIES[policy.word].split() if verb == "set" else []
                    found.append([command, f"{verb}-{policy.word}", target, *value])
    return [*found, ["topic-policies", "get-retention", "ops/policies/t", "--applied"]]


def test_policies_are_set_shown_and_removed(broker: BrokerProcess, folder: Path, capsys: Capture) -> None:
    for words in lines("tenants create ops\nnamespaces create ops/policies\ntopics create ops/policies/t"):
        assert told(broker, folder, words) == 0
    capsys.readouterr()
    for words in policy_lines():
        assert told(broker, folder, words, "--json") == 0, words
        found = json.loads(capsys.readouterr().out)
        if words[1].startswith("get-") and "--applied" not in words:
            assert found is not None, words
    assert told(broker, folder, ["topic-policies", "remove-all", "ops/policies/t", "--json"]) == 0
    capsys.readouterr()
    assert told(broker, folder, ["topic-policies", "get-retention", "ops/policies/t"]) == 0
    assert "not set" in capsys.readouterr().out
    assert told(broker, folder, ["tenants", "delete", "ops", "--force"]) == 0


def leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Every command that runs, with its options."""
    words = tree(parser)
    for path, found in words.items():
        if path and not any(other.startswith(f"{path} ") for other in words):
            yield path, [word.text for word in found]


def test_every_command_takes_json_and_is_part_of_the_story() -> None:
    walked = {" ".join(words) for words in [*lines(STORY), *lines(BALANCED_STORY), *policy_lines()]}
    walked |= {"topic-policies remove-all", "topics message"}
    # Those want ZooKeeper: `tests/faults/test_zookeeper_cluster.py`.
    walked |= {"cluster init", "cluster status"}
    # Those read a log whose broker has stopped: `tests/unit/cli/broker/test_log.py`.
    walked |= {"log gc", "log verify", "log tier"}
    # Those want a place for tables: `tests/tables/test_commands.py`.
    walked |= {
        f"tables {action}" for action in ("enable", "disable", "list", "stats", "compact", "verify", "run")
    }
    for path, options in leaves(build_parser(is_whole=True)):
        if path.split()[0] in ADMIN and path not in ENDLESS and path != "completion":
            assert "--json" in options, path
            assert any(one == path or one.startswith(f"{path} ") for one in walked), path


def test_the_commands_of_the_page_do_what_it_says(
    broker: BrokerProcess, folder: Path, capsys: Capture
) -> None:
    page = (Path(__file__).parents[4] / "docs" / "command-line.md").read_text()
    block = page.partition("## Administering a broker")[2].partition("```sh\n")[2].partition("```")[0]
    assert block.count("\n") > 10
    for line in block.splitlines():
        words = line.partition(" > ")[0].split()
        assert words.pop(0) == "anabranch"
        assert (main(words) if words[0] == "completion" else told(broker, folder, words)) == 0, line
    assert told(broker, folder, ["tenants", "delete", "acme", "--force"]) == 0


def test_options_of_a_group_may_stand_before_its_action_or_behind(
    broker: BrokerProcess, capsys: Capture
) -> None:
    assert main(["tenants", "--json", "--admin-url", broker.admin_url, "list"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert (
        main(["tenants", "--admin-url", "http://nowhere.invalid", "list", "--admin-url", broker.admin_url])
        == 0
    )
    assert capsys.readouterr().out.splitlines() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tenants", "list", "--admin-url", "http://127.0.0.1:1"], "`anabranch standalone` starts one"),
        (["stats", "--admin-url", "http://127.0.0.1:1"], "`anabranch standalone` starts one"),
        (["namespaces", "policies", "a/b/c"], "cluster"),
        (["namespaces", "set-retention", "a/b", "--time", "1h"], "--size"),
        (["namespaces", "set-backlog-quota", "a/b"], "--limit"),
        (["schemas", "upload", "t"], "--type"),
        (["schemas", "upload", "t", "--type", "avro", "--file", "/nowhere"], "cannot read"),
        (["subscriptions", "create", "topic://a/b/c", "s", "--start", "1:2"], "in each segment"),
        (["subscriptions", "properties", "topic://a/b/c", "s"], "classic"),
        (["subscriptions", "create", "persistent://a/b/c", "s", "--start", "soon"], "LEDGER:ENTRY"),
        (["subscriptions", "reset", "persistent://a/b/c", "s", "soon"], "LEDGER:ENTRY"),
        (["stats", "--watch", "--interval", "0"], "--interval"),
        (["config", "show", "maxMesageSize"], "did you mean maxMessageSize?"),
        (["namespaces", "unload", "public/default", "-d", "localhost:8080"], "needs --bundle"),
        # A variable that is not set: the backlogs of all other subscriptions must stay.
        (["namespaces", "clear-backlog", "public/default", "-s", ""], "'' is no name"),
        (["subscriptions", "delete", "persistent://a/b/c", ".."], "'..' is no name"),
        (["subscriptions", "skip-all", "persistent://a/b/c", ""], "'' is no name"),
        (["config", "show", "--set", "logLevel=loud"], "debug, info, warning, error"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("anabranch: ")
    assert message in error
    assert error.count("\n") == 1


def test_the_protocols_port_is_told_from_that_of_rest(broker: BrokerProcess, capsys: Capture) -> None:
    assert main(["tenants", "list", "--admin-url", broker.service_url.replace("pulsar", "http")]) == 1
    assert "8080" in capsys.readouterr().err


def test_config_shows_each_value_and_its_origin(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CLUSTER_NAME", "east")
    file = str(folder / "broker.conf")
    assert (
        main(["config", "show", "--json", "--config", file, "--port", "7000", "--set", "tokenSecretKey=abc"])
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["maxMessageSize"] == {"value": 4096, "from": "file", "where": f"{file}:1"}
    assert shown["clusterName"] == {
        "value": "east",
        "from": "environment",
        "where": "$ANABRANCH_CLUSTER_NAME",
    }
    assert shown["brokerServicePort"] == {"value": 7000, "from": "flag", "where": "--port"}
    assert shown["webServicePort"] == {"value": 8080, "from": "default", "where": ""}
    assert shown["tokenSecretKey"]["value"] == "*****"


def test_config_shows_the_defaults_of_several_brokers(capsys: Capture) -> None:
    asked = ["config", "show", "defaultNumberOfNamespaceBundles"]
    for options, value, origin in (
        ([], "4", "default"),
        (["--brokers", "3"], "64", "the default for 3 brokers"),
        (["--brokers", "3", "--set", "defaultNumberOfNamespaceBundles=4"], "4", "--set"),
    ):
        assert main([*asked, *options]) == 0
        name, where, shown = re.split(r"\s{2,}", capsys.readouterr().out.splitlines()[1])
        assert (name, shown) == (asked[-1], value)
        assert where.startswith(origin)


def test_config_shows_what_differs_from_its_default(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("maxMessageSize=5242880\nclusterName=east\n")
    assert main(["config", "show", "--changed", "--config", str(file)]) == 0
    assert [line.split()[::2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["clusterName", "east"]
    ]


def test_config_lists_what_means_nothing_here(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("webSocketServiceEnabled=true\nzookeeperServers=a:2181\nmaxMesageSize=1\n")
    assert main(["config", "show", "--unused", "--config", str(file)]) == 0
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()[1:]] == [
        ["zookeeperServers", "yes", f"{file}:2"],
        ["webSocketServiceEnabled", "no", f"{file}:1"],
    ]
    assert "did you mean maxMessageSize?" in captured.err
