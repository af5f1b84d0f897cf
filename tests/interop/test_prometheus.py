"""The Grafana boards and the alerts, asked of a real Prometheus that scrapes two real brokers.

There is no Grafana here: what each panel would ask is asked as Grafana asks it, with its variables filled in, and each
line must have the labels that its legend names. Skipped where Prometheus is missing (Debian's package `prometheus`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from soak.ports import free_port

from anabranch import blocking
from harness.broker_process import BrokerProcess, until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed"),
]

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
SETTINGS = {
    "loadManagerClassName": "balanced",
    "scalableTopicLoadReportInterval": "1s",
    "scalableTopicAutoScaleInterval": "1s",
    "scalableTopicSplitCooldown": "1s",
    "scalableTopicSplitMsgRateInThreshold": 50,
    "scalableTopicMergeMsgRateInThreshold": 10,
    "loadBalancerReportUpdateMinIntervalMillis": 100,
}
# What a panel's expressions stand on, where two healthy brokers on files have nothing to show.
SHOWN_ELSEWHERE = {
    "anabranch_log_object_": "the log is in an object store",
    "anabranch_log_tier_": "old files of the log are moved to an object store",
    "pulsar_lb_unload_broker_breakdown_": "a broker was relieved",
    "pulsar_lb_bundles_split_breakdown_": "a bundle was split for its load",
    "> 0": "something is wrong",
}


@dataclass(frozen=True)
class Query:
    """What a panel asks, and the labels that its legend names."""

    panel: str
    expression: str
    labels: tuple[str, ...]

    @property
    def filled(self) -> str:
        """With the variables as a board has them at first: all of each."""
        text = self.expression.replace("$__rate_interval", "10s")
        return re.sub(r"\$\w+", ".*", text)

    @property
    def may_be_empty(self) -> bool:
        return any(name in self.expression for name in SHOWN_ELSEWHERE)


def queries(board: Path) -> list[Query]:
    return [
        Query(panel["title"], target["expr"], tuple(re.findall(r"{{\s*(\w+)\s*}}", target["legendFormat"])))
        for panel in json.loads(board.read_text())["panels"]
        for target in panel.get("targets", [])
    ]


class Prometheus:
    """A server that scrapes each broker at its own port, every second. A context manager."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        text = (DEPLOY / "prometheus.yml").read_text()
        for shipped, here in (
            ("scrape_interval: 15s", "scrape_interval: 1s"),
            ("evaluation_interval: 15s", "evaluation_interval: 1s"),
            ("scrape_timeout: 10s", "scrape_timeout: 1s"),
            ('"localhost:8080"', ", ".join(f'"{web}"' for web in broker.get("brokers"))),
            ("- alerts.yml", f"- {DEPLOY / 'alerts.yml'}"),
        ):
            assert shipped in text
            text = text.replace(shipped, here)
        self.config = folder / "prometheus.yml"
        self.config.write_text(text)
        self._folder = folder

    def __enter__(self) -> Prometheus:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self.config}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()

    def get(self, path: str, **query: str) -> Any:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}") as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise AssertionError(f"{query}: {refused.read().decode()}") from None

    def series(self, expression: str) -> list[dict[str, str]]:
        """The labels of each line."""
        return [one["metric"] for one in self.get("query", query=expression)["result"]]

    def is_scraping(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/-/ready").close()
        except urllib.error.URLError:
            return False
        targets = self.get("targets")["activeTargets"]
        return len(targets) == 2 and all(one["health"] == "up" for one in targets)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Two with a topic of each kind, subscriptions that are behind, and a topic that has split by itself."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS, brokers=2) as started:
        until(lambda: len(started.get("brokers")) == 2)
        started.put("persistent/public/default/orders/partitions", 2)
        started.put("scalable/public/default/clicks")
        with blocking.connect(started.url) as client:
            for name in ("persistent://public/default/orders", "topic://public/default/clicks"):
                with client.queue_consumer(name, "slow", start="earliest") as consumer:
                    _publish(client, name, 300)
                    consumer.ack(consumer.receive(timeout_s=30))

            def has_split() -> bool:
                _publish(client, "topic://public/default/clicks", 200)
                return len(started.get("scalable/public/default/clicks")["segments"]) > 1

            until(has_split, within_s=60, every_s=0.1)
        yield started


def _publish(client: blocking.Client, name: str, count: int) -> None:
    with client.producer(name) as producer:
        for number in range(count):
            producer.post(b"x", key=str(number))
        producer.flush()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, broker: BrokerProcess) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("prometheus"), broker) as started:
        until(started.is_scraping)
        # Rates need two samples.
        until(lambda: started.series("rate(process_cpu_seconds_total[10s])"))
        yield started


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_panel_of_a_board_is_answered_and_has_the_labels_of_its_legend(
    prometheus: Prometheus, board: Path
) -> None:
    found: dict[Query, list[dict[str, str]]] = {}

    def unanswered() -> list[str]:
        """A rate needs two scrapes with the series."""
        found.update({query: prometheus.series(query.filled) for query in queries(board)})
        return [
            f"{query.panel}: {query.filled}"
            for query, lines in found.items()
            if not lines and not query.may_be_empty
        ]

    with suppress(AssertionError):
        until(lambda: not unanswered(), every_s=1.0)
    assert unanswered() == []
    assert len(found) > 20
    unnamed = [
        f"{query.panel}: {label} in {line}"
        for query, lines in found.items()
        for line in lines
        for label in query.labels
        if label not in line
    ]
    assert unnamed == []


@pytest.mark.parametrize("board", BOARDS, ids=lambda path: path.stem)
def test_every_variable_of_a_board_has_something_to_choose(prometheus: Prometheus, board: Path) -> None:
    asked = [
        one["definition"]
        for one in json.loads(board.read_text())["templating"]["list"]
        if "definition" in one
    ]
    assert asked
    for text in asked:
        told = re.fullmatch(r"label_values\((.*), (\w+)\)", text)
        assert told is not None, text
        matched = re.sub(r"\$\w+", ".*", told[1])
        assert prometheus.get(f"label/{told[2]}/values", **{"match[]": matched}), text


def test_every_alert_is_evaluated_and_none_fires_on_healthy_brokers(prometheus: Prometheus) -> None:
    def rules() -> list[dict[str, Any]]:
        groups = prometheus.get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in rules()))
    told = rules()
    assert len(told) == len(re.findall(r"- alert:", (DEPLOY / "alerts.yml").read_text()))
    assert {rule["name"]: rule["lastError"] for rule in told if rule.get("lastError")} == {}
    assert {rule["health"] for rule in told} == {"ok"}
    assert [rule["name"] for rule in told if rule["state"] == "firing"] == []


def test_the_shipped_configuration_is_valid() -> None:
    checked = subprocess.run(
        ["promtool", "check", "config", "prometheus.yml"],
        cwd=DEPLOY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
