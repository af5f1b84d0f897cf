"""`anabranch log gc` and `anabranch log verify` on a folder whose broker has ended."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from anabranch.broker.runtime import object_identity
from anabranch.broker.stores import lock_folder, now_ms, object_medium, opened_metadata
from anabranch.cli.main import main
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.port import LogError
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog

RECORD = "/managed-ledgers/public/default/persistent/t"
ENTRIES = 5


class Topic:
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    def entries_confirmed(self, entries_end: int) -> None:
        self.changed.set()

    def log_lost(self, error: LogError) -> None:
        raise AssertionError(error)

    def encode_state(self) -> bytes:
        return b""


@pytest.fixture
def stores(tmp_path: Path) -> tuple[str, ...]:
    """The options that name metadata and a log with one topic of some entries."""
    url = f"objects://{tmp_path}/objects"
    data = tmp_path / "data"

    async def fill() -> None:
        lock = await lock_folder(data)
        async with opened_metadata(data) as (_, metadata):
            medium = object_medium(url)
            await object_identity.check(metadata, medium, data)
            store = ObjectLogStore(medium, clock_ms=now_ms, policy=ObjectLogPolicy(puts_per_second=0))
            await store.start()
            await metadata.create(RECORD, TopicRecord().encode())
            log = await TopicLog.open(RECORD, "public/default", store, metadata, LedgerIds(metadata), 0)
            topic = Topic()
            log.start(topic)
            for n in range(ENTRIES):
                topic.changed.clear()
                log.append(b"entry %d" % n, 1)
                await topic.changed.wait()
            await store.close()
        os.close(lock)

    asyncio.run(fill())
    return ("--data-dir", str(data), "--log", url)


def objects(stores: tuple[str, ...]) -> dict[Path, bytes]:
    folder = Path(stores[-1].removeprefix("objects://"))
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_is_there_and_nothing_is_changed(
    stores: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = objects(stores)
    assert main(["log", "verify", *stores]) == 0
    assert f"{ENTRIES} entries: all of them can be read" in capsys.readouterr().out
    assert main(["log", "gc", "--dry-run", "--json", *stores]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["state"], found["dead"], found["garbage"], found["errors"]) == ("ended", [], [], [])
    assert found["wanted"] > 0
    assert objects(stores) == before


def test_damage_is_told_with_its_object_and_offset_and_garbage_by_name(
    stores: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = next(
        path for path, data in objects(stores).items() if "/log/" in str(path) and b"entry 3" in data
    )
    at = damaged.read_bytes().index(b"entry 3")
    damaged.write_bytes(damaged.read_bytes().replace(b"entry 3", b"entrY 3"))
    late = damaged.with_name("000000000099")
    late.write_bytes(b"of a writer that came too late")
    assert main(["log", "verify", *stores]) == 1
    shown = capsys.readouterr()
    (line,) = [line for line in shown.err.splitlines() if line.startswith("anabranch: ")]
    assert f"{RECORD} ledger" in line
    assert "entry 3: the record does not match its checksum" in line
    assert f"/log/{damaged.name} at byte {at - 32}" in line
    assert f"{ENTRIES - 1} entries: 1 faults" in shown.out
    assert main(["log", "verify", "--json", *stores]) == 1
    assert json.loads(capsys.readouterr().out)["faults"][0]["entry"] == 3
    assert main(["log", "gc", "--dry-run", "--list", *stores]) == 0
    shown = capsys.readouterr()
    assert f"/log/{late.name} (30 bytes)" in shown.out
    assert "garbage: " in shown.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gc",), "use --dry-run"),
        (("gc", "--dry-run"), "logUrl names no object store"),
        (("verify", "--log", "file:///x"), "logUrl names no object store"),
        (("verify", "--log", "objects:///x", "--data-dir", "/nowhere"), "there is no folder /nowhere"),
        (("verify", "--log", "objects:///x", "--metadata", "sqlite:///x"), "names no metadata store"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", *arguments]) == 1
    shown = capsys.readouterr().err
    assert says in shown
    assert len([line for line in shown.splitlines() if line.startswith("anabranch: ")]) == 1


def test_a_log_that_the_metadata_does_not_name_is_refused(
    stores: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "verify", *stores[:2], "--log", f"objects://{tmp_path}/elsewhere"]) == 1
    assert "do not belong together" in capsys.readouterr().err
