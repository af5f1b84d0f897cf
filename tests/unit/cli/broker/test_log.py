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
from anabranch.model.position import LedgerId
from anabranch.storage.core.topic_record import TopicRecord
from anabranch.storage.object.object_store import ObjectLogStore
from anabranch.storage.object.policy import ObjectLogPolicy
from anabranch.storage.on_disk.file_store import FileLogStore
from anabranch.storage.on_disk.moving import TierPolicy
from anabranch.storage.port import LogError
from anabranch.storage.tier.object_tier import open_tier
from anabranch.storage.topic.ledger_ids import LedgerIds
from anabranch.storage.topic.topic_log import TopicLog
from unit.storage.owners import Owner

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


def test_garbage_that_both_looks_prove_is_deleted_and_other_garbage_is_kept(
    stores: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = objects(stores)
    (folder,) = {path.parent.parent for path in before if path.parent.name == "log"}
    mark = folder / "gone"
    mark.write_bytes(folder.name.encode())
    late = folder / "log" / "000000000099"
    late.write_bytes(b"neither a commit nor a fence")
    assert main(["log", "gc", "--delay", "0", "--json", *stores]) == 0
    found = json.loads(capsys.readouterr().out)
    # As if brokers had stored that the log is gone, and been killed then.
    assert {str(path).rpartition("/wal/")[2] for path in before if path.is_relative_to(folder)} == {
        key.partition("wal/")[2] for key, _ in found["deleted"]
    }
    assert [key.rpartition("/")[2] for key, _ in found["kept"]] == [late.name]
    assert {path for path in objects(stores) if path.is_relative_to(folder)} == {mark, late}
    assert main(["log", "gc", "--delay", "0", *stores]) == 0
    assert "deleted: -" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("gc",), "logUrl names no object store"),
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


# -- files that were moved


@pytest.fixture
def tiered(tmp_path: Path) -> tuple[str, ...]:
    """The options of a folder whose log has moved some files."""
    root = tmp_path / "data" / "log"
    url = f"file://{tmp_path}/old"

    async def fill() -> None:
        tier = open_tier(f"objects://{tmp_path}/old", ObjectLogPolicy())
        policy = TierPolicy(0, small_bytes=0)
        store = FileLogStore(root, clock_ms=now_ms, file_bytes=64 << 10, tier=tier, tier_policy=policy)
        await store.start()
        owner = Owner()
        writer = store.open_ledger(LedgerId(1), owner, "public/default")
        for n in range(200):
            writer.append(b"entry %d" % n + bytes(1000), 1)
            await owner.until(n + 1)
        store.retain([])
        await store.reclaim()
        await store.close()

    asyncio.run(fill())
    (tmp_path / "broker.conf").write_text(f"logTierUrl={url}\n")
    return ("--config", str(tmp_path / "broker.conf"), "--data-dir", str(tmp_path / "data"))


def test_moved_files_are_counted_and_read_back(
    tiered: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "tier", "--json", "--verify", *tiered]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["objects"] > 0
    assert found["entries"] > 100
    assert [found[name] for name in ("missing", "damaged", "orphans", "faults")] == [[], [], [], []]
    assert main(["log", "tier", "--verify", *tiered]) == 0
    assert "all of them can be read" in capsys.readouterr().out


def test_what_is_missing_damaged_or_named_by_nothing_is_told(
    tiered: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = sorted((tmp_path / "old").rglob("*.led"))
    data = first.read_bytes()
    first.with_name("000000000009-0000-aaaaaaaa.led").write_bytes(data)
    at = data.index(b"entry 3")
    first.write_bytes(data[:at] + b"entrY 3" + data[at + 7 :])
    assert main(["log", "tier", "--verify", *tiered]) == 1
    shown = capsys.readouterr()
    assert f"no index file names {first.parent.relative_to(tmp_path / 'old')}/000000000009" in shown.out
    assert f"{first.name} at byte {at - 32}: ledger 1 entry 3: the record does not match" in shown.err
    first.unlink()
    assert main(["log", "tier", *tiered]) == 1
    assert f"{first.name}: there is no such object" in capsys.readouterr().err


def test_a_folder_that_moves_nothing_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["log", "tier", "--data-dir", str(tmp_path)]) == 1
    assert "logTierUrl names no object store" in capsys.readouterr().err
