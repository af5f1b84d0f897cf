"""The table writer as a process beside a real broker: found by policy, killed again and again, seen from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from anabranch.tables.snapshot import TableSnapshot, open_snapshot
from anabranch.tables.verify import verify_table
from harness.broker_process import BrokerProcess, until
from spark.conftest import River
from tables.test_writing import values_of

# A writer that is started compiles kernels that are not compiled yet, at the lowest priority.
START_S = 240.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {"tablesUrl": str(tmp_path / "tables"), "tablesCommitSeconds": 0.3}
    folder = tmp_path / "broker"
    folder.mkdir()
    with BrokerProcess(folder, settings) as process:
        yield process


def writers(broker: BrokerProcess) -> list[int]:
    """The processes of the broker's table writer."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"anabranch.table_writer.child" in command and parent == broker.pid:
                found.append(int(entry.name))
    return found


def has_another(broker: BrokerProcess, former: int) -> bool:
    return writers(broker) not in ([], [former])


def report_of(broker: BrokerProcess, river: River) -> dict[str, Any]:
    told = broker.get("anabranch/tables")
    return next((one for one in told["reports"] if one["topic"] == river.topic), {})


def table_of(broker: BrokerProcess, river: River) -> TableSnapshot | None:
    folder = Path(str(broker.settings["tablesUrl"])) / "public/default" / river.topic.rpartition("/")[2]
    for table in folder.iterdir() if folder.exists() else ():
        return open_snapshot(str(table))
    return None


def has_rows(broker: BrokerProcess, river: River) -> bool:
    seen = table_of(broker, river)
    return seen is not None and seen.rows >= river.published


@pytest.mark.timeout(600)
def test_a_topic_that_a_policy_names_is_kept_as_a_table_through_kills(broker: BrokerProcess) -> None:
    river = River(broker, "orders")
    river.publish(100)
    broker.post("scalable/public/default/orders/table", "raw")
    until(lambda: has_rows(broker, river), START_S)
    for turn in range(4):
        river.publish(200)
        if turn == 1:
            river.split(0)
        (writer,) = until(lambda: writers(broker))
        os.kill(writer, signal.SIGKILL)
        until(partial(has_another, broker, writer), START_S)
        until(lambda: has_rows(broker, river), START_S)
    seen = table_of(broker, river)
    assert seen is not None
    assert values_of(seen) == list(range(river.published))
    assert verify_table(seen).faults == []
    until(lambda: report_of(broker, river).get("rows") == river.published, START_S)
    assert report_of(broker, river)["url"] == seen.url
    lines = "".join(broker.metrics()).splitlines()
    assert any(line.startswith("anabranch_table_rows{") and river.topic in line for line in lines)
    assert broker.get("anabranch/tables")["tables"] == [{"topic": river.topic, "mode": "raw"}]
    river.close()
