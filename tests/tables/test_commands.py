"""`anabranch tables` against a real broker: a topic is chosen, written, looked at, and left alone again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch import blocking
from anabranch.cli.main import main
from harness.broker_process import BrokerProcess

TOPIC = "topic://public/default/by-command"


def test_a_topic_is_kept_as_a_table_by_commands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tablesUrl": tmp_path / "tables", "tablesWriterEnabled": False}
    folder = tmp_path / "broker"
    folder.mkdir()
    with BrokerProcess(folder, settings, brokers=1) as broker:

        def told(action: str, *words: str) -> Any:
            where = ["--admin-url", f"http://127.0.0.1:{broker.http_port}", "--json"]
            assert main(["tables", action, *words, *where]) == 0, capsys.readouterr()
            return json.loads(capsys.readouterr().out)

        with blocking.connect(broker.url) as client, client.producer(TOPIC) as producer:
            for number in range(500):
                producer.post(b"%d" % number, key=f"key-{number % 7}")
            producer.flush()

        assert told("list") == []
        assert told("enable", TOPIC) == {"target": TOPIC, "mode": "raw"}
        where = ["--service-url", broker.url, "--admin-url", f"http://127.0.0.1:{broker.http_port}"]
        assert main(["tables", "run", "--once", *where]) == 0
        capsys.readouterr()
        (kept,) = told("list")
        assert (kept["topic"], kept["mode"], kept["rows"], kept["error"]) == (TOPIC, "raw", 500, "")
        assert TOPIC in json.dumps(told("stats", TOPIC))
        told("compact", TOPIC)
        told("verify", TOPIC)
        assert told("disable", TOPIC) == {"target": TOPIC, "mode": "off"}
        assert told("list") == []
