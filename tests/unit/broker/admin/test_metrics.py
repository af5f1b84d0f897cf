"""`/metrics`: a page that Prometheus reads, with the names that are declared, and boards that ask for nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from anabranch.broker.config.config import BrokerConfig
from anabranch.broker.observe.metric_names import METRICS, WRITE_LATENCIES
from anabranch.broker.observe.metrics import WRITE_BOUNDS_S
from anabranch.metadata.memory import MemoryMetadata
from anabranch.model.hidden_writes import WriteBatch
from anabranch.model.histogram import LATENCIES
from anabranch.model.names import TopicName
from anabranch.model.position import LedgerId
from harness.simple_client import Hidden
from unit.broker.admin.conftest import NOW_MS, Rest, serving

DEPLOY = Path(__file__).parents[4] / "deploy"
NAME = TopicName.parse("persistent://public/default/t")
PARTS = ("_bucket", "_sum", "_count")


async def page(rest: Rest) -> dict[str, Any]:
    """Families by their name; the reader of the format refuses what is not of it."""
    text = (await rest.call("GET", "/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(text)}


def declared(name: str) -> str:
    """The reader takes the end off the names of counters."""
    return name if name in METRICS else f"{name}_total"


async def test_every_metric_is_declared_and_has_the_kind_it_says() -> None:
    config = BrokerConfig(
        expose_producer_level_metrics_in_prometheus=True, expose_consumer_level_metrics_in_prometheus=True
    )
    async with serving(MemoryMetadata(clock_ms=lambda: NOW_MS), config) as rest:
        producer = await rest.client.producer("t")
        await (await producer.send(b"x"))
        await rest.client.consumer("t", "s")
        await rest.client.consumer("non-persistent://public/default/t", "s")
        # Compactions are told of where there were any.
        await rest.call("PUT", "/admin/v2/persistent/public/default/t/compaction", 204)
        await rest.broker.loaded()[NAME].compaction.wait()
        # And so are hidden writes.
        await rest.client.producer("t", hidden=Hidden("job", 0, "a" * 32))
        found = await page(rest)
    assert [name for name in found if declared(name) not in METRICS] == []
    for name, family in found.items():
        assert family.type == METRICS[declared(name)].kind, name
        assert family.documentation == METRICS[declared(name)].help
    # Logs of files are looked at with a process of its own, scalable topics show once they were judged, segments while
    # consumers share them, proofs once somebody has shown one, and the balancer and the table writer have tests of
    # their own.
    elsewhere = re.compile(
        "anabranch_(log|cache|bundle|balancer|table)_|.*_scalable_|pulsar_(authentication|lb|sunit)_"
    )
    missing = set(METRICS) - {declared(name) for name in found}
    assert {name for name in missing if not elsewhere.match(name)} == set()


async def test_namespaces_stand_in_for_topics_where_those_are_not_told() -> None:
    config = BrokerConfig(expose_topic_level_metrics_in_prometheus=False)
    async with serving(MemoryMetadata(clock_ms=lambda: NOW_MS), config) as rest:
        await rest.publish("a", b"12345")
        await rest.publish("b", b"12345")
        found = await page(rest)
    (sample,) = found["pulsar_in_messages"].samples
    assert sample.labels == {"cluster": "standalone", "namespace": "public/default"}
    assert sample.value == 2
    assert "pulsar_subscription_back_log" not in found


async def test_names_with_quotes_are_read_back(rest: Rest) -> None:
    await rest.publish('odd"\\name', b"x")
    found = await page(rest)
    assert 'persistent://public/default/odd"\\name' in {
        sample.labels["topic"] for sample in found["pulsar_in_messages"].samples
    }


async def test_topics_that_keep_nothing_are_counted_too(rest: Rest) -> None:
    topic = "non-persistent://public/default/t"
    await rest.client.consumer(topic, "s")
    await rest.publish(topic, b"x")
    found = await page(rest)
    (sample,) = found["pulsar_in_messages"].samples
    assert (sample.labels["topic"], sample.value) == (topic, 1)
    assert [one.value for one in found["pulsar_subscription_msg_drop_rate"].samples] == [0]
    assert found["pulsar_broker_topics_count"].samples[0].value == 1


# -- what is deployed beside it


def used(text: str) -> set[str]:
    """Names of metrics in an expression, without the ends of histograms."""
    names = set(re.findall(r"\b(?:pulsar|anabranch|process)_\w+", text))
    return {
        next((name.removesuffix(end) for end in PARTS if name.removesuffix(end) in METRICS), name)
        for name in names
    }


def expressions(board: Path) -> list[str]:
    found = json.loads(board.read_text())
    panels = [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
    return panels + [one["definition"] for one in found["templating"]["list"] if "definition" in one]


@pytest.mark.parametrize("board", sorted((DEPLOY / "grafana").glob("*.json")), ids=lambda path: path.stem)
def test_boards_ask_for_metrics_that_exist(board: Path) -> None:
    asked = {name for text in expressions(board) for name in used(text)}
    assert asked
    assert asked - set(METRICS) == set()


def unsummed(text: str) -> set[str]:
    """The metrics in an expression that stand in no sum or count."""
    found, around = set(), [""]
    for word in re.finditer(r"[A-Za-z_]\w*(?:\s+by\s*\([^)]*\))?|[()]|\{[^}]*\}|\[[^]]*\]", text):
        told = word[0]
        if told == "(":
            before = text[: word.start()].rstrip()
            name = re.search(r"(\w+)(?:\s+by\s*\([^)]*\))?$", before)
            around.append(name[1] if name else "")
        elif told == ")":
            around.pop()
        elif told in METRICS and not {"sum", "count"} & set(around):
            found.add(told)
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("topk(3, pulsar_rate_in)", {"pulsar_rate_in"}),
        ("topk(3, sum by (topic) (pulsar_rate_in{a='b'}))", set()),
    ],
)
def test_sums_are_found(text: str, found: set[str]) -> None:
    assert unsummed(text) == found


def test_boards_and_alerts_of_topics_sum_over_segments() -> None:
    """A split ends one segment's series and begins two: a line on a board must be of the topic."""
    texts = expressions(DEPLOY / "grafana" / "topics.json")
    texts += re.findall(r"expr: (.*pulsar_subscription.*)", (DEPLOY / "alerts.yml").read_text())
    of_segments = {name for name in METRICS if name.startswith(("pulsar_", "anabranch_scalable_segment"))}
    of_segments -= {name for name in METRICS if name.startswith("pulsar_scalable_topic_")}
    told = [text for text in texts if not text.startswith("label_values")]
    assert len(told) > 20
    assert [text for text in told if unsummed(text) & of_segments] == []


