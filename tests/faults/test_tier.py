"""A broker whose log is on its disk, with old files in an object store: killed while it moves them, and cut off."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from random import Random

import pytest
from soak.link import Link, send_frame

from anabranch.client.reading.direct import entries
from anabranch.client.reading.plans import Planner
from anabranch.storage.core.read_plan import TopicPlan
from anabranch.wire.batch import messages
from harness.broker_process import BrokerProcess, until
from harness.minio import bucket_url

pytestmark = pytest.mark.timeout(240)

TOPIC = "persistent://public/default/old"
SIZE = 20_000


@pytest.fixture(params=["folder", pytest.param("minio", marks=pytest.mark.objects)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    url = (
        bucket_url(f"tier-{secrets.token_hex(8)}") if request.param == "minio" else f"file://{tmp_path}/tier"
    )
    return {
        "logTierUrl": url,
        "logTierLocalBytes": 1,
        "logFileBytes": 1 << 20,
        # Reads come from where the entries are.
        "logCacheBytes": 1 << 20,
    }


def text(number: int) -> bytes:
    return b"%d:" % number + Random(number).randbytes(SIZE)


def publish(broker: BrokerProcess, first: int, count: int) -> None:
    with Link(broker.port) as link:
        link.producer(TOPIC)
        for start in range(first, first + count, 20):
            link.sock.sendall(b"".join(send_frame([text(n)], n) for n in range(start, start + 20)))
            for _ in range(20):
                link.wait_receipt()


def read_all(port: int, count: int) -> list[bytes]:
    with Link(port) as link:
        link.subscribe(TOPIC, secrets.token_hex(4), permits=100_000)
        found: list[bytes] = []
        while len(found) < count:
            found += [bytes(messages(frame.payload)[0][1]) for frame in link.messages(1)]
    return found


def moved(folder: Path) -> list[Path]:
    """The index files of files that are gone from the disk."""
    found = (folder / "data" / "log" / "ledgers").rglob("*.tier")
    return [path for path in found if not path.with_suffix(".led").exists()]


def test_kill_9_while_files_move_loses_nothing_and_readers_find_all(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    chance = Random(1)
    total = 0
    with BrokerProcess(tmp_path, settings, brokers=1) as broker:
        for _ in range(3):
            publish(broker, total, 160)
            total += 160
            # Rewriting and moving begin at once; each is killed somewhere else.
            time.sleep(chance.uniform(0.0, 2.5))
            broker.kill()
            broker.start()
        until(lambda: len(moved(tmp_path)) >= 2)
        assert read_all(broker.port, total) == [text(n) for n in range(total)]

        kinds: list[bool] = []
        planner = Planner(f"http://127.0.0.1:{broker.http_port}", TOPIC, signed=True)

        def planned(*arguments: object) -> TopicPlan:
            plan = planner(*arguments)  # type: ignore[arg-type]
            kinds.append(plan.in_objects)
            return plan

        found = [bytes(messages(entry)[0][1]) for _, _, entry in entries(planned, None, None)]
        assert found == [text(n) for n in range(total)]
        assert set(kinds) == {True, False}