async def test_a_scalable_topic_is_one_name_with_a_segment_as_a_label_of_its_own(rest: Rest) -> None:
    await rest.call("PUT", "/admin/v2/scalable/public/default/s?numInitialSegments=2")
    for segment in ("0000-7fff-0", "8000-ffff-1"):
        await rest.client.producer(f"segment://public/default/s/{segment}", name="same")
    found = await page(rest)
    samples = found["pulsar_rate_in"].samples
    assert {sample.labels["topic"] for sample in samples} == {"topic://public/default/s"}
    assert sorted(sample.labels["segment"] for sample in samples) == ["0000-7fff-0", "8000-ffff-1"]
    assert sum(sample.value for sample in found["pulsar_producers_count"].samples) == 2
    (clients,) = found["anabranch_scalable_topic_producers"].samples
    assert (clients.labels["topic"], clients.value) == ("topic://public/default/s", 1)


@pytest.mark.parametrize("board", sorted((DEPLOY / "grafana").glob("*.json")), ids=lambda path: path.stem)
def test_panels_have_ids_of_their_own_and_do_not_overlap(board: Path) -> None:
    panels = json.loads(board.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_of_a_topic_or_a_log_is_on_a_board_or_said_not_to_be() -> None:
    shown = {
        name
        for board in (DEPLOY / "grafana").glob("*.json")
        for text in expressions(board)
        for name in used(text)
    }
    told = ("anabranch_log_", "anabranch_cache_", "anabranch_bundle_", "anabranch_balancer_", "pulsar_lb_")
    left_out = {name for name in METRICS if name.startswith((*told, "pulsar_sunit_"))} - shown
    # What was read is what the other brokers wrote.
    assert left_out == {"pulsar_sunit_state_chn_subscribe_ops_total"}


def test_rates_are_over_what_grafana_says_is_enough() -> None:
    """A fixed minute is empty where somebody scrapes once a minute."""
    for board in (DEPLOY / "grafana").glob("*.json"):
        windows = {one for text in expressions(board) for one in re.findall(r"\[([^\]]+)\]", text)}
        assert windows <= {"$__rate_interval", "5m"}, board


def test_the_board_of_brokers_shows_each_of_several_and_all_of_them() -> None:
    """Metrics have no label of their own for the broker: Prometheus adds the address that it scrapes."""
    board = DEPLOY / "grafana" / "broker.json"
    found = json.loads(board.read_text())
    chosen = {one["name"]: one for one in found["templating"]["list"]}["broker"]
    assert chosen["definition"].endswith(", instance)")
    assert (chosen["includeAll"], chosen["multi"]) == (True, True)
    exprs = [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
    selectors = [one for text in exprs for one in re.findall(r"{[^}]*}", text)]
    assert selectors
    assert [one for one in selectors if 'instance=~"$broker"' not in one] == []
    # Each broker of a shared folder tells of the whole folder.
    assert [text for text in exprs if "sum(anabranch_log_disk_" in text] == []


def test_the_bounds_of_pulsars_write_latencies_are_bounds_of_the_log() -> None:
    assert set(WRITE_BOUNDS_S) <= set(LATENCIES)
    told = [float(name.partition("_le_")[2].replace("_", ".")) for name in WRITE_LATENCIES[:-1]]
    assert told == [bound * 1000 for bound in WRITE_BOUNDS_S]


def test_alerts_ask_for_metrics_that_exist() -> None:
    text = (DEPLOY / "alerts.yml").read_text()
    asked = {name for line in text.splitlines() if "expr:" in line for name in used(line)}
    assert asked
    assert asked - set(METRICS) == set()


# -- what policies do


T = "/admin/v2/persistent/public/default/t"


async def one(rest: Rest, name: str, **labels: str) -> float:
    """The only sample of that name with those labels."""
    (value,) = [
        sample.value
        for family in (await page(rest)).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(value)


async def test_backlog_quotas_and_what_they_take_are_told(rest: Rest) -> None:
    await rest.call("PUT", f"{T}/subscription/s", 204)
    assert await one(rest, "pulsar_storage_backlog_quota_limit") == -1
    assert await one(rest, "pulsar_storage_backlog_age_seconds") == -1
    quota = {"limitSize": 500, "policy": "consumer_backlog_eviction"}
    await rest.call("POST", f"{T}/backlogQuota", 204, json=quota)
    timed = {"limitTime": 3600, "policy": "producer_exception"}
    await rest.call("POST", f"{T}/backlogQuota?backlogQuotaType=message_age", 204, json=timed)
    assert await one(rest, "pulsar_storage_backlog_quota_limit") == 500
    assert await one(rest, "pulsar_storage_backlog_quota_limit_time") == 3600
    await rest.publish("t", *(b"x" * 100 for _ in range(9)))
    evictions = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    for checks in (1, 2):
        await rest.call("GET", "/admin/v2/brokers/backlog-quota-check", 204)
        # The second time it is below its quota.
        assert await one(rest, evictions, quota_type="size", topic=str(NAME)) == 1, checks
    assert await one(rest, evictions, quota_type="time") == 0
    assert await one(rest, f"pulsar_broker_{evictions.removeprefix('pulsar_')}", quota_type="size") == 1
    assert await one(rest, "pulsar_storage_backlog_age_seconds") >= 0
    assert await one(rest, "pulsar_storage_backlog_quota_check_duration_seconds_count") == 2


@pytest.mark.parametrize("per_topic", [True, False])
async def test_how_long_hidden_writes_have_held_readers_is_told(per_topic: bool) -> None:
    held, longest = "anabranch_readers_held_seconds", "anabranch_broker_readers_held_max_seconds"
    now = [NOW_MS]
    config = BrokerConfig(
        expose_topic_level_metrics_in_prometheus=per_topic, hidden_writes_check_interval_seconds=1e6
    )
    async with serving(MemoryMetadata(lambda: now[0]), config, now_ms=lambda: now[0]) as rest:
        await rest.publish("t", b"seen")
        assert held not in await page(rest)
        assert await one(rest, longest) == 0
        producer = await rest.client.producer(str(NAME), hidden=Hidden("job", 0, "a" * 32))
        now[0] += 1000
        assert await one(rest, longest) == 0, "it has written nothing"
        await (await producer.send(b"hidden"))
        now[0] += 2500
        await (await producer.send(b"hidden too"))
        labels = {"topic": str(NAME)} if per_topic else {"namespace": "public/default"}
        assert await one(rest, held, **labels) == 2.5
        assert await one(rest, longest) == 2.5
        await rest.broker.write_records.decide(WriteBatch("job", 0), ["a" * 32], [])
        await rest.broker.loaded()[NAME].hidden.look()
        assert await one(rest, longest) == 0


async def test_compactions_are_told_of_once_there_was_one(rest: Rest) -> None:
    await rest.publish("t", b"1", b"2", b"3", key="k")
    assert "pulsar_compaction_succeed_count" not in await page(rest)
    for _ in range(2):
        await rest.call("PUT", f"{T}/compaction", 204)
        await rest.broker.loaded()[NAME].compaction.wait()
    assert await one(rest, "pulsar_compaction_succeed_count", topic=str(NAME)) == 2
    assert await one(rest, "pulsar_compaction_failed_count") == 0
    assert await one(rest, "pulsar_compaction_removed_event_count") == 2
    assert await one(rest, "pulsar_compaction_compacted_entries_count") == 1
    assert await one(rest, "pulsar_compaction_compacted_entries_size") > 0
    topic = rest.broker.loaded()[NAME]
    topic.update_rates(1.0)
    assert await one(rest, "pulsar_compaction_read_throughput") > await one(
        rest, "pulsar_compaction_write_throughput"
    )
    topic.update_rates(1.0)
    assert await one(rest, "pulsar_compaction_read_throughput") == 0
    # The second one had nothing to do.
    stats = (await rest.get(f"{T}/stats"))["compaction"]
    assert stats["lastCompactionRemovedEventCount"] == 0
    assert stats["lastCompactionSucceedTimestamp"] == NOW_MS


async def test_a_compaction_that_fails_is_counted(rest: Rest) -> None:
    await rest.publish("t", b"1", key="k")
    topic = rest.broker.loaded()[NAME]
    # Nothing of the log can be read any more.
    rest.broker.log.delete(LedgerId(topic.log.ledger), topic.log.incarnation)
    await rest.call("PUT", f"{T}/compaction", 204)
    await topic.compaction.wait()
    assert await one(rest, "pulsar_compaction_failed_count") == 1
    assert await one(rest, "pulsar_compaction_succeed_count") == 0
